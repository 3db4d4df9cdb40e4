"""The ranks of test_torch.py. Spawned processes import this module."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import io
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from digits import digits
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.torch

# Importing PyTorch and FSDP2 takes seconds.
multiprocessing.set_forkserver_preload(["torch_ranks", "shard_ranks", "step_ranks"])


def entry(rank: int, world: int, folder: str, task: str, arguments: tuple[Any, ...]) -> None:
    """Runs one rank, with its result in a file. Exit codes are ignored, because a finished process may fail
    at exit."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        module, _, name = task.rpartition(":")
        work = getattr(importlib.import_module(module), name) if module else globals()[name]
        result = work(rank, world, *arguments)
        torch.save(result, Path(folder) / f"{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        (Path(folder) / f"{rank}.txt").write_text(traceback.format_exc())
        raise


def ranks(folder: Path, world: int, task: str, *arguments: Any) -> list[Any]:
    """Returns the results of `task`, a function here or a `module:function`, on each of `world` ranks.

    Processes are forked from one that has imported PyTorch and the modules of the ranks, once for all tests.
    If gloo could not connect them, they are started once more: no task had begun.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = torch.multiprocessing.start_processes(
        entry, args=(world, str(folder), task, arguments), nprocs=world, join=False, start_method="forkserver"
    )
    try:
        while not context.join(timeout=240):
            pass
    except Exception as e:
        missing = [rank for rank in range(world) if not (folder / f"{rank}.pt").exists()]
        reasons = "\n".join(file.read_text() for file in sorted(folder.glob("*.txt")))
        if len(missing) == world and "connectFullMesh failed" in reasons and folder.name != "again":
            return ranks(folder / "again", world, task, *arguments)
        if missing:
            raise AssertionError(f"ranks {missing} gave no result:\n{reasons}") from e
        print(f"a process failed at its exit, with its results there: {e}", file=sys.stderr)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def network(seed: int, hidden: int = 48) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))


def bits(model: torch.nn.Module) -> str:
    """Returns a digest of the parameters."""
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(data).hexdigest()


def batches(seed: int, rank: int, world: int, count: int, size: int = 32) -> Any:
    pixels, labels, _, _ = (torch.from_numpy(x) for x in digits())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        chosen = torch.randint(len(labels), (world, size), generator=generator)[rank]
        yield pixels[chosen], labels[chosen]


def loss(model: torch.nn.Module) -> float:
    """Returns the mean loss on all training digits."""
    pixels, labels, _, _ = (torch.from_numpy(x) for x in digits())
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(pixels), labels))


def train(
    rank: int, world: int, make: Callable[[torch.nn.Module], Any] | None, seed: int, steps: int, **ddp_settings: Any
) -> dict[str, Any]:
    """Trains with DistributedDataParallel. `make` returns the state of the hook; without it there is no
    hook."""
    model = network(seed)
    ddp = DistributedDataParallel(model, **ddp_settings)
    state = make(model) if make else None
    if state is not None:
        ddp.register_comm_hook(state, gcodec.torch.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for pixels, labels in batches(seed, rank, world, steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(pixels), labels).backward()
        optimizer.step()
    result = {"bits": bits(model), "loss": loss(model)}
    if state is not None:
        result["profile"] = vars(state.profile)
    dist.barrier()
    del ddp
    return result


CODECS: dict[str, Any] = {
    "topk": gcodec.TopK(density=0.05, values="bf16"),
    "raw": "raw",
    "sbc": gcodec.Sbc(density=0.05),
    "qsgd": "qsgd:bits=4,bucket=256",
    "randk": gcodec.RandK(density=0.1, scale="1"),
    "powersgd": gcodec.PowerSgd(rank=2),
    "demo": gcodec.Demo(chunk=16, kept=16),
    "scalecom": gcodec.torch.ScaleCom(density=0.05),
    "scalecom global": gcodec.torch.ScaleCom(k=200, scope="global", beta=0.5),
    "shared set": gcodec.torch.SharedSet(density=0.05),
    "shared set global": gcodec.torch.SharedSet(k=200, scope="global", values="sign", momentum=0.5),
    "lgc": gcodec.torch.Lgc(density=0.05, full_steps=1, top_k_steps=2, iterations=20, width=4),
    "global": gcodec.TopK(density=0.05, scope="global"),
    "rules": gcodec.TopK(density=0.05),
    "no feedback": gcodec.TopK(density=0.005),
}


SAVED: dict[str, Any] = {
    **CODECS,
    "dgc": gcodec.Dgc(0.05),
    # Of ten steps, seven are of the second phase.
    "lgc in training": gcodec.torch.Lgc(density=0.05, full_steps=2, top_k_steps=7, iterations=20, width=4),
}


def state_of(name: str, model: torch.nn.Module, **keywords: Any) -> gcodec.torch.State:
    rules = {"*.bias": "lossless"} if name == "rules" else None
    return gcodec.torch.State(model, CODECS[name], rules=rules, feedback=name != "no feedback", **keywords)


def every_codec(rank: int, world: int, seeds: int, steps: int) -> dict[str, Any]:
    out: dict[str, Any] = {"plain": [train(rank, world, None, seed, steps) for seed in range(seeds)]}
    for name in ("topk", "scalecom", "no feedback"):
        out[name] = [train(rank, world, lambda m, n=name: state_of(n, m), seed, steps) for seed in range(seeds)]
    for name in [name for name in CODECS if name not in out]:
        out[name] = [train(rank, world, lambda m, n=name: state_of(n, m), 0, 40)]
    dgc = lambda m: gcodec.torch.State(m, gcodec.Dgc(0.05, warm_up_steps=2, clip=5.0, workers=world))  # noqa: E731
    out["dgc"] = [train(rank, world, dgc, 0, 40)]
    return out


def buckets(rank: int, world: int) -> dict[str, Any]:
    """Trains with buckets of one tensor each, rebuilt after the first step, and with gradients as bucket
    views."""
    out: dict[str, Any] = {}
    for settings in ({}, {"bucket_cap_mb": 1e-4}, {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}):
        seen: set[int] = set()

        def make(model: torch.nn.Module, seen: set[int] = seen) -> gcodec.torch.State:
            state = state_of("topk", model)
            take = state._take
            state._take = lambda bucket: (seen.add(bucket.index()), take(bucket))[1]  # type: ignore[method-assign]
            return state

        out[str(settings)] = (train(rank, world, make, 3, 12, **settings)["bits"], len(seen))
    return out


def overlapped(rank: int, world: int) -> list[int]:
    """Waits in the middle of each backward pass, before the gradients of the first layer's weight are there,
    until the frames of all buckets so far have arrived. Returns the number of those buckets in each step."""
    model = network(0)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1e-4)
    state = state_of("topk", model)
    ddp.register_comm_hook(state, gcodec.torch.hook)
    arrived = []

    def wait(gradient: torch.Tensor) -> None:
        end = time.monotonic() + 20
        while not all(started.part.sending.work.is_completed() for started in state._parts) and time.monotonic() < end:
            time.sleep(0.01)
        arrived.append(sum(started.part.sending.work.is_completed() for started in state._parts))

    model[0].weight.register_hook(wait)
    for pixels, labels in batches(0, rank, world, 4):
        torch.nn.functional.cross_entropy(ddp(pixels), labels).backward()
    dist.barrier()
    return arrived


def checkpoint(rank: int, world: int, name: str, folder: str) -> tuple[str, str]:
    """Trains ten steps, and ten steps with a checkpoint of the model and the state after the fourth."""

    def run(model: torch.nn.Module, first: int, last: int, load: bool, save: bool) -> None:
        ddp = DistributedDataParallel(model)
        state = gcodec.torch.State(model, copy.deepcopy(SAVED[name]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        file = Path(folder) / f"checkpoint-{rank}.pt"
        if load:
            saved = torch.load(file, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            state.load_state_dict(saved["gcodec"])
        ddp.register_comm_hook(state, gcodec.torch.hook)
        for step, (pixels, labels) in enumerate(batches(5, rank, world, last)):
            if step < first:
                continue
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(pixels), labels).backward()
            optimizer.step()
        if save:
            own = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "gcodec": state.state_dict()}
            torch.save(own, file)
        dist.barrier()

    whole = network(1)
    run(whole, 0, 10, False, False)
    run(network(1), 0, 4, False, True)
    again = network(2)
    run(again, 4, 10, True, False)
    return bits(whole), bits(again)


def failures(rank: int, world: int, name: str) -> list[str]:
    """Gives rank 1 a gradient that is not finite: all ranks must raise, and none may wait."""
    model = network(0)
    ddp = DistributedDataParallel(model)
    state = state_of(name, model, non_finite="reject")
    ddp.register_comm_hook(state, gcodec.torch.hook)
    said = []
    for step, (pixels, labels) in enumerate(batches(0, rank, world, 3)):
        if rank == 1 and step == 1:
            pixels[0, 0] = float("nan")
        before = {n: t.numpy().tobytes() for n, t in state._exchange.state_dict().get("scalecom", {}).items()}
        try:
            torch.nn.functional.cross_entropy(ddp(pixels), labels).backward()
            said.append("")
        except Exception as e:
            said.append(f"{type(e).__name__}: {e}")
            after = {n: t.numpy().tobytes() for n, t in state._exchange.state_dict().get("scalecom", {}).items()}
            assert before == after
            break
    dist.barrier()
    del ddp
    return said


def diloco(rank: int, world: int, codec: str, rounds: int, every: int) -> dict[str, Any]:
    model = network(7)
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    low = gcodec.torch.DiLoCo(model, outer, codec, every=every)
    exchanged, between, saved = [], [], None
    for step, (pixels, labels) in enumerate(batches(7, rank, world, rounds * every)):
        inner.zero_grad()
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        inner.step()
        between.append(bits(model))
        if low.step():
            exchanged.append((step, bits(model)))
        if step == rounds * every // 2 + 1:
            # Another run continues from here.
            saved = copy.deepcopy(low.state_dict())
            twin = network(8)
            twin.load_state_dict(model.state_dict())
            twin_inner = torch.optim.AdamW(twin.parameters(), lr=3e-3)
            twin_inner.load_state_dict(copy.deepcopy(inner.state_dict()))
            twin_outer = torch.optim.SGD(twin.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            twin_outer.load_state_dict(copy.deepcopy(outer.state_dict()))
            twin_low = gcodec.torch.DiLoCo(twin, twin_outer, codec, every=every)
            twin_low.load_state_dict(saved)
        elif saved is not None:
            twin_inner.zero_grad()
            torch.nn.functional.cross_entropy(twin(pixels), labels).backward()
            twin_inner.step()
            twin_low.step()
    result = {"exchanged": exchanged, "between": between[1], "loss": loss(model), "profile": vars(low.profile)}
    return {**result, "bits": bits(model), "twin": bits(twin)}


def short(rank: int, world: int, name: str, steps: int, profile: int = 0) -> dict[str, Any]:
    return train(rank, world, lambda m: gcodec.torch.State(m, CODECS[name], profile=profile), 0, steps)


def printed(rank: int, world: int) -> str:
    """Returns what a training with a profile prints to the standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        short(rank, world, "topk", 8, profile=4)
    return text.getvalue()


def phases(rank: int, world: int) -> tuple[list[int], bytes, str]:
    """Returns the bytes that the learned codec sent in each step, its model, and the bits of the network."""
    model = network(0)
    ddp = DistributedDataParallel(model)
    codec = gcodec.torch.Lgc(density=0.2, full_steps=2, top_k_steps=3, iterations=20, width=4)
    state = gcodec.torch.State(model, codec)
    ddp.register_comm_hook(state, gcodec.torch.hook)
    sent = []
    for pixels, labels in batches(0, rank, world, 9):
        torch.nn.functional.cross_entropy(ddp(pixels), labels).backward()
        sent.append(state.profile.sent)
    learned = bytes(state.state_dict()["model"].tolist())
    dist.barrier()
    return [b - a for a, b in zip([0, *sent], sent, strict=False)], learned, bits(model)


def groups(rank: int, world: int) -> dict[str, list[str]]:
    """Runs four ranks, together and as two groups of two."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, out = pairs[rank // 2], {}
    for name in ("topk", "scalecom"):
        together = train(rank, world, lambda m, n=name: state_of(n, m), 0, 6)
        make = lambda m, n=name: gcodec.torch.State(m, CODECS[n], group=mine)  # noqa: E731
        out[name] = [together["bits"], train(rank, world, make, 0, 6, process_group=mine)["bits"]]
    return out


def saved_whole(rank: int, world: int, name: str, folder: str) -> list[str]:
    """Trains ten steps; and ten steps of which the last six use a copy, or a saved and loaded model.

    Copying and saving cover the whole of DistributedDataParallel, which holds the hook's state.
    """

    def run(ddp: DistributedDataParallel, first: int, last: int) -> str:
        for pixels, labels in list(batches(5, rank, world, last))[first:]:
            ddp.zero_grad()
            torch.nn.functional.cross_entropy(ddp(pixels), labels).backward()
            with torch.no_grad():
                for parameter in ddp.parameters():
                    parameter -= 0.1 * parameter.grad
        return bits(ddp.module)

    def start() -> DistributedDataParallel:
        ddp = DistributedDataParallel(network(1))
        state = gcodec.torch.State(ddp, gcodec.Dgc(0.05) if name == "dgc" else CODECS[name])
        ddp.register_comm_hook(state, gcodec.torch.hook)
        return ddp

    ends = [run(start(), 0, 10)]
    half = start()
    run(half, 0, 4)
    file = Path(folder) / f"whole-{rank}.pt"
    torch.save(half, file)
    for again in (copy.deepcopy(half), torch.load(file, weights_only=False)):
        [(hook, state)] = again._comm_hooks
        assert hook is gcodec.torch.hook and state.profile.exchanges == 4
        again.register_comm_hook(state, hook)
        ends.append(run(again, 4, 10))
    # The original of the copy has not changed.
    ends.append(run(half, 4, 10))
    model = network(1)
    diloco = gcodec.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), "topk", every=1)
    again = pickle.loads(pickle.dumps(diloco))
    diloco.step(), again.step()
    for parameter, other in zip(diloco._parameters.values(), again._parameters.values(), strict=True):
        assert torch.equal(parameter, other) and parameter is not other
    group = dist.new_group(list(range(world)))
    try:
        pickle.dumps(gcodec.torch.State(model, "topk", group=group))
    except TypeError as e:
        assert "state_dict()" in str(e)
    else:
        raise AssertionError("a process group was pickled")
    return ends


def refusals(rank: int, world: int) -> int:
    """Arguments that are rejected without a change of state."""
    model = network(0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    state = gcodec.torch.State(model, "topk")
    learned = gcodec.torch.State(model, gcodec.torch.Lgc(full_steps=2))
    wrong: list[Callable[[], Any]] = [
        lambda: gcodec.torch.State(model, "delta"),
        lambda: gcodec.torch.State(model, gcodec.torch.ScaleCom(), feedback=False),
        lambda: state.load_state_dict(gcodec.torch.State(model, gcodec.torch.ScaleCom()).state_dict()),
        # After the first steps of the training, its state is not empty.
        lambda: learned.load_state_dict({**learned.state_dict(), "step": 3}),
        lambda: gcodec.torch.DiLoCo(model, sgd, "topk", every=0),
        lambda: gcodec.torch.DiLoCo(network(1), sgd, "topk", every=1),
    ]
    refused = 0
    for call in wrong:
        try:
            call()
        except gcodec.InputError:
            refused += 1
    assert state.state_dict()["step"] == learned.state_dict()["step"] == 0
    return refused
