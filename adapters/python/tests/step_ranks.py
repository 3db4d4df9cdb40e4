"""The ranks of test_steps.py: single steps of DistributedDataParallel that go another way than usual."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from digits import digits
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import batches, bits, loss, network

import gcodec
import gcodec.torch

# Megabytes of buckets that hold one tensor each, from the second step on.
ONE_TENSOR = 1e-4

SENDERS: dict[str, Callable[[int], Any]] = {
    "topk": lambda world: gcodec.TopK(density=0.05),
    "global": lambda world: gcodec.TopK(density=0.05, scope="global"),
    "scalecom": lambda world: gcodec.torch.ScaleCom(density=0.05),
    "dgc": lambda world: gcodec.Dgc(0.05, momentum=0.0),
    "powersgd": lambda world: gcodec.PowerSgd(rank=1),
    "shared set": lambda world: gcodec.torch.SharedSet(density=0.05),
    "lgc": lambda world: gcodec.torch.Lgc(density=0.05, full_steps=4, top_k_steps=8, iterations=20, width=4),
}


class Branches(torch.nn.Module):
    """A layer, and one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(64, 24)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(24, 10) for _ in range(2)])
        self.use = 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.branches[self.use](torch.relu(self.first(pixels)))


def backward(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> None:
    torch.nn.functional.cross_entropy(model(pixels), labels).backward()


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the gradients in f64, zero where there is none, and drops them."""
    out = {}
    for name, p in model.named_parameters():
        out[name] = torch.zeros_like(p, dtype=torch.float64) if p.grad is None else p.grad.double()
        p.grad = None
    return out


def all_residuals(state: gcodec.torch.State | gcodec.torch.Average) -> dict[str, torch.Tensor]:
    saved = state.state_dict()
    kept = saved.get("feedback", {}) | saved.get("scalecom", {}) | saved.get("sets", {})
    kept |= saved.get("dgc", {"tensors": {}})["tensors"]
    return {name: tensor.double() for name, tensor in kept.items() if "#" not in name}


class Books:
    """What a rank put in, what came out, and what is left: means over ranks must agree."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.alone = copy.deepcopy(model)
        self.given = self.applied = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in model.named_parameters()}

    def give(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        backward(self.alone, pixels, labels)
        self.given = {n: t + self.given[n] for n, t in gradients(self.alone).items()}

    def take(self, got: dict[str, torch.Tensor]) -> None:
        self.applied = {n: t + got[n] for n, t in self.applied.items()}

    def lost(self, state: gcodec.torch.State | gcodec.torch.Average) -> float:
        """Returns the part of the gradient that is neither applied nor kept: a ratio of norms."""
        kept, squares, missing = all_residuals(state), 0.0, 0.0
        for name, given in self.given.items():
            mean = torch.stack([given, kept.get(name, torch.zeros_like(given))])
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            squares += float((mean[0] ** 2).sum())
            missing += float(((mean[0] - mean[1] - self.applied[name]) ** 2).sum())
        return (missing / squares) ** 0.5


def branches(rank: int, world: int) -> dict[str, Any]:
    """Uses the branches in turn: on all ranks the same one, or each rank another."""
    out = {}
    for name, make in SENDERS.items():
        for way in ("together", "apart"):
            model = Branches()
            ddp = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=ONE_TENSOR)
            state = gcodec.torch.State(model, make(world))
            ddp.register_comm_hook(state, gcodec.torch.hook)
            books = Books(model)
            for step, (pixels, labels) in enumerate(batches(1, rank, world, 24)):
                # Three steps in a row, so that every rank of ScaleCom leads with each branch.
                model.use = books.alone.use = (step // 3 + (rank if way == "apart" else 0)) % 2
                books.give(pixels, labels)
                backward(ddp, pixels, labels)
                books.take(gradients(model))
            out[f"{name} {way}"] = books.lost(state)
            dist.barrier()
            del ddp
    return out


def averaged(rank: int, world: int) -> dict[str, float]:
    """Trains without DistributedDataParallel, each rank with another branch. Returns what is lost."""
    out = {}
    for name, make in SENDERS.items():
        model = Branches()
        average, books = gcodec.torch.Average(model, make(world)), Books(model)
        for step, (pixels, labels) in enumerate(batches(1, rank, world, 24)):
            model.use = books.alone.use = (step // 3 + rank) % 2
            books.give(pixels, labels)
            backward(model, pixels, labels)
            if step % 2 == 0:
                average()
                books.take(gradients(model))
            else:
                mine = {name: gradient.float() for name, gradient in reversed(gradients(model).items())}
                average(mine)
                books.take({name: gradient.double() for name, gradient in mine.items()})
        out[name] = books.lost(average)
    return out


def wrong_averages(rank: int, world: int) -> dict[str, str]:
    """Gives gradients of one rank that do not fit. Training goes on afterwards."""
    model, out = network(0), {}
    average = gcodec.torch.Average(model, "topk:density=0.05")
    fitting = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    wrong = {
        "missing": {name: fitting[name] for name in fitting if name != "0.bias"},
        "shape": {**fitting, "0.bias": torch.ones(3)},
        "sparse": {**fitting, "0.bias": torch.ones(48).to_sparse()},
    }
    for what, gradients in wrong.items():
        try:
            average(gradients if rank == 1 else {name: gradient.clone() for name, gradient in fitting.items()})
        except gcodec.InputError as e:
            out[what] = str(e)
    average(fitting)
    out["then"] = str(sum(float(gradient.sum()) for gradient in fitting.values()))
    return out


def snapshot(state: gcodec.torch.State) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in all_residuals(state).items()}


PROPAGATE: dict[str, dict[str, Any]] = {
    **{name: {} for name in SENDERS},
    "raw": {},
    "lossless": {"rules": {"2.*": "lossless"}},
}


def not_finite(rank: int, world: int) -> dict[str, Any]:
    """One rank has a gradient that is not finite in the second step of four."""
    out: dict[str, Any] = {}
    for name, keywords in PROPAGATE.items():
        model = network(0)
        ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_TENSOR)
        codec = SENDERS[name](world) if name in SENDERS else "raw" if name == "raw" else "topk:density=0.05"
        state = gcodec.torch.State(model, codec, **keywords)
        ddp.register_comm_hook(state, gcodec.torch.hook)
        books, seen = Books(model), []
        for step, (pixels, labels) in enumerate(batches(0, rank, world, 4)):
            before = snapshot(state)
            if step == 1:
                # Or only a lossless gradient, which the codec lets through.
                broken = model[2 if name == "lossless" else 0].bias
                handle = broken.register_hook(lambda g: g * (float("nan") if rank == 1 else 1.0))
                backward(ddp, pixels, labels)
                handle.remove()
                seen.append(all(bool(g.isnan().all()) for g in gradients(model).values()))
                seen.append(snapshot(state) == before)
                continue
            books.give(pixels, labels)
            backward(ddp, pixels, labels)
            books.take(gradients(model))
        out[name] = {"seen": seen, "lost": books.lost(state), "skipped": state.profile.skipped, "bits": bits(model)}
        dist.barrier()
        del ddp
    return out


