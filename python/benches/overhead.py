"""What the way through Python costs: a 64 MB tensor by the library's own `encode`, by `gcodec.encode` (which copies what was
encoded into a bytes object) and by `gcodec.Writer` (which does not), in one process.

    python python/benches/overhead.py [SPEC ...]

They are run in turns. Wall time is the smallest of all runs; processor time (all threads, user and system), which other work
on the machine disturbs less, is the median.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import gcodec
from gcodec import _native

RUNS = 41
SPECS = ["topk:density=0.001", "topk:density=0.01", "sbc", "chunked", "natural", "qsgd", "sign", "int8", "lossless", "raw"]


def main() -> None:
    tensor = np.random.default_rng(0).standard_normal(16 << 20, dtype=np.float32)
    print(f"{tensor.nbytes >> 20} MiB of f32, {gcodec.num_threads()} threads, {RUNS} runs each")
    ways = "".join(f" | {way:>10} ms   ratio    processor" for way in ("encode", "Writer"))
    print(f"{'codec':20} {'bytes':>11} {'library ms':>11}{ways}")
    for spec in sys.argv[1:] or SPECS:
        writer = gcodec.Writer(Sink(), index=False)
        ways: list[Callable[[], object]] = [
            lambda spec=spec: _native.library_encode([("tensor", tensor, None)], spec, False),
            lambda spec=spec: gcodec.encode(tensor, spec),
            lambda spec=spec, writer=writer: writer.write(tensor, spec),
        ]
        wall: list[list[float]] = [[], [], []]
        processor: list[list[float]] = [[], [], []]
        for _ in range(RUNS + 1):
            for way, of_wall, of_processor in zip(ways, wall, processor, strict=True):
                start, start_processor = time.perf_counter(), time.process_time()
                way()
                of_wall.append(time.perf_counter() - start)
                of_processor.append(time.process_time() - start_processor)
        # The first run of each warms up.
        least = [min(times[1:]) for times in wall]
        middle = [statistics.median(times[1:]) for times in processor]
        size = len(gcodec.encode(tensor, spec))
        columns = "".join(
            f" | {least[i] * 1e3:10.2f}    {least[i] / least[0]:7.3f}      {middle[i] / middle[0]:7.3f}" for i in (1, 2)
        )
        print(f"{spec:20} {size:11,} {least[0] * 1e3:11.2f}{columns}", flush=True)


class Sink:
    """Takes everything and keeps nothing."""

    def write(self, piece: memoryview) -> int:
        return len(piece)


if __name__ == "__main__":
    main()
