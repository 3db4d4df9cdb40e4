"""What a codec costs one process alone on this machine, on one thread: the parts of the model.

    python tools/scale/real/parts.py GRADIENT CODEC ..
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from worker import Steps

import gcodec

RUNS = 15


def best(work: Callable[[], object]) -> float:
    """Returns the shortest seconds of several runs."""
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def of_codec(codec: str, gradients: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns the bytes and seconds of a codec's exchange, measured on a group of this process alone."""
    steps = Steps(codec, gradients)
    whole = best(steps.exchange)
    before = steps.traffic()[0]
    steps.exchange()
    plain = sum(gradient.nbytes for gradient in gradients.values())
    parts = {"plain": plain, "update": steps.traffic()[0] - before, "encode": whole, "add": 0.0, "sum": 0.0}
    if codec == "none":
        # A copy and a division: the network's own additions are part of its collectives.
        return parts | {"update": plain, "encode": 0.0}
    if codec.startswith("scalecom:"):
        # The values of an all-reduce; the other bytes are the leader's positions.
        density = float(codec.partition("=")[2])
        return parts | {"values": sum(4 * max(round(density * g.numel()), 1) for g in gradients.values())}
    streams = [gcodec.encode(gradients, codec, header=gcodec.UpdateHeader(sender=n, world=4)) for n in range(4)]
    one, four = (best(lambda many=streams[:count]: gcodec.reduce(many, mean=True)) for count in (1, 4))
    add = max((four - one) / 3, 0.0)
    return parts | {"encode": max(whole - one, 0.0), "add": add, "sum": max(one - add, 0.0)}


def main() -> None:
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    gradients = load_file(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for codec in sys.argv[2:]:
            print(json.dumps({"codec": codec} | of_codec(codec, gradients)), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