def rejected(rank: int, world: int) -> dict[str, Any]:
    """All ranks raise in one step, and train on."""
    model = network(0)
    ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_TENSOR)
    state = gcodec.torch.State(model, "topk:density=0.05", non_finite="reject")
    ddp.register_comm_hook(state, gcodec.torch.hook)
    books, said = Books(model), []
    for step, (pixels, labels) in enumerate(batches(0, rank, world, 6)):
        before = snapshot(state)
        if step in (1, 2):
            if rank == 1:
                pixels[0, 0] = float("nan")
            try:
                backward(ddp, pixels, labels)
            except gcodec.InputError as e:
                said.append(str(e))
            gradients(model)
            assert snapshot(state) == before
            continue
        books.give(pixels, labels)
        backward(ddp, pixels, labels)
        books.take(gradients(model))
    out = {"said": said, "lost": books.lost(state), "exchanges": state.profile.exchanges}
    dist.barrier()
    del ddp
    return out


def halves(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(pixels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(pixels)

    return forward


def trained(rank: int, world: int, hooked: bool, steps: int) -> dict[str, Any]:
    """Trains in f16 with a scale of the loss that overflows at first, and again and again."""
    model = network(3)
    ddp = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=40)
    state = gcodec.torch.State(model, gcodec.TopK(density=0.05), scaler=scaler) if hooked else None
    if state is not None:
        ddp.register_comm_hook(state, gcodec.torch.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    falls, scales = 0, [scaler.get_scale()]
    for pixels, labels in batches(4, rank, world, steps):
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(halves(ddp)(pixels), labels)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        falls += scaler.get_scale() < scales[-1]
        scales.append(scaler.get_scale())
    skipped = state.profile.skipped if state is not None else falls
    out = {"loss": loss(model), "bits": bits(model), "falls": falls, "skipped": skipped, "scale": scales[-1]}
    dist.barrier()
    del ddp
    return out


def scaled(rank: int, world: int, steps: int) -> dict[str, Any]:
    out: dict[str, Any] = {"plain": trained(rank, world, False, steps), "topk": trained(rank, world, True, steps)}
    # The scale doubles after every step: residuals must not be doubled with it.
    for name in ("topk", "scalecom"):
        model = network(0)
        ddp = DistributedDataParallel(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        state = gcodec.torch.State(model, SENDERS[name](world), scaler=scaler)
        ddp.register_comm_hook(state, gcodec.torch.hook)
        optimizer, books = torch.optim.SGD(model.parameters(), lr=0.0), Books(model)
        for pixels, labels in batches(0, rank, world, 8):
            books.give(pixels, labels)
            scaler.scale(torch.nn.functional.cross_entropy(ddp(pixels), labels)).backward()
            scaler.unscale_(optimizer)
            got = gradients(model)
            for n, p in model.named_parameters():
                p.grad = got[n].float()
            scaler.step(optimizer)
            scaler.update()
            gradients(model)
            books.take(got)
        assert scaler.get_scale() == 8.0 * 2**8
        out[f"lost by {name}"] = books.lost(state)
        dist.barrier()
        del ddp
    return out


def message(work: Callable[[], Any]) -> str:
    try:
        work()
    except gcodec.InputError as e:
        return str(e)
    return ""


def meetings(rank: int, world: int) -> dict[str, str]:
    """Ranks that do not fit together: each raises in its first step."""

    def states() -> Iterator[tuple[str, torch.nn.Module, gcodec.torch.State]]:
        odd = rank == world - 1
        model = network(0)
        yield "codec", model, gcodec.torch.State(model, "qsgd" if odd else "topk")
        model = network(0)
        yield "scalecom", model, gcodec.torch.State(model, gcodec.torch.ScaleCom() if odd else "topk")
        model = network(0)
        yield "rules", model, gcodec.torch.State(model, "topk", rules={"*.bias": "raw" if odd else "lossless"})
        model = network(0)
        yield "non_finite", model, gcodec.torch.State(model, "topk", non_finite="zero" if odd else "reject")
        model = network(0)
        state = gcodec.torch.State(model, "topk")
        if odd:
            state.load_state_dict({**state.state_dict(), "step": 7})
        yield "step", model, state
        model = network(0)
        if odd:
            model = torch.nn.Sequential(model[0], torch.nn.Tanh(), torch.nn.Identity(), model[2])
        yield "names", model, gcodec.torch.State(model, "topk")

    out = {}
    for what, model, state in states():
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, gcodec.torch.hook)
        [(pixels, labels)] = batches(0, rank, world, 1)
        out[what] = message(lambda ddp=ddp, pixels=pixels, labels=labels: backward(ddp, pixels, labels))
        dist.barrier()
        del ddp
    model = network(0, hidden=48 if rank else 32)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    diloco = gcodec.torch.DiLoCo(model, outer, "topk", every=1)
    out["shape"] = message(diloco.step)
    model = network(0).to(torch.bfloat16 if rank else torch.float32)
    diloco = gcodec.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1.0), "topk", every=1)
    out["dtype"] = message(diloco.step)
    return out


