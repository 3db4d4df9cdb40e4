"""The times of an exchange: two processes on this machine train over gloo, without a hook, with PyTorch's own
hooks and with each codec. All take turns, and a ratio is the median over turns.

    python adapters/python/benches/hook.py [PARAMETERS] [--layers N] [--turns N] [--only NAME].. [--link MBIT]

With --link (Linux, as root), the processes run in a network namespace of their own, whose loopback carries
this many megabits a second in each direction: a token bucket of `tc`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.torch

CODECS = {
    "topk:density=0.01": "topk:density=0.01",
    "topk:density=0.001": "topk:density=0.001",
    "sbc": "sbc",
    "natural": "natural",
    "int8": "int8",
    "raw": "raw",
    "powersgd:rank=4": "powersgd:rank=4",
    "scalecom, density 0.01": gcodec.torch.ScaleCom(0.01),
}
NAMES = ["none", "torch fp16", "torch PowerSGD, rank 4", *CODECS]
WARM, STEPS = 3, 4


# The loopback carries both directions. A bucket of 64 KB saves a step at most 3 ms at 100 Mbit/s.
LINK = "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate {rate}mbit burst 64kb latency 100ms"


class Layers(torch.nn.Module):
    """The sum of layers side by side: behind many others, gradients would vanish."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x) for layer in self.layers]).sum(0)


class Run:
    """A model that trains with one hook, and what its turns took."""

    def __init__(self, name: str, width: int, layers: int) -> None:
        torch.manual_seed(0)
        model = Layers(width, layers)
        self.name, self.width, self.seconds, self.steps = name, width, [], 0
        # The callbacks of PyTorch's PowerSGD wait for each other with several buckets on gloo.
        self.ddp = DistributedDataParallel(model, bucket_cap_mb=1024 if name.startswith("torch P") else None)
        self.state = gcodec.torch.State(model, CODECS[name]) if name in CODECS else None
        if self.state is not None:
            self.ddp.register_comm_hook(self.state, gcodec.torch.hook)
        elif name == "torch fp16":
            self.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif name != "none":
            # It compresses from its second step on: by default, only after 1,000.
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def train(self, steps: int) -> float:
        """Returns the seconds of a step."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.ddp(torch.randn(8, self.width)).square().mean().backward()
        return (time.perf_counter() - start) / steps

    def warm(self) -> None:
        self.train(WARM)
        self.before = dict(vars(self.state.profile)) if self.state else {}

    def turn(self) -> None:
        self.seconds.append(self.train(STEPS))
        self.steps += STEPS

    def row(self, none: list[float]) -> str:
        ratio = statistics.median(mine / other for mine, other in zip(self.seconds, none, strict=True))
        row = f"{self.name:24}{1e3 * statistics.median(self.seconds):10.1f}{ratio:8.2f}"
        if self.state is not None:
            each = {key: (value - self.before[key]) / self.steps for key, value in vars(self.state.profile).items()}
            row += "".join(f"{1e3 * each[c]:15.2f}" for c in ("selection", "coding", "communication", "other"))
            row += f"{each['sent']:14,.0f}{each['received']:14,.0f}"
        return row


def rank(number: int, folder: str, width: int, layers: int, turns: int, only: list[str]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    runs = [Run(name, width, layers) for name in NAMES if not only or name == "none" or name in only]
    for run in runs:
        run.warm()
    for _ in range(turns):
        for run in runs:
            run.turn()
    if number == 0:
        columns = ("selection", "coding", "communication", "other")
        print(f"2 ranks, {layers} layers, {layers * width * width:,} parameters, {turns} turns of {STEPS} steps each,")
        print("one thread a rank; milliseconds of a step, as a ratio to that without a hook, and bytes a step")
        header = "".join(f"{c:>15}" for c in columns)
        print(f"{'hook':24}{'step':>10}{'ratio':>8}{header}{'sent':>14}{'received':>14}")
        for run in runs:
            print(run.row(runs[0].seconds), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the exchanges of two training processes.")
    parser.add_argument("parameters", type=int, nargs="?", default=1 << 22, help="size of the model")
    parser.add_argument("--layers", type=int, default=4, help="number of layers of one size")
    parser.add_argument("--turns", type=int, default=5, help="turns of each hook")
    parser.add_argument("--only", action="append", default=[], choices=NAMES, help="a hook to measure, beside none")
    parser.add_argument("--link", type=int, help="megabits a second of the link between the processes")
    arguments = parser.parse_args()
    if arguments.link is not None:
        inside = f"{LINK.format(rate=2 * arguments.link)} && exec \"$@\""
        again = [sys.executable, __file__, str(arguments.parameters)]
        again += ["--layers", str(arguments.layers), "--turns", str(arguments.turns)]
        again += [word for name in arguments.only for word in ("--only", name)]
        print(f"link: {arguments.link} Mbit/s in each direction", flush=True)
        sys.exit(subprocess.call(["unshare", "--net", "sh", "-c", inside, "sh", *again]))
    with tempfile.TemporaryDirectory() as folder:
        width = round((arguments.parameters / arguments.layers) ** 0.5)
        options = (folder, width, arguments.layers, arguments.turns, arguments.only)
        torch.multiprocessing.spawn(rank, options, nprocs=2)


if __name__ == "__main__":
    main()
