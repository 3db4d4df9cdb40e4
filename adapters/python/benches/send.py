"""What a sender of deltas takes beside a trainer's weights: memory, and seconds of a delta.

    python benches/send.py [MIB] [TENSORS]     default: 2048 MiB of bf16 weights in 16 tensors

One bf16 in a hundred moves by one unit in the last place. The last version is kept in memory, or in a mapped
file; anonymous memory is what the process cannot give back.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from receive import change, weights

from gcodec import sync


def anonymous() -> int:
    """Returns the bytes of this process's memory that no file is behind."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def send(folder: str | None, mib: int, tensors: int) -> None:
    own = weights(mib, tensors)
    before, peak, over = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.005):
            peak = max(peak, anonymous())

    watching = threading.Thread(target=watch)
    watching.start()
    sender = sync.Sender(own, folder=folder)
    seconds, size = [], 0
    for _ in range(3):
        change(own)
        start = time.perf_counter()
        size = len(sender.delta(own))
        seconds.append(time.perf_counter() - start)
    over.set()
    watching.join()
    print(
        f"{mib} MiB of weights, the last version in {'a file' if folder else 'memory'}: {(peak - before) / 2**20:.1f} MiB more at the peak; "
        f"deltas of {size / 2**20:.1f} MiB in {', '.join(f'{s:.2f}' for s in seconds)} s",
        flush=True,
    )


def main() -> None:
    given = [int(x) for x in sys.argv[1:3]]
    mib, tensors = given + [2048, 16][len(given) :]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for place in ([], [folder]):
            subprocess.run([sys.executable, __file__, "send", str(mib), str(tensors), *place], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "send":
        send(sys.argv[4] if len(sys.argv) > 4 else None, int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
