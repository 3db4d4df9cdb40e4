"""Weight sync of NeMo-RL through a store: a checkpoint engine, selected by its class path.

    policy.generation:
      colocated: {enabled: false}
      refit_transport: "gcodec.engines.nemo_rl:GcodecCheckpointEngine"
      refit_cfg:
        "gcodec.engines.nemo_rl:GcodecCheckpointEngine": {store: "s3://bucket/run", release_after_refit: true}

Rank 0 of the policy publishes a version at each refit. Generation workers wait for it, and load the tensors
that it changes. A refit that failed on some workers is followed by a new version, which brings all of them to
the same weights.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import torch

from gcodec.engines.exchange import Exchange
from gcodec.errors import InputError


class GcodecCheckpointEngine:
    """Sends and receives versions of weights, in a worker of NeMo-RL.

    It has the methods of NeMo-RL's `CheckpointEngine`, which are all that NeMo-RL asks for.

    Args:
        bucket_size: bytes of the tensors that a worker loads at once, or one tensor.
        store: address of the store.
        release_after_refit: must be true. Only then NeMo-RL lets workers exchange metadata, in which the
            version is, before each refit. Nothing else is released.
        timeout: seconds that a generation worker waits for a version. Default: 600.

    Raises:
        InputError: `release_after_refit` is false.
    """

    shard_expert_weights = False

    def __init__(self, bucket_size: int, store: str, release_after_refit: bool = False, timeout: float = 600) -> None:
        if not release_after_refit:
            raise InputError("set release_after_refit: true in refit_cfg: workers learn the version of a refit from metadata that NeMo-RL exchanges only then")
        self.bucket_size, self.exchange, self._sends = bucket_size, Exchange(store, timeout), False

    def get_target_weight_layout(self) -> None:
        """Returns None: each worker gets whole tensors, and its loader takes its shard."""

    def prepare(self) -> dict[str, Any]:
        """Returns the version that the next refit makes; that of rank 0 of the policy counts."""
        return {"version": self.exchange.announced()}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> None:
        """Notes the version, and whether this is rank 0. There is no group."""
        self._sends, self.exchange.version = worker_rank == 0, metadata[0]["version"]

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> None:
        """Notes the version. There is no group."""
        self.exchange.version = metadata[0]["version"]

    def finalize(self) -> None:
        """Forgets the version."""
        self.exchange.version = None

    async def send_weights(self, weights: Generator[tuple[str, torch.Tensor], None, None]) -> None:
        """Publishes the version, on rank 0. The other ranks only take part in gathering.

        Raises:
            InputError, ConflictError: another trainer publishes to the store.
        """
        await self.exchange.send(weights, sends=self._sends)

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, torch.Tensor]], None]:
        """Waits for the version, and yields the tensors that it changes in batches; all tensors at first, and
        after a load that failed.

        Raises:
            IoError: the version does not come (kind `too-slow`).
        """
        async for batch in self.exchange.receive(self.bucket_size):
            yield batch
