"""The ranks of test_failures.py: steps that fail or are skipped, on one rank first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from layout_ranks import Weighted, gradients, hooked, residuals
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gcodec
import gcodec.torch
from gcodec.torch import ranks as ranks_module

SHAPES: dict[str, tuple[int, ...]] = {"w": (12, 10), "v": (30,)}
TIGHT = gcodec.Limits(max_elements=1)

CODECS: dict[str, Callable[[], Any]] = {
    "topk": lambda: gcodec.TopK(density=0.1),
    "global": lambda: gcodec.TopK(density=0.1, scope="global"),
    "scalecom": lambda: gcodec.torch.ScaleCom(density=0.1),
    "shared set": lambda: gcodec.torch.SharedSet(density=0.1),
    "lgc": lambda: gcodec.torch.Lgc(density=0.1, full_steps=1, top_k_steps=4, iterations=4, width=4),
    "dgc": lambda: gcodec.Dgc(0.1),
}


def said(work: Callable[[], Any]) -> str:
    try:
        work()
    except gcodec.GcodecError as e:
        return f"{type(e).__name__}: {e}"
    return ""


def tighten(exchange: Any, limits: gcodec.Limits) -> None:
    """Sets the limits of a rank after it has met the others."""
    exchange._frames._limits = exchange._index_sets._limits = limits


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def late(rank: int, world: int) -> dict[str, Any]:
    """Rank 1 cannot decode what all have sent in the third step of five."""
    out: dict[str, Any] = {}
    for codec, make in CODECS.items():
        for way in ("State", "Average", "DiLoCo"):
            model = Weighted({name: torch.zeros(shape) for name, shape in SHAPES.items()})
            if way == "State":
                ddp, trainer = hooked(model, make(), bucket_cap_mb=1e-4)
            elif way == "Average":
                trainer = gcodec.torch.Average(model, make())
            else:
                trainer = gcodec.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1.0), make(), every=1)
            seen, kept = [], []
            for step in range(5):
                given = gradients(rank, step, SHAPES, torch.float32)
                if rank == 1 and step == 2:
                    tighten(trainer._exchange, TIGHT)
                before = residuals(trainer)
                model.zero_grad()

                def one_step(given: dict[str, torch.Tensor] = given) -> None:
                    if way == "State":
                        return ddp(given).backward()
                    if way == "Average":
                        model(given).backward()
                        return trainer()
                    with torch.no_grad():
                        for name, p in model.named_parameters():
                            p -= given[name]
                    trainer.step()

                seen.append(said(one_step))
                if step == 2:
                    kept.append(same(before, residuals(trainer)))
                    tighten(trainer._exchange, gcodec.Limits())
            bits = [(p.grad if p.grad is not None else p.detach()).tolist() for p in model.parameters()]
            out[f"{codec}, {way}"] = seen, kept, bits
            dist.barrier()
    return out


def sharded(rank: int, world: int, scaled: bool, replicas: bool) -> tuple[Any, Any, Callable[[dict[str, torch.Tensor], float], None]]:
    """Returns a model under fully_shard, its state, and a backward pass with given gradients and scale."""

    class Scaler:
        value = 1.0

        def get_scale(self) -> float:
            return self.value

    scaler = Scaler()
    model = Weighted({name: torch.zeros(shape) for name, shape in SHAPES.items()})
    if replicas:
        mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("replicas", "shards"))
        fully_shard(model, mesh=mesh["shards"])
        keywords: dict[str, Any] = {"replicas": mesh["replicas"].get_group()}
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        keywords = {}
    state = gcodec.torch.Sharded(model, gcodec.TopK(density=0.1), scaler=scaler if scaled else None, **keywords)

    def backward(given: dict[str, torch.Tensor], scale: float = 1.0) -> None:
        scaler.value = scale
        model.zero_grad()
        (model(given) * scale).backward()

    return model, state, backward


def kept_by(state: Any) -> dict[str, torch.Tensor]:
    return {key: x.clone() for key, x in state.state_dict().items() if not key.endswith("step")}


def scales(rank: int, world: int, replicas: bool) -> float:
    """The part of the gradient that is neither applied nor kept, under a scale of the loss that changes."""
    model, state, backward = sharded(rank, world, True, replicas)
    total = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    applied = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step, scale in enumerate((4096.0, 4096.0, 2.0, 65536.0, 0.5)):
        backward(gradients(rank, step, SHAPES, torch.float32), scale)
        for name, p in model.named_parameters():
            total[name] += sum(gradients(r, step, SHAPES, torch.float32)[name] for r in range(world)) / world
            applied[name] += p.grad.full_tensor() / scale
    missing = squares = 0.0
    for name, whole in total.items():
        rest = torch.zeros_like(whole)
        for key, kept in kept_by(state).items():
            if key.endswith(f".{name}"):
                to = 0 if replicas else int(key.split(".")[1].removeprefix("to"))
                rows = -(-whole.shape[0] // (1 if replicas else world))
                rest[to * rows : to * rows + kept.shape[0]] += kept
        dist.all_reduce(rest)
        missing += float((whole - applied[name] - rest / world).square().sum())
        squares += float(whole.square().sum())
    return (missing / squares) ** 0.5


def one_shard(rank: int, world: int) -> dict[str, Any]:
    """A sum that overflows in one rank's shard only; then an error of rank 1 after the exchange."""
    model, state, backward = sharded(rank, world, False, False)
    backward(gradients(rank, 0, SHAPES, torch.float32))
    before = kept_by(state)
    huge = gradients(rank, 1, SHAPES, torch.float32)
    huge["w"][0] = 3e38
    backward(huge)
    grads = [p.grad.to_local() for p in model.parameters() if isinstance(p.grad, DTensor)]
    out = {"nan": all(bool(g.isnan().all()) for g in grads), "kept": same(before, kept_by(state)), "skipped": state.profile.skipped}
    if rank == 1:
        state.options = replace(state.options, limits=TIGHT)
    out["late"] = said(lambda: backward(gradients(rank, 2, SHAPES, torch.float32)))
    out["kept"] = out["kept"] and same(before, kept_by(state))
    state.options = replace(state.options, limits=None)
    backward(gradients(rank, 3, SHAPES, torch.float32))
    out["exchanges"] = state.profile.exchanges
    out["then"] = not same(before, kept_by(state))
    return out


