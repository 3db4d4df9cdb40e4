"""Weight sync of verl through a store: an engine for its `CheckpointEngineRegistry`.

    rollout.checkpoint_engine.backend: gcodec
    rollout.checkpoint_engine.custom_backend_module: gcodec.engines.verl
    rollout.checkpoint_engine.engine_kwargs: {gcodec: {store: s3://bucket/run}}

Rank 0 of the trainer publishes a version at each update. Rollout workers wait for it, and load the tensors
that it changes. They need no connection to the trainer, and one that joins late begins at an anchor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from gcodec.engines.exchange import Exchange

BACKEND = "gcodec"
"""The name of the engine in verl."""


@CheckpointEngineRegistry.register(BACKEND)
class GcodecCheckpointEngine(CheckpointEngine):
    """Sends and receives versions of weights, in a worker of verl.

    Args:
        bucket_size: bytes that verl loads at once; not needed here.
        store: address of the store.
        timeout: seconds that a rollout worker waits for a version. Default: 600.
        is_master: whether this is rank 0 of the trainer.
    """

    def __init__(self, bucket_size: int, store: str, timeout: float = 600, is_master: bool = False) -> None:
        del bucket_size
        self.exchange, self.is_master = Exchange(store, timeout), is_master

    def prepare(self) -> dict[str, Any]:
        """Returns the version that the next update makes, on rank 0 of the trainer."""
        return {"version": self.exchange.announced()} if self.is_master else {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Returns the version for every worker."""
        version = metadata[0]["version"]
        return {"version": [version] * actor_wg_world_size}, {"version": [version] * rollout_world_size}

    def init_process_group(self, version: int) -> None:
        """Notes the version. There is no group."""
        self.exchange.version = version

    def finalize(self) -> None:
        """Forgets the version."""
        self.exchange.version = None

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> dict[str, float]:
        """Publishes the version, on rank 0. The other ranks only take part in gathering.

        Returns the bytes that were published, and those of the weights, as metrics.

        Raises:
            ConflictError: another trainer publishes to the store.
        """
        meta = {} if global_steps is None else {"global_steps": str(global_steps)}
        published = await self.exchange.send(weights, sends=self.is_master, meta=meta)
        if published is None:
            return {}
        sent = (published.delta_bytes or 0) + (published.anchor_bytes or 0)
        return {"gcodec/published_bytes": float(sent), "gcodec/weights_bytes": float(published.bytes)}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Waits for the version, and yields the tensors that it changes; all tensors at first, and after a
        load that failed.

        Raises:
            IoError: the version does not come (kind `too-slow`).
        """
        del global_steps
        async for batch in self.exchange.receive():
            for name, tensor in batch:
                yield name, tensor
