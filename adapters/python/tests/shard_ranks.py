"""The ranks of test_fsdp.py. Spawned processes import this module."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import gcodec
import gcodec.torch

TOPK = gcodec.TopK(density=0.2)


def model(mesh: DeviceMesh, *, sharded: bool = True) -> torch.nn.Sequential:
    """Rows that 2 and 4 ranks do not divide, a module with two layers, and parameters of the root."""
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(13, 13), torch.nn.Tanh(), torch.nn.Linear(13, 13))
    made = torch.nn.Sequential(torch.nn.Linear(10, 13), torch.nn.Tanh(), inner, torch.nn.Linear(13, 3))
    if sharded:
        fully_shard(inner, mesh=mesh)
        fully_shard(made, mesh=mesh)
    return made


def loss_of(made: torch.nn.Module, seed: int) -> torch.Tensor:
    inputs = torch.randn(32, 10, generator=torch.Generator().manual_seed(seed))
    return (made(inputs) - inputs[:, :3].cumsum(1)).square().mean()


def backward(made: torch.nn.Module, seed: int, poison: bool = False) -> None:
    made.zero_grad()
    loss = loss_of(made, seed)
    (loss * torch.nan if poison else loss).backward()


def gradients(made: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad.clone() for n, p in made.named_parameters()}


def fingerprint(made: torch.nn.Module) -> str:
    whole = [p.full_tensor().detach().contiguous().view(torch.uint8).numpy().tobytes() for p in made.parameters()]
    return hashlib.sha256(b"".join(whole)).hexdigest()


def train(made: torch.nn.Module, steps: int, seed: int) -> float:
    """Trains, and returns the loss on other data."""
    optimizer = torch.optim.Adam(made.parameters(), lr=0.03)
    for step in range(steps):
        backward(made, seed + step * 64)
        optimizer.step()
    with torch.no_grad():
        loss = loss_of(made, 10_000).item()
    for module in made.modules():
        if isinstance(module, FSDPModule):
            # Only a backward pass does that for the root.
            module.reshard()
    return loss


def residuals(state: Any) -> dict[str, torch.Tensor]:
    """The residuals of all ranks, summed into tensors of the parameters' shapes."""
    return {key: x.clone() for key, x in state.state_dict().items() if not key.endswith("step")}


