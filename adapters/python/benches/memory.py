"""Host memory of the exchange of gradients, for each codec, in bytes for each parameter.

    python adapters/python/benches/memory.py [PARAMETERS] [CODEC ..]     # Linux

Two ranks on gloo exchange f32 gradients by `gcodec.torch.Average`, in tensors of 2^20 elements. Steady is
what a rank holds after three steps beyond the model and its gradients: residuals, the codec's own state, the
last frames, and what the allocator keeps for the next step. Peak is the most in the fourth step: also the
frames of both ranks, and the mean.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import gcodec
import gcodec.torch

LARGE = 1 << 20
CODECS = {
    "raw": lambda: "raw",
    "lossless": lambda: "lossless",
    "natural": lambda: "natural",
    "int8": lambda: "int8",
    "qsgd:bits=4": lambda: "qsgd:bits=4",
    "sign": lambda: "sign",
    "topk:density=0.01": lambda: "topk:density=0.01",
    "topk:density=0.01,scope=global": lambda: "topk:density=0.01,scope=global",
    "sbc": lambda: "sbc",
    "chunked": lambda: "chunked",
    "powersgd": lambda: "powersgd",
    "Dgc(0.01)": lambda: gcodec.Dgc(0.01),
    "ScaleCom(0.01)": lambda: gcodec.torch.ScaleCom(0.01),
    "SharedSet(0.01)": lambda: gcodec.torch.SharedSet(0.01),
}


def status(field: str) -> int:
    """Returns a number of bytes of this process that Linux counts."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) << 10


def rank(number: int, folder: str, name: str, parameters: int) -> None:
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    shape = (1 << 10, LARGE >> 10)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for _ in range(parameters // LARGE)])
    generator = torch.Generator().manual_seed(number)

    def gradients() -> None:
        for p in model:
            if p.grad is None:
                p.grad = torch.empty(shape)
            p.grad.normal_(generator=generator)

    # What the libraries take at their first use.
    small = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(64, 64))])
    small[0].grad = torch.ones(64, 64)
    gcodec.torch.Average(small, CODECS[name]())()
    gradients()
    before = status("VmRSS")
    average = gcodec.torch.Average(model, CODECS[name]())
    for _ in range(3):
        gradients()
        average()
    gradients()
    steady = status("VmRSS") - before
    Path("/proc/self/clear_refs").write_text("5")
    average()
    peak = status("VmHWM") - before
    if number == 0:
        print(f"| `{name}` | {steady / parameters:.1f} | {peak / parameters:.1f} |", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parameters = max(int(sys.argv[1]) if len(sys.argv) > 1 else 8 * LARGE, LARGE)
    print("| codec | steady | peak |\n|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for name in sys.argv[2:] or CODECS:
        with tempfile.TemporaryDirectory() as folder:
            ranks = [context.Process(target=rank, args=(number, folder, name, parameters)) for number in range(2)]
            [process.start() for process in ranks]
            [process.join() for process in ranks]
            if any(process.exitcode for process in ranks):
                sys.exit(f"{name} failed")


if __name__ == "__main__":
    main()