def complex_shards(rank: int, world: int) -> dict[str, float]:
    """Complex parameters under fully_shard: the largest error of lossless means."""
    shapes = {"w": (6, 4), "v": (5,)}
    model = Weighted({name: torch.zeros(shape, dtype=torch.complex64) for name, shape in shapes.items()})
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    gcodec.torch.Sharded(model, "lossless")
    model(gradients(rank, 0, shapes, torch.complex64)).backward()
    expected = {name: sum(gradients(r, 0, shapes, torch.complex64)[name] for r in range(world)) / world for name in shapes}
    return {name: float((p.grad.full_tensor() - expected[name]).abs().max()) for name, p in model.named_parameters()}


def meetings(rank: int, world: int) -> dict[str, str]:
    """Limits or scalers that differ; and a rank without a hook, last: its messages stay in the group."""
    out = {}
    shapes = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    given = gradients(rank, 0, SHAPES, torch.float32)
    limits = TIGHT if rank == 1 else None
    average = gcodec.torch.Average(Weighted(shapes), "topk", limits=limits)
    out["Average"] = said(lambda: average({name: g.clone() for name, g in given.items()}))
    model = Weighted(shapes)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    gcodec.torch.Sharded(model, "topk", limits=limits)
    out["Sharded"] = said(lambda: model(given).backward())
    for enabled in (True, False):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled) if rank == 1 else None
        average = gcodec.torch.Average(Weighted(shapes), "topk", scaler=scaler)
        out[f"Average, {enabled}"] = said(lambda average=average: average({name: g.clone() for name, g in given.items()}))
        ddp, state = hooked(Weighted(shapes), "topk")
        state.scaler = scaler
        out[f"State, {enabled}"] = said(lambda ddp=ddp: ddp(given).backward())
        model = Weighted(shapes)
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        gcodec.torch.Sharded(model, "topk", scaler=scaler)
        out[f"Sharded, {enabled}"] = said(lambda model=model: model(given).backward())
    # More rows than the group's timeout of half an hour would ever show.
    ranks_module._FIRST_WAIT = timedelta(seconds=2)
    if rank == 0:
        out["alone"] = said(lambda: gcodec.torch.Average(Weighted(shapes), "topk")({name: g.clone() for name, g in given.items()}))
    return out
