"""A worker of a training: exchanges real gradients with the others on gloo, and prints the times of steps.

run.py starts it in a namespace and writes a line of JSON for each measurement; each gets a line back.
"""

# DistributedDataParallel reads the hook's annotations, which therefore are not strings.

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import gcodec
import gcodec.torch

# Seconds that the measured steps of one codec take at least, if these are not the most steps.
WANTED, LEAST, MOST = 0.7, 2, 8
# Share of the compute that is the backward pass.
BACKWARD = 2 / 3


class Gradients(torch.nn.Module):
    """Parameters of the shapes of given gradients."""

    def __init__(self, gradients: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.names = {name.replace(".", "_"): name for name in gradients}
        for plain, name in self.names.items():
            self.register_parameter(plain, torch.nn.Parameter(torch.zeros_like(gradients[name])))


class _Layer(torch.autograd.Function):
    """A layer whose backward pass takes seconds of another device, and gives a known gradient."""

    @staticmethod
    def forward(ctx: Any, before: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        return before.clone()

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return outer[0], ctx.gradient.clone(), None, None


class Network(Gradients):
    """Layers that compute on another device: this one's processors wait, and are free for the exchange."""

    def __init__(self, gradients: dict[str, torch.Tensor], compute: float) -> None:
        super().__init__(gradients)
        self.gradients, self.compute = gradients, compute
        self.elements = sum(gradient.numel() for gradient in gradients.values())

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        time.sleep((1 - BACKWARD) * self.compute)
        for plain, parameter in self.named_parameters():
            gradient = self.gradients[self.names[plain]]
            seconds = BACKWARD * self.compute * gradient.numel() / self.elements
            loss = _Layer.apply(loss, parameter, gradient, seconds)
        return loss


def codec_of(text: str) -> Any:
    """Returns a codec of its name in the results."""
    if text.startswith("scalecom:density="):
        return gcodec.torch.ScaleCom(float(text.partition("=")[2]))
    return text


class Steps:
    """The steps of one codec: `exchange` is called for each, after `compute` seconds of another device."""

    def __init__(self, codec: str, gradients: dict[str, torch.Tensor], compute: float = 0.0) -> None:
        self.compute = compute
        self.model = Gradients(gradients)
        self.fresh = {plain: gradients[name] for plain, name in self.model.names.items()}
        self.average = None if codec == "none" else gcodec.torch.Average(self.model, codec_of(codec))
        self.flat = torch.cat([gradient.reshape(-1) for gradient in gradients.values()])

    def exchange(self) -> float:
        """Exchanges the gradients once, and returns the seconds that it took here."""
        if self.average is None:
            flat = self.flat.clone()
            start = time.perf_counter()
            time.sleep(self.compute)
            dist.all_reduce(flat)
            return time.perf_counter() - start
        gradients = {plain: tensor.clone() for plain, tensor in self.fresh.items()}
        start = time.perf_counter()
        time.sleep(self.compute)
        self.average(gradients)
        return time.perf_counter() - start

    def traffic(self) -> tuple[int, int]:
        """Returns the bytes sent and received so far."""
        profile = None if self.average is None else self.average.profile
        return (0, 0) if profile is None else (profile.sent, profile.received)

    def phases(self) -> list[float]:
        """Returns the seconds so far of the phases in which this process did not wait for others."""
        profile = None if self.average is None else self.average.profile
        return [0.0] if profile is None else [profile.selection, profile.coding, profile.other]


class Overlapped:
    """The steps of one codec in DistributedDataParallel, whose buckets travel during the backward pass."""

    def __init__(self, codec: str, gradients: dict[str, torch.Tensor], compute: float, bucket: float) -> None:
        self.buckets = 0
        network = Network(gradients, compute)
        self.model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=bucket)  # type: ignore[arg-type]
        self.state = None if codec == "none" else gcodec.torch.State(network, codec)
        self.model.register_comm_hook(self, Overlapped._hook)

    def _hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.buckets = bucket.index() + 1
        return allreduce_hook(None, bucket) if self.state is None else gcodec.torch.hook(self.state, bucket)  # type: ignore[arg-type]

    def exchange(self) -> float:
        """Makes a step, and returns the seconds that it took here."""
        self.model.zero_grad()
        start = time.perf_counter()
        self.model(torch.zeros(1, requires_grad=True)).sum().backward()
        return time.perf_counter() - start

    def traffic(self) -> tuple[int, int]:
        """Returns the bytes sent and received so far."""
        return (0, 0) if self.state is None else (self.state.profile.sent, self.state.profile.received)

    def phases(self) -> list[float]:
        """Returns the seconds so far of the phases in which this process did not wait for others."""
        profile = None if self.state is None else self.state.profile
        return [0.0] if profile is None else [profile.selection, profile.coding, profile.other]


def measure(codec: str, gradients: dict[str, torch.Tensor], compute: float, bucket: float | None) -> dict[str, Any]:
    """Returns the seconds of the steps of a codec, here, and the bytes and buckets of one. With MiB of a
    bucket, buckets are exchanged during the compute."""
    steps = Steps(codec, gradients, compute) if bucket is None else Overlapped(codec, gradients, compute, bucket)
    # The first step compares the settings of all ranks; the second opens the windows of all connections.
    steps.exchange()
    longest = torch.tensor([steps.exchange()])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    count = min(max(int(WANTED / longest.item()) + 1, LEAST), MOST)
    before = steps.traffic()
    seconds, phases = [], []
    for _ in range(count):
        dist.barrier()
        earlier = steps.phases()
        seconds.append(steps.exchange())
        phases.append([after - one for after, one in zip(steps.phases(), earlier, strict=True)])
    sent, received = ((after - earlier) / count for after, earlier in zip(steps.traffic(), before, strict=True))
    buckets = steps.buckets if isinstance(steps, Overlapped) else 1
    return {"seconds": seconds, "phases": phases, "sent": sent, "received": received, "buckets": buckets}


def small() -> dict[str, Any]:
    """Returns the seconds of an all-gather of 8 bytes, which are its messages' latencies."""
    mine = torch.zeros(1, dtype=torch.int64)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    seconds = []
    for _ in range(12):
        dist.barrier()
        start = time.perf_counter()
        dist.all_gather(everyone, mine)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[2:]}


def main() -> None:
    rank, world, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    gradients = load_file(file)
    os.environ.setdefault("GCODEC_FIRST_STEP_SECONDS", "600")
    for line in sys.stdin:
        asked = json.loads(line)
        if store := asked.get("connect"):
            if dist.is_initialized():
                dist.destroy_process_group()
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
            result = {}
        elif asked["codec"] == "small":
            result = small()
        else:
            result = measure(asked["codec"], gradients, asked["compute"], asked["bucket"])
        print(json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