def mixed(rank: int, world: int) -> dict[str, Any]:
    """ScaleCom with gradients of two types; and a sparse gradient, which all ranks refuse."""

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.narrow = torch.nn.Linear(64, 24, dtype=torch.bfloat16)
            self.wide = torch.nn.Linear(24, 10)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.wide(torch.relu(self.narrow(pixels.bfloat16())).float())

    model = Mixed()
    ddp = DistributedDataParallel(model)
    state = gcodec.torch.State(model, gcodec.torch.ScaleCom(density=0.1))
    ddp.register_comm_hook(state, gcodec.torch.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    pixels, labels, _, _ = (torch.from_numpy(x) for x in digits())
    first = float(torch.nn.functional.cross_entropy(model(pixels), labels))
    for pixels_of, labels_of in batches(0, rank, world, 60):
        optimizer.zero_grad()
        backward(ddp, pixels_of, labels_of)
        optimizer.step()
    last = float(torch.nn.functional.cross_entropy(model(pixels), labels))
    data = b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())
    out: dict[str, Any] = {"first": first, "last": last, "bits": data}
    dist.barrier()
    del ddp
    words = torch.nn.Sequential(torch.nn.Embedding(20, 8, sparse=True), torch.nn.Linear(8, 3))
    ddp = DistributedDataParallel(words)
    state = gcodec.torch.State(words, "topk")
    ddp.register_comm_hook(state, gcodec.torch.hook)
    out["sparse"] = [message(lambda: ddp(torch.tensor([rank, 3])).sum().backward()) for _ in range(2)]
    dist.barrier()
    del ddp
    return out


SCHEDULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "dense first": (gcodec.torch.Schedule({0: "raw", 2: gcodec.TopK(density=0.2), 5: "topk:density=0.02"}), {}),
    "scalecom later": (gcodec.torch.Schedule({0: "topk:density=0.1", 3: gcodec.torch.ScaleCom(0.05)}), {}),
    "scalecom first": (gcodec.torch.Schedule({0: gcodec.torch.ScaleCom(0.1), 3: "sbc:density=0.05", 6: gcodec.torch.ScaleCom(0.02)}), {}),
    "chunks": (gcodec.torch.ScaleCom(chunk=50), {}),
    "rules": (gcodec.torch.ScaleCom(density=0.05), {"rules": {"*.bias": "topk:k=2"}}),
    "all ruled": (gcodec.torch.ScaleCom(density=0.05), {"rules": {"*": "topk:density=0.1"}}),
}


def scheduled(rank: int, world: int) -> dict[str, Any]:
    """Codecs that follow each other, and ScaleCom's other choices. Nothing is lost, and NaN changes
    nothing."""
    out: dict[str, Any] = {}
    for name, (codec, keywords) in SCHEDULES.items():
        model = network(0)
        ddp = DistributedDataParallel(model)
        state = gcodec.torch.State(model, codec, **keywords)
        ddp.register_comm_hook(state, gcodec.torch.hook)
        books, sent, kept = Books(model), [], []
        for step, (pixels, labels) in enumerate(batches(0, rank, world, 9)):
            before = state.profile.sent
            if step == 4:
                # In another process, with the state so far.
                state.load_state_dict(copy.deepcopy(state.state_dict()))
            if step == 7:
                there = {name: tensor.sum() for name, tensor in all_residuals(state).items()}
                handle = model[0].bias.register_hook(lambda g: g * (float("nan") if rank == 1 else 1.0))
                backward(ddp, pixels, labels)
                handle.remove()
                kept = [all(bool(g.isnan().all()) for g in gradients(model).values())]
                kept.append(all(bool(there[name] == tensor.sum()) for name, tensor in all_residuals(state).items()))
                continue
            books.give(pixels, labels)
            backward(ddp, pixels, labels)
            got = gradients(model)
            books.take(got)
            sent.append(state.profile.sent - before)
        out[name] = {"lost": books.lost(state), "sent": sent, "kept": kept, "names": sorted(all_residuals(state))}
        dist.barrier()
        del ddp
    return out


def masked(rank: int, world: int) -> dict[str, Any]:
    """Sparse Binary Compression with delay and momentum masking, as DiLoCo."""
    model = network(0)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    codec = gcodec.Sbc(density=0.05)
    diloco = gcodec.torch.DiLoCo(model, outer, codec, every=3, mask=inner)
    seen = []
    for pixels, labels in batches(2, rank, world, 9):
        inner.zero_grad()
        backward(model, pixels, labels)
        inner.step()
        before = {n: inner.state[p]["momentum_buffer"].clone() for n, p in model.named_parameters()}
        state = diloco.state_dict()
        kept = state["exchange"]["feedback"]
        wanted = {n: state["anchor"][n] - p.detach() + kept.get(n, 0) for n, p in model.named_parameters()}
        exchanged = diloco.step()
        left = diloco.state_dict()["exchange"]["feedback"]
        for n, p in model.named_parameters():
            sent = left[n] != wanted[n] if exchanged else torch.zeros_like(p, dtype=torch.bool)
            now = inner.state[p]["momentum_buffer"]
            seen.append(bool(torch.equal(now, torch.where(sent, 0, before[n]))) and bool(sent.any()) == exchanged)
    return {"seen": seen, "bits": bits(model), "exchanges": diloco.profile.exchanges}
