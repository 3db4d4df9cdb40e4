"""Weight sync of SkyRL through a store: its trainer's side of vLLM's weight transfer.

    engine = WeightTransferTrainerFactory.trainer_init(
        gcodec.engines.skyrl.TrainerInfo("s3://bucket/run", rank=rank), client=client, source=source)
    engine.send_weights()                     # on every rank, after each step

SkyRL's inference servers are vLLM with the backend `gcodec`, which this package registers. The engine has the
attributes that SkyRL's worker reads, stages the version while the servers generate, and pauses them only to
load it. SkyRL 0.4.0 takes a fixed list of backends: docs/engines.md has the lines to add there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

import gcodec.engines.vllm
from gcodec.engines.vllm import GcodecTrainer

BACKEND = "skyrl_gcodec"
"""The name of the trainer's engine in vLLM. The engine of its workers is `gcodec`."""


def register() -> None:
    """Registers the trainer's engine. Every rank calls it before `trainer_init`."""
    gcodec.engines.vllm.register()
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(BACKEND, "gcodec.engines.skyrl", "SkyrlTrainer")


@dataclass
class TrainerInfo(gcodec.engines.vllm.TrainerInfo):
    """Arguments of the trainer's factory: those of `gcodec.engines.vllm.TrainerInfo`."""

    backend: ClassVar[str] = BACKEND


class SkyrlTrainer(GcodecTrainer):
    """Publishes the weights of a `WeightSource` as versions in a store; SkyRL's servers load them."""

    init_info_cls = TrainerInfo

    skyrl_handles_prefix_cache_reset = True
    skyrl_force_disable_expandable_segments = False
    # Weights go to the host: nothing on the device is kept for the next step.
    skyrl_empty_cache_after_send = True
    skyrl_draft_source: Any = None
    _reset_prefix_cache = False

    def skyrl_set_reset_prefix_cache(self, reset: bool) -> None:
        """Says whether the prefix cache is to be reset in the pause of the next `send_weights`."""
        self._reset_prefix_cache = reset

    def send_weights(self) -> None:
        """Publishes a version, has the servers read and verify it while they generate, and load it in a
        pause. Every rank calls it.

        Raises:
            InputError: there is a source for a draft model, which these engines cannot load.
        """
        if self.skyrl_draft_source is not None:
            raise gcodec.InputError("the gcodec backend does not load draft models of speculative decoding")
        self.stage_weights()
        if self.store is None:
            super().send_weights()
            return
        client: Any = self.client
        client.pause_generation()
        try:
            if self._reset_prefix_cache:
                client.reset_prefix_cache(reset_running_requests=True)
            super().send_weights()
        finally:
            client.resume_generation()
