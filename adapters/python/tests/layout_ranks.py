"""The ranks of test_layouts.py: parameters that are complex, or that are not row-major."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.torch

SHAPES = {"kernel": (6, 4, 3, 3), "volume": (2, 3, 2, 2, 2), "matrix": (16, 12), "columns": (5, 7), "bias": (9,)}

# Each has the elements of a row-major tensor in another order in memory, or with gaps.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "kernel": lambda x: x.to(memory_format=torch.channels_last),
    "volume": lambda x: x.to(memory_format=torch.channels_last_3d),
    "matrix": lambda x: x.t().contiguous().t(),
    "columns": lambda x: torch.zeros(5, 21)[:, ::3].copy_(x),
    "bias": lambda x: x.clone(),
}

CODECS: dict[str, Callable[[], Any]] = {
    "topk": lambda: gcodec.TopK(density=0.1),
    "global": lambda: gcodec.TopK(density=0.1, scope="global"),
    "powersgd": lambda: gcodec.PowerSgd(rank=1),
    "scalecom": lambda: gcodec.torch.ScaleCom(density=0.1),
    "shared set": lambda: gcodec.torch.SharedSet(density=0.1),
    "dgc": lambda: gcodec.Dgc(0.1, momentum=0.0),
}


class Weighted(torch.nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, one in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(one))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        terms = [(p * gradients[name].conj()).sum() for name, p in self.named_parameters()]
        return sum(term.real if term.is_complex() else term for term in terms)  # type: ignore[return-value]


def gradients(rank: int, step: int, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}


def hooked(model: torch.nn.Module, codec: Any, **settings: Any) -> tuple[DistributedDataParallel, gcodec.torch.State]:
    ddp, state = DistributedDataParallel(model, **settings), gcodec.torch.State(model, codec)
    ddp.register_comm_hook(state, gcodec.torch.hook)
    return ddp, state


def residuals(state: Any) -> dict[str, torch.Tensor]:
    saved = state.state_dict()
    saved = saved.get("exchange", saved)
    kept = saved.get("feedback") or saved.get("scalecom") or saved.get("sets") or saved.get("dgc", {}).get("tensors", {})
    return {name: x for name, x in kept.items() if "#" not in name}


def layouts(rank: int, world: int) -> dict[str, Any]:
    """Names of tensors that a model in other memory formats has otherwise than one in row-major order: means
    and residuals, in three steps, and in two more with the residuals of the other one."""
    out = {}
    for codec, make in CODECS.items():
        for views in (False, True):
            start = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
            models = [Weighted(start), Weighted({name: LAYOUTS[name](x) for name, x in start.items()})]
            assert not models[1].kernel.is_contiguous() and not models[1].columns.is_contiguous()
            runs = [hooked(model, make(), gradient_as_bucket_view=views) for model in models]
            wrong = []
            for step in range(5):
                if step == 3:
                    one, other = (state.state_dict() for _, state in runs)
                    runs[0][1].load_state_dict(other), runs[1][1].load_state_dict(one)
                given = gradients(rank, step, SHAPES, torch.float32)
                for ddp, _ in runs:
                    ddp.zero_grad()
                    ddp(given).backward()
                ours, theirs = (dict(model.named_parameters()) for model in models)
                wrong += [f"{name} in step {step}" for name in SHAPES if not torch.equal(ours[name].grad, theirs[name].grad)]
                ours, theirs = (residuals(state) for _, state in runs)
                wrong += [f"residual of {name} in step {step}" for name in ours if not torch.equal(ours[name], theirs[name])]
            out[f"{codec}, views {views}"] = wrong
    return out


def rank_one(rank: int, world: int) -> float:
    """Error of a matrix codec on a transposed parameter, whose gradient has the rank of the codec."""
    generator = torch.Generator().manual_seed(1)
    target = torch.outer(torch.randn(16, generator=generator), torch.randn(72, generator=generator))
    model = Weighted({"w": torch.zeros(72, 16).t()})
    ddp, _ = hooked(model, gcodec.PowerSgd(rank=1))
    for _ in range(2):
        ddp.zero_grad()
        ddp({"w": target}).backward()
    return float((model.w.grad - target).norm() / target.norm())


def changed(rank: int, world: int) -> dict[str, str]:
    """Memory formats that change before the first step, and after it."""
    out = {}
    shapes = {"w": (4, 3, 2, 2), "v": (2, 3, 2, 2)}
    for case in ("state first", "format after", "later"):
        model = Weighted({name: torch.zeros(shape) for name, shape in shapes.items()})
        if case == "state first":
            state = gcodec.torch.State(model, "raw")
            model.to(memory_format=torch.channels_last)
            ddp = DistributedDataParallel(model)
            ddp.register_comm_hook(state, gcodec.torch.hook)
        else:
            ddp, _ = hooked(model, "raw")
            if case == "format after":
                model.to(memory_format=torch.channels_last)
        said = ""
        for step in range(4):
            if step == 2 and case == "later":
                model.to(memory_format=torch.channels_last)
            given = [gradients(r, step, shapes, torch.float32) for r in range(world)]
            # One rank alone sees the change in this step: another has zeros.
            for name in shapes:
                given[0][name] *= step != 2
            model.zero_grad()
            try:
                ddp(given[rank]).backward()
            except gcodec.InputError as e:
                said = str(e)
                break
            for name, p in model.named_parameters():
                assert torch.allclose(p.grad, sum(one[name] for one in given) / world), (case, name, step)
        out[case] = said
        dist.barrier()
    return out


def complexes(rank: int, world: int) -> dict[str, Any]:
    """Complex parameters beside real ones: the relative error of means and residuals, and whether ranks have
    the same bits."""
    out: dict[str, Any] = {}
    kinds = {"a": torch.complex64, "b": torch.float32, "c": torch.complex128, "d": torch.complex64}
    shapes = {"a": (8, 6), "b": (5, 4), "c": (7,), "d": (3, 2, 2, 2)}

    def given(rank: int, step: int) -> dict[str, torch.Tensor]:
        drawn = gradients(rank, step, shapes, torch.complex128)
        return {name: (x if kinds[name].is_complex else x.real).to(kinds[name]) for name, x in drawn.items()}

    def fresh() -> Weighted:
        start = {name: torch.zeros(shapes[name], dtype=kind) for name, kind in kinds.items()}
        return Weighted(start | {"a": start["a"].t().contiguous().t(), "d": start["d"].to(memory_format=torch.channels_last)})

    for codec, make in {"raw": lambda: "raw", **CODECS}.items():
        # Deep Gradient Compression takes f32 only.
        kinds["c"] = torch.complex64 if codec == "dgc" else torch.complex128
        for way in ("State", "views", "Average", "given", "DiLoCo"):
            model = fresh()
            exchange: Any = None
            call: Callable[[dict[str, torch.Tensor]], Any] = lambda g, model=model: model(g).backward()  # noqa: E731
            if way in ("State", "views"):
                ddp, exchange = hooked(model, make(), gradient_as_bucket_view=way == "views", bucket_cap_mb=1e-4)
                call = lambda g, ddp=ddp: ddp(g).backward()  # noqa: E731
            elif way == "DiLoCo":
                exchange = gcodec.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1.0), make(), every=1)
            else:
                exchange = gcodec.torch.Average(model, make())
            total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            applied = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            for step in range(4):
                mine = given(rank, step)
                for name in total:
                    total[name] += sum(given(r, step)[name] for r in range(world)) / world
                model.zero_grad()
                if way == "given":
                    # Conjugates that are lazy, and changed in place.
                    lazy = {name: x.conj().resolve_conj().conj() for name, x in mine.items()}
                    exchange(lazy)
                    got = lazy
                elif way == "DiLoCo":
                    with torch.no_grad():
                        before = {name: p.clone() for name, p in model.named_parameters()}
                        for name, p in model.named_parameters():
                            p -= mine[name]
                        exchange.step()
                        got = {name: before[name] - p for name, p in model.named_parameters()}
                else:
                    call(mine)
                    if way == "Average":
                        exchange()
                    got = {name: p.grad for name, p in model.named_parameters()}
                for name in applied:
                    applied[name] += got[name]
            kept = residuals(exchange)
            missing = squares = 0.0
            for name, whole in total.items():
                rest = kept.get(name)
                rest = torch.zeros_like(whole) if rest is None else torch.view_as_complex(rest) if whole.is_complex() else rest
                mean = rest.to(torch.complex128)
                dist.all_reduce(mean)
                missing += float((whole - applied[name] - mean / world).abs().square().sum())
                squares += float(whole.abs().square().sum())
            out[f"{codec}, {way}"] = (missing / squares) ** 0.5, {name: torch.view_as_real(x.to(torch.complex128)).tolist() for name, x in applied.items()}
    return out

