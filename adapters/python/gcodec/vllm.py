"""Weight sync into vLLM, by its own extension points.

    llm = LLM(model=.., weight_transfer_config={"backend": "gcodec"})
    llm.init_weight_transfer_engine({"init_info": {"source": "folder:/weights"}})
    llm.start_weight_update()
    llm.update_weights({"update_info": {}})     # to the newest version
    llm.finish_weight_update()

vLLM finds the engine through the entry point `vllm.general_plugins` of this package. Each worker keeps a
copy of the checkpoint on the host. A version is read and verified there; only then are its elements written
into the model, as sparse patches in checkpoint coordinates, which vLLM's own loaders map to fused and
tensor-parallel weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.model_executor.model_loader.checkpoint_weight_patch import CheckpointWeightPatch, load_checkpoint_weight_patches

from gcodec.checkpoints import checkpoint
from gcodec.errors import InputError
from gcodec.patches import Patch
from gcodec.sources import Folder, Source, StreamFile, source_of
from gcodec.sync import Publisher, Receiver

BACKEND = "gcodec"
"""The name of the engine in vLLM."""


def register() -> None:
    """Registers both engines; vLLM calls it through the entry point, in each of its processes."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "gcodec.vllm", "GcodecEngine")
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(BACKEND, "gcodec.vllm", "GcodecTrainer")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What `init_weight_transfer_engine` takes."""

    source: str = ""
    """Where versions come from: `file:PATH`, `folder:PATH` or `socket:HOST:PORT`. Empty: each update names a
    file."""
    checkpoint: str = ""
    """Folder of the safetensors files that the engine has loaded. Empty: the model of the engine."""
    version: int = 0
    """Version of the checkpoint."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What `update_weights` takes."""

    path: str = ""
    """File with the stream of the next version. Empty: the source's."""
    version: int | None = None
    """Version to go to. None: the newest of the source."""


class GcodecEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Receives versions of weights in a worker of vLLM."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    receiver: Receiver | None = None
    source: Source | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Opens the source, and reads the checkpoint that deltas change."""
        self.source = source_of(init_info.source) if init_info.source else None
        self.receiver = Receiver(checkpoint(init_info.checkpoint or self.model_config.model), init_info.version)

    def start_weight_update(self) -> None:
        """Does nothing: weights are changed in place."""

    def finish_weight_update(self) -> None:
        """Does nothing: each `update_weights` is complete."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Goes to a version; as in the base class, but without an accelerator too."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Reads, verifies and loads versions, one after the other.

        If one is refused, the model serves the version before it.

        Raises:
            PoisonedError: a loader of the model failed half-way. Only an anchor helps, or a restart.
            InputError, FormatError: as `gcodec.sync.Receiver.stage`.
        """
        if self.receiver is None:
            raise InputError("the engine has no weights yet: call init_weight_transfer_engine first")
        source = StreamFile(update_info.path) if update_info.path else self.source
        if source is None:
            raise InputError("there is no source: give source to init_weight_transfer_engine, or path to update_weights")
        after = None if self.receiver.poisoned else self.receiver.version
        for data in source.streams(after, update_info.version):
            self.receiver.stage(data).commit(self._load)
        if update_info.version is not None and self.receiver.version != update_info.version:
            raise InputError(f"the engine has version {self.receiver.version}, not {update_info.version}", kind="version")

    def _load(self, patches: Mapping[str, Patch]) -> None:
        assert self.receiver is not None
        sparse: list[Any] = []
        dense: list[Any] = []
        for patch in patches.values():
            indices, values = patch.torch()
            # NaN marks elements that stay: a tensor that gets a NaN, or has no floats, goes whole.
            if indices is not None and (not values.dtype.is_floating_point or bool(values.isnan().any())):
                whole = self.receiver.weights[patch.name].clone()
                patch.apply_(whole)
                indices, values = None, whole
            entry = CheckpointWeightPatch(patch.name, patch.shape, values.dtype, values.reshape(-1), indices)
            (dense if indices is None else sparse).append(entry)
        for group in (sparse, dense):
            # The positions of a patch ascend, so they do not repeat.
            loaded = load_checkpoint_weight_patches(self.model, group, validate_unique_indices=False)
            if group and not loaded:
                raise InputError(f"the model took none of the weights {', '.join(p.name for p in group[:4])}, ..")

    def shutdown(self) -> None:
        """Forgets the checkpoint."""
        self.receiver = self.source = None


@dataclass
class TrainerInfo(TrainerInitInfo):
    """What the trainer's factory takes."""

    backend: ClassVar[str] = BACKEND

    folder: str
    """Folder for the versions. The workers read it as their source."""
    source: str = ""
    """The source of the workers, if they do not see the folder by the same path."""
    checkpoint: str = ""
    """Folder of the checkpoint that the workers have loaded. Empty: the model of the engine. If it is given,
    the first version is a delta against it."""
    anchor_every: int = 64
    """Versions between anchors."""


class GcodecTrainer(TrainerWeightTransferEngine[TrainerInfo]):
    """Publishes the weights of a `WeightSource` as versions in a folder, and has the workers follow."""

    init_info_cls = TrainerInfo
    publisher: Publisher | None = None

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> Self:
        """Initialises the workers, on the sender."""
        if source is None:
            raise InputError("the gcodec backend sends the weights of a WeightSource: give source")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            base = checkpoint(init_info.checkpoint) if init_info.checkpoint else None
            engine.publisher = Publisher(Folder(init_info.folder), anchor_every=init_info.anchor_every, base=base)
            read_from = init_info.source or f"folder:{init_info.folder}"
            client.init_weight_transfer_engine({"source": read_from, "checkpoint": init_info.checkpoint})
        return engine

    def send_weights(self) -> None:
        """Publishes the next version, and has the workers load it. Every rank calls it."""
        assert self.source is not None
        weights = dict(_kept(self.source, self.is_sender))
        if self.publisher is None:
            return
        published = self.publisher.publish(weights)
        self.client.start_weight_update()
        self.client.update_weights({"version": published.version})
        self.client.finish_weight_update(str(published.version))


def _kept(source: Iterable[tuple[str, torch.Tensor]], keep: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields copies on the host; on ranks that send nothing, takes part in gathering only."""
    for name, tensor in source:
        if keep:
            yield name, tensor.detach().cpu()
