"""The ranks of test_frozen.py: parameters that are frozen or become trainable during training, and states of
other models and numbers of ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from failure_ranks import CODECS, said
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import bits, network

import gcodec
import gcodec.torch

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "decay": lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


class Trainer:
    """One way to train, with a step that takes a batch."""

    def __init__(self, way: str, model: torch.nn.Module, codec: Any, optimizer: str = "momentum") -> None:
        self.way, self.model = way, model
        self.inner = OPTIMIZERS[optimizer](model.parameters())
        if way == "Average":
            self.exchange: Any = gcodec.torch.Average(model, codec)
        else:
            outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            self.exchange = gcodec.torch.DiLoCo(model, outer, codec, every=2)

    def step(self, rank: int, step: int) -> None:
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        self.inner.zero_grad()
        self.model(inputs).square().mean().backward()
        if self.way == "Average":
            self.exchange()
        self.inner.step()
        if self.way == "DiLoCo":
            self.exchange.step()


def freeze(layer: torch.nn.Module, frozen: bool = True) -> None:
    for p in layer.parameters():
        p.requires_grad_(not frozen)


def frozen(rank: int, world: int) -> dict[str, Any]:
    """Four steps, four with a frozen layer, four again: whether layers move in each of the three."""
    out: dict[str, Any] = {}
    for way in ("Average", "DiLoCo"):
        for optimizer in OPTIMIZERS:
            for codec, make in CODECS.items():
                if codec == "lgc" or (optimizer != "decay" and codec not in ("topk", "scalecom")):
                    continue
                model = network(0)
                trainer, layers, seen = Trainer(way, model, make(), optimizer), (model[0], model[2]), []
                for phase in range(3):
                    freeze(layers[0], phase == 1)
                    before = [bits(layer) for layer in layers]
                    for step in range(4):
                        trainer.step(rank, 4 * phase + step)
                    seen.append([bits(layer) != one for layer, one in zip(layers, before, strict=True)])
                out[f"{way}, {optimizer}, {codec}"] = seen, bits(model)
    return out


def unfrozen(rank: int, world: int) -> dict[str, Any]:
    """A layer that is frozen when the trainer is made, and trainable from the fourth step on."""
    out: dict[str, Any] = {}
    for way in ("Average", "DiLoCo"):
        for codec, make in CODECS.items():
            model = network(0)
            freeze(model[0])
            trainer, start = Trainer(way, model, make()), bits(model[0])
            for step in range(4):
                trainer.step(rank, step)
            still = bits(model[0]) == start
            freeze(model[0], False)
            text = ""
            for step in range(4, 10):
                text = text or said(lambda step=step, trainer=trainer: trainer.step(rank, step))
            out[f"{way}, {codec}"] = still, bits(model[0]) != start, text, bits(model)
    # DistributedDataParallel is made after the layer became trainable, the state before.
    for codec in ("topk", "global"):
        model = network(0)
        freeze(model[0])
        state, start = gcodec.torch.State(model, CODECS[codec]()), bits(model[0])
        freeze(model[0], False)
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, gcodec.torch.hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()
        out[f"State, {codec}"] = True, bits(model[0]) != start, "", bits(model)
    return out


def none(rank: int, world: int) -> dict[str, Any]:
    """Gradients that no rank has, or one rank alone."""

    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.used, self.alone, self.never = (torch.nn.Linear(4, 4) for _ in range(3))

    out = {}
    for codec in ("topk", "scalecom", "dgc"):
        model = Parts()
        average = gcodec.torch.Average(model, CODECS[codec]())
        x = torch.ones(2, 4)
        loss = model.used(x).sum() + (model.alone(x).sum() if rank == 1 else 0)
        loss.backward()
        average()
        out[codec] = {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()}
    return out


def messages(rank: int, world: int) -> dict[str, str]:
    """Parameters that become trainable, and cannot take part."""
    out = {}
    model = network(0)
    freeze(model[0])
    average = gcodec.torch.Average(model, "topk")
    freeze(model[0], rank == 0)
    model(torch.ones(2, 64)).sum().backward()
    out["one rank"] = said(average)
    model = network(0)
    freeze(model[0])
    outer = torch.optim.SGD(model[2].parameters(), lr=1.0)
    diloco = gcodec.torch.DiLoCo(model, outer, "topk", every=1)
    freeze(model[0], False)
    out["outer"] = said(diloco.step)
    out["outer again"] = said(diloco.step)
    model = network(0)
    state = gcodec.torch.State(model, "topk")
    model[0] = torch.nn.Linear(64, 48)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, gcodec.torch.hook)
    out["replaced"] = said(lambda: ddp(torch.ones(2, 64)).sum().backward())
    return out


def before_the_group(rank: int, world: int) -> dict[str, Any]:
    """Trainers that are made before the process group, with and without a state in a file."""
    dist.destroy_process_group()
    out: dict[str, Any] = {}
    models = {name: network(0) for name in ("State", "Average", "DiLoCo", "clip")}
    outer = torch.optim.SGD(models["DiLoCo"].parameters(), lr=1.0)
    made = {
        "State": gcodec.torch.State(models["State"], "topk"),
        "Average": gcodec.torch.Average(models["Average"], gcodec.torch.ScaleCom()),
        "DiLoCo": gcodec.torch.DiLoCo(models["DiLoCo"], outer, "topk", every=1),
        "clip": gcodec.torch.Average(models["clip"], gcodec.Dgc(clip=1.0, workers=7)),
    }
    out["saved"] = said(made["State"].state_dict)
    out["called"] = said(made["Average"])
    yield_group(rank, world)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(rank))
    ddp = DistributedDataParallel(models["State"])
    ddp.register_comm_hook(made["State"], gcodec.torch.hook)
    ddp(x).square().mean().backward()
    for name in ("Average", "clip"):
        models[name].zero_grad()
        models[name](x).square().mean().backward()
    made["Average"]()
    out["workers"] = said(made["clip"])
    with torch.no_grad():
        for p in models["DiLoCo"].parameters():
            p += rank
    made["DiLoCo"].step()
    out["gradients"] = {name: [p.grad.tolist() for p in models[name].parameters()] for name in ("State", "Average")}
    out["bits"] = bits(models["DiLoCo"])
    return out


STORE: list[str] = []


def yield_group(rank: int, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{STORE[0]}", rank=rank, world_size=world)


def before(rank: int, world: int, store: str) -> dict[str, Any]:
    STORE.append(store)
    return before_the_group(rank, world)


class _Small(torch.nn.Module):
    """A part of `network`: its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("2", network(0)[2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, "2")(x)


def trained(model: torch.nn.Module, codec: Any, rank: int, steps: int) -> gcodec.torch.Average:
    average = gcodec.torch.Average(model, codec)
    for step in range(steps):
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        model.zero_grad()
        model(inputs).square().mean().backward()
        average()
    return average


def save(rank: int, world: int, folder: str) -> None:
    for codec, make in CODECS.items():
        for steps in (3, 7):
            state = trained(network(0), make(), rank, steps).state_dict()
            torch.save(state, Path(folder) / f"{codec}-{steps}-{rank}.pt")


def resume(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Loads states of another number of ranks and of a larger model, and goes on."""
    out: dict[str, Any] = {}
    for codec, make in CODECS.items():
        for steps in (3, 7):
            state = torch.load(Path(folder) / f"{codec}-{steps}-{rank % 2}.pt")
            model = network(0)
            average = gcodec.torch.Average(model, make())
            refused = said(lambda average=average, state=state: average.load_state_dict(state))
            average.load_state_dict(state, strict=False)
            begins = average.state_dict()["step"]
            for step in range(8):
                inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
                model.zero_grad()
                model(inputs).square().mean().backward()
                average()
            small = gcodec.torch.Average(_Small(), make())
            with contextlib.suppress(gcodec.InputError):
                small.load_state_dict(state)
                raise AssertionError("accepted")
            small.load_state_dict(state, strict=False)
            kept = small.state_dict()
            names = set(kept.get("feedback", {})) | set(kept.get("scalecom", {})) | set(kept.get("sets", {}))
            names |= set(kept.get("dgc", {"tensors": {}})["tensors"])
            out[f"{codec}, {steps}"] = refused, begins, [p.grad.tolist() for p in model.parameters()], sorted(names)
    return out


