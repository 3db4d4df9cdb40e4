"""The times of an exchange: two processes on this machine train over gloo, plain and with each codec.

    python adapters/python/benches/hook.py [PARAMETERS] [--link MBIT]

With --link (Linux, as root), the processes run in a network namespace of their own, whose loopback carries
this many megabits a second in each direction: a token bucket of `tc`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.torch

CODECS = {
    "plain": None,
    "topk:density=0.01": "topk:density=0.01",
    "topk:density=0.001": "topk:density=0.001",
    "sbc": "sbc",
    "natural": "natural",
    "int8": "int8",
    "raw": "raw",
    "scalecom, density 0.01": gcodec.torch.ScaleCom(0.01),
}
WARM, STEPS = 3, 12


# The loopback carries both directions. A bucket of 64 KB saves a step at most 3 ms at 100 Mbit/s.
LINK = "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate {rate}mbit burst 64kb latency 100ms"


def rank(number: int, folder: str, width: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    if number == 0:
        columns = ("selection", "coding", "communication", "other")
        print(f"2 ranks, {4 * width * width:,} parameters, {STEPS} steps each, one thread a rank; milliseconds and bytes a step")
        print(f"{'codec':24}{'step':>10}" + "".join(f"{c:>15}" for c in columns) + f"{'sent':>14}{'received':>14}")
    for name, codec in CODECS.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
        ddp = DistributedDataParallel(model)
        state = None if codec is None else gcodec.torch.State(model, codec)
        if state is not None:
            ddp.register_comm_hook(state, gcodec.torch.hook)
        for step in range(WARM + STEPS):
            if step == WARM:
                dist.barrier()
                before = dict(vars(state.profile)) if state else {}
                start = time.perf_counter()
            ddp(torch.randn(8, width)).square().mean().backward()
        seconds = (time.perf_counter() - start) / STEPS
        row = f"{name:24}{1e3 * seconds:10.1f}"
        if state is not None:
            each = {key: (value - before[key]) / STEPS for key, value in vars(state.profile).items()}
            row += "".join(f"{1e3 * each[c]:15.2f}" for c in ("selection", "coding", "communication", "other"))
            row += f"{each['sent']:14,.0f}{each['received']:14,.0f}"
        if number == 0:
            print(row, flush=True)
        dist.barrier()
        del ddp
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the exchanges of two training processes.")
    parser.add_argument("parameters", type=int, nargs="?", default=1 << 22, help="size of the model")
    parser.add_argument("--link", type=int, help="megabits a second of the link between the processes")
    arguments = parser.parse_args()
    if arguments.link is not None:
        inside = f"{LINK.format(rate=2 * arguments.link)} && exec \"$@\""
        again = [sys.executable, __file__, str(arguments.parameters)]
        print(f"link: {arguments.link} Mbit/s in each direction", flush=True)
        sys.exit(subprocess.call(["unshare", "--net", "sh", "-c", inside, "sh", *again]))
    with tempfile.TemporaryDirectory() as folder:
        width = round((arguments.parameters / 4) ** 0.5)
        torch.multiprocessing.spawn(rank, (folder, width), nprocs=2)


if __name__ == "__main__":
    main()
