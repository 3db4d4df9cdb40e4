"""What a receiver takes beside an engine's weights: memory, and seconds of staging and of the commit.

    python benches/receive.py [MIB] [TENSORS]     default: 2048 MiB of bf16 weights in 16 tensors

A sender in a process of its own makes a delta of 1 % of the weights. The receiver's weights are the engine's
parameters, half of them as the halves of fused ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import gcodec
from gcodec import check, sync

COLUMNS = 4096


def weights(mib: int, tensors: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = (mib << 20) // 2 // COLUMNS // tensors
    return {f"w{n}": torch.randn(rows, COLUMNS, generator=generator).bfloat16() for n in range(tensors)}


def change(own: dict[str, torch.Tensor]) -> None:
    """One bf16 in a hundred moves by one unit in the last place."""
    for n, tensor in enumerate(own.values()):
        tensor.view(torch.int16).view(-1)[n::100] ^= 1


def send(path: str, mib: int, tensors: int) -> None:
    own = weights(mib, tensors)
    sender = sync.Sender(own)
    change(own)
    Path(path).write_bytes(sender.delta(own))


def memory(field: str) -> int:
    """Returns a field of this process's status in bytes: VmRSS, or VmHWM, the largest since `forget_peak`."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def receive(path: str, mib: int, tensors: int) -> None:
    own = weights(mib, tensors)
    # Every two of the first half are one parameter of the engine.
    parameters, layout, names = {}, {}, list(own)
    for first, second in zip(names[: tensors // 2 : 2], names[1 : tensors // 2 : 2], strict=False):
        parameters[first + second] = torch.cat([own.pop(first), own.pop(second)])
        rows = parameters[first + second].shape[0] // 2
        layout[first + second] = check.fused((2 * rows, COLUMNS), {first: rows, second: rows})
    parameters |= own
    data = Path(path).read_bytes()
    forget_peak()
    before = memory("VmRSS")
    receiver = sync.Receiver(check.views(parameters, layout))
    start = time.perf_counter()
    staged = receiver.stage(data)
    middle = time.perf_counter()
    staged.commit()
    end = time.perf_counter()
    patch = staged.patches.count * (4 + 2)
    print(
        f"{mib} MiB of weights, stream {len(data) / 2**20:.1f} MiB, patch {patch / 2**20:.1f} MiB: "
        f"{(memory('VmHWM') - before) / 2**20:.1f} MiB more at the peak; stage {middle - start:.2f} s, commit with digests {end - middle:.2f} s"
    )
    expected = weights(mib, tensors)
    change(expected)
    assert all(torch.equal(expected[name], x) for name, x in check.views(parameters, layout).items())


def main() -> None:
    given = [int(x) for x in sys.argv[1:3]]
    mib, tensors = given + [2048, 16][len(given) :]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/delta.gcu"
        for job in ("send", "receive"):
            subprocess.run([sys.executable, __file__, job, path, str(mib), str(tensors)], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("send", "receive"):
        {"send": send, "receive": receive}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
