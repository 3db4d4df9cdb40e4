"""A trainer; a policy and generation workers that are driven as NeMo-RL drives a checkpoint engine.

The calls and their order are those of `CheckpointEngineWeightSynchronizer` and of the workers' mixins in
NeMo-RL at commit 7ea279a, without Ray and GPUs.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import torch

from gcodec import check

Weights = dict[str, torch.Tensor]

BACKEND = "gcodec.engines.nemo_rl:GcodecCheckpointEngine"


class Trainer:
    """A policy whose weights change in each step."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.weights = {f"layers.{n}.weight": torch.randn(40, 30, generator=draw).bfloat16() for n in range(4)}
        self.steps = 0

    def step(self) -> Weights:
        self.steps += 1
        for n, tensor in enumerate(self.weights.values()):
            tensor.view(-1)[self.steps + n :: 17] *= 1.25
        return self.weights

    def copy(self) -> Weights:
        return {name: x.clone() for name, x in self.weights.items()}


def same(one: Any, other: Any) -> bool:
    return check.digest(one).differences(check.digest(other)) == []


def created(store: str, **settings: Any) -> Any:
    """Makes an engine as NeMo-RL's factory does, from `refit_cfg`."""
    module, name = BACKEND.split(":", 1)
    return getattr(importlib.import_module(module), name)(bucket_size=1 << 12, store=store, **settings)


class Generation:
    """A generation worker with its weights."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.weights, self.loaded = engine, Weights(), list[str]()
        self.before: Callable[[], None] = lambda: None
        """Runs before weights are received."""
        self.fails_after: int | None = None
        """Number of tensors after which the next load fails."""

    async def update(self) -> bool:
        self.loaded = []
        self.before()
        async for batch in self.engine.receive_weight_batches():
            for name, tensor in batch:
                if self.fails_after == len(self.loaded):
                    self.fails_after = None
                    raise MemoryError("the loader has no memory")
                self.weights[name] = tensor.clone()
                self.loaded.append(name)
        return True


class Synchronizer:
    """Runs refits, one after another, also after one that failed."""

    def __init__(self, policies: list[Any], generations: list[Generation], weights: Callable[[], Weights]) -> None:
        self.policies, self.generations, self.weights = policies, generations, weights

    def sync_weights(self) -> None:
        """One refit with `release_after_refit`. RuntimeError if it failed anywhere."""
        metadata = [{**engine.prepare(), "rank": rank} for engines in (self.policies, [g.engine for g in self.generations]) for rank, engine in enumerate(engines)]
        sizes = {"train_world_size": len(self.policies), "rollout_world_size": len(self.generations)}
        for rank, engine in enumerate(self.policies):
            engine.init_policy_process_group(worker_rank=rank, **sizes, metadata=metadata)
        for rank, generation in enumerate(self.generations):
            generation.engine.init_rollout_process_group(rollout_rank=rank, **sizes, metadata=metadata)
        try:
            results = asyncio.run(self._both())
        finally:
            for engine in [*self.policies, *(g.engine for g in self.generations)]:
                engine.finalize()
        if failed := [result for result in results if isinstance(result, BaseException)]:
            raise RuntimeError("weight transfer failed") from failed[0]

    async def _both(self) -> list[Any]:
        async def send(engine: Any) -> None:
            await engine.send_weights(iter(self.weights().items()))

        sends, receives = [send(engine) for engine in self.policies], [g.update() for g in self.generations]
        return await asyncio.gather(*sends, *receives, return_exceptions=True)