def two(rank: int, world: int, folder: str) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (world,))
    out: dict[str, Any] = {}

    # Lossless: the gradients of uncompressed FSDP.
    plain, exact = model(mesh), model(mesh)
    gcodec.torch.Sharded(exact, "lossless")
    for one in (plain, exact):
        backward(one, 1 + rank)
    expected, found = gradients(plain), gradients(exact)
    out["exact"] = all(torch.equal(expected[n], found[n]) for n in expected)

    # What is not sent stays: mean x ranks + residuals of all ranks = sum of the gradients.
    made = model(mesh)
    state = gcodec.torch.Sharded(made, TOPK, rules={"*.bias": "lossless"})
    backward(made, 1 + rank)
    got = gradients(made)
    kept = residuals(state)
    right = True
    for name, whole in expected.items():
        total = got[name] * world
        rows = -(-whole.shape[0] // world)
        for to in range(world):
            key = next(k for k in kept if k.endswith(f"to{to}.{name}"))
            sum_of = kept[key].clone()
            dist.all_reduce(sum_of)
            total[to * rows : to * rows + sum_of.shape[0]] += sum_of
        right = right and torch.allclose(total, whole * world, atol=1e-5)
        if name.endswith("bias"):
            right = right and torch.equal(got[name], whole)
    out["nothing is lost"] = right and any(x.any() for x in kept.values())

    # A NaN of rank 1 reaches everyone, and no residual leaves.
    backward(made, 7 + rank, poison=rank == 1)
    after = residuals(state)
    out["nan"] = all(g.isnan().all() for g in gradients(made).values())
    out["kept"] = all(torch.equal(kept[key], after[key]) for key in kept)

    # It trains, and goes on from a checkpoint with the same bits.
    out["losses"] = train(made, 0, rank), train(made, 25, rank)
    out["same"] = fingerprint(made)
    place = str(Path(folder) / "checkpoint")
    dcp.save({"model": made.state_dict(), "gcodec": state}, checkpoint_id=place)
    train(made, 3, 1000 + rank)
    again = model(mesh)
    loaded = gcodec.torch.Sharded(again, TOPK, rules={"*.bias": "lossless"})
    into = again.state_dict()
    dcp.load({"model": into, "gcodec": loaded}, checkpoint_id=place)
    again.load_state_dict(into)
    train(again, 3, 1000 + rank)
    out["restored"] = fingerprint(again) == fingerprint(made)
    out["refused"] = refusal(lambda: loaded.load_state_dict({k.replace("rank", "sank"): x for k, x in state.state_dict().items()}))

    # Errors of one rank, and settings that differ.
    strict = model(mesh)
    gcodec.torch.Sharded(strict, TOPK, non_finite="reject")
    out["reject"] = refusal(lambda: backward(strict, 1, poison=rank == 1))
    odd = model(mesh)
    gcodec.torch.Sharded(odd, TOPK if rank else "sign")
    out["odd"] = refusal(lambda: backward(odd, 1))
    out["rule"] = refusal(lambda: gcodec.torch.Sharded(model(mesh), TOPK, rules={"*.wait": "raw"}))
    out["plain"] = refusal(lambda: gcodec.torch.Sharded(model(mesh, sharded=False), TOPK))
    out["dtensor"] = dtensors(mesh, rank)
    return out


def refusal(call: Any) -> str:
    try:
        call()
    except gcodec.InputError as e:
        return str(e)
    return "accepted"


def dtensors(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """`encode` and `decode` of this rank's parts."""
    whole = torch.arange(35.0).reshape(5, 7)
    tree = {"rows": distribute_tensor(whole, mesh, [Shard(0)]), "columns": distribute_tensor(whole, mesh, [Shard(1)]), "all": whole}
    data = gcodec.encode(tree, "lossless")
    back = gcodec.decode(data, like=tree)
    new = {n: t + 1 for n, t in tree.items()}
    delta = gcodec.encode(new, "delta", base=tree)
    other = {"rows": distribute_tensor(whole[:4], mesh, [Shard(0)])}
    moved = tree | {"rows": distribute_tensor(whole.T.contiguous(), mesh, [Shard(0)])}
    partial = DTensor.from_local(whole, mesh, [Partial()])
    return {
        "places": {n: (s.global_shape, s.offsets) for n, s in gcodec.shards(data).items()},
        "back": all(torch.equal(back[n].full_tensor() if n != "all" else back[n], whole) for n in tree),
        "delta": torch.equal(gcodec.decode(delta, base=tree, like=tree)["columns"].full_tensor(), whole + 1),
        "moved": refusal(lambda: gcodec.decode(data, like=moved)),
        "other": refusal(lambda: gcodec.decode(data, like=other)),
        "partial": refusal(lambda: gcodec.encode({"w": partial}, "raw")),
    }


def four(rank: int, world: int) -> dict[str, Any]:
    """Hybrid: two replicas of two shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    out: dict[str, Any] = {}
    plain = model(mesh)
    backward(plain, 1 + rank)
    expected = gradients(plain)
    for name, replicas in (("shards", None), ("replicas", mesh["replicas"].get_group())):
        place = mesh if replicas is None else mesh["shards"]
        exact = model(place)
        gcodec.torch.Sharded(exact, "lossless", replicas=replicas)
        backward(exact, 1 + rank)
        found = gradients(exact)
        made = model(place)
        state = gcodec.torch.Sharded(made, TOPK, replicas=replicas, rules={"*.bias": "lossless"})
        losses = train(made, 0, rank), train(made, 12, rank)
        before = residuals(state)
        backward(made, 1, poison=rank == 2)
        after = residuals(state)
        poisoned = gradients(made)
        out[name] = {
            "exact": max(float((found[n] - expected[n]).abs().max()) for n in expected),
            "losses": losses,
            "same": fingerprint(made),
            "nan": any(g.isnan().any() for g in poisoned.values()),
            "kept": [key for key in before if not torch.equal(before[key], after[key])],
            "residuals": sum(int(x.count_nonzero()) for x in before.values()),
            "sent": state.profile.sent,
        }
    out["diloco"] = diloco(mesh)
    return out


def diloco(mesh: DeviceMesh) -> dict[str, Any]:
    """Local steps of two replicas, each of which is divided among two ranks. Lossless, so that the result is
    that of whole replicas whose changes are averaged; then with top-k."""
    replica = mesh["replicas"].get_local_rank()

    def trained(made: torch.nn.Module, steps: int) -> torch.optim.Optimizer:
        inner = torch.optim.SGD(made.parameters(), lr=0.05, momentum=0.9)
        for step in range(steps):
            backward(made, 1 + 64 * step + replica)
            inner.step()
        return inner

    def exchanged(codec: Any, **options: Any) -> torch.nn.Module:
        made = model(mesh["shards"])
        outer = torch.optim.SGD(made.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        group = mesh["replicas"].get_group()
        exchange = gcodec.torch.DiLoCo(made, outer, codec, every=5, group=group, **options)
        inner = trained(made, 5)
        for _ in range(5):
            exchange.step()
        del inner
        return made

    found = exchanged("lossless")
    whole = model(mesh, sharded=False)
    start = [p.detach().clone() for p in whole.parameters()]
    trained(whole, 5)
    for p, first in zip(whole.parameters(), start, strict=True):
        dist.all_reduce(mean := p.detach() - first)
        # Each replica is there twice. Nesterov's first step is 1.9 times the mean.
        p.data = first + 0.7 * 1.9 * mean / 4
    pairs = zip(found.parameters(), whole.parameters(), strict=True)
    made = model(mesh["shards"])
    everyone = gcodec.torch.DiLoCo(made, torch.optim.SGD(made.parameters()), "raw", every=1)
    return {
        "exact": max(float((p.full_tensor() - q).abs().max()) for p, q in pairs),
        "same": fingerprint(exchanged("topk:density=0.2")),
        "refused": refusal(everyone.step),
    }
