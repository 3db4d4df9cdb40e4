"""Weight sync into vLLM, by its own extension points.

    llm = LLM(model=.., weight_transfer_config={"backend": "gcodec"})
    llm.init_weight_transfer_engine({"init_info": {"store": "s3://bucket/run"}})
    for info in ({"stage": True}, {}):          # reads the newest version while it serves; loads it
        llm.start_weight_update()
        llm.update_weights({"update_info": info})
        llm.finish_weight_update()

vLLM finds the engine through the entry point `vllm.general_plugins` of this package. Each worker keeps a
copy of the checkpoint on the host. A version is read and verified there, with `stage` on a separate thread,
so that the pause has only the loading. Then its elements are written into the model, as sparse
patches in checkpoint coordinates, which vLLM's loaders map to fused and tensor-parallel weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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

import gcodec.vllm
from gcodec.engines.checkpoints import checkpoint
from gcodec.engines.sources import read_stream
from gcodec.errors import InputError
from gcodec.patches import Patch
from gcodec.store import Follower, Store
from gcodec.sync import Receiver

BACKEND = "gcodec"
"""The name of the engine in vLLM."""


def register() -> None:
    """Registers both engines, and the loader of `gcodec.vllm`; vLLM calls it through the entry point, in each
    of its processes."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "gcodec.engines.vllm", "GcodecEngine")
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(BACKEND, "gcodec.engines.vllm", "GcodecTrainer")
    gcodec.vllm.register()


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Arguments of `init_weight_transfer_engine`."""

    store: str = ""
    """Address of the store to follow: a folder, `s3://`, `gs://`, `az://`, `http://` or `https://`. Empty:
    each update names a file or a socket with a stream of `gcodec.sync.Sender`."""
    checkpoint: str = ""
    """Folder of the safetensors files that the engine has loaded. Empty: the model of the engine."""
    version: int = 0
    """Version of the checkpoint. 0 with a store: none of its versions, so that the first update loads all
    weights."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Arguments of `update_weights`."""

    path: str = ""
    """For an engine without a store: the file with the stream of the next version, or a TCP socket
    (`tcp://HOST:PORT`) that sends it to each worker and closes."""
    version: int | None = None
    """Version to load. None: the staged one, else the newest of the store, or that of the stream."""
    stage: bool = False
    """Whether to read and verify the version only, while the engine serves: `update_weights` returns at once,
    and the next one without `stage` waits for it, and loads it."""


@dataclass(frozen=True)
class Ready:
    """A version that was read and verified, and can be loaded."""

    path: str
    version: int | None
    """None: the engine has the newest version already."""
    load: Callable[[], object]
    """Writes it into the model."""


class GcodecEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Receives versions of weights in a worker of vLLM."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    follower: Follower | None = None
    receiver: Receiver | None = None
    _staging: Future[Ready] | None = None
    _thread: ThreadPoolExecutor | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Opens the store, and reads the checkpoint that updates change."""
        self.shutdown()
        folder = init_info.checkpoint or self.model_config.model
        if not init_info.store:
            self.receiver = Receiver(checkpoint(folder), init_info.version)
        elif init_info.version:
            self.follower = Follower(Store(init_info.store), checkpoint(folder), init_info.version)
        else:
            self.follower = Follower(Store(init_info.store))

    def start_weight_update(self) -> None:
        """Does nothing: weights are changed in place."""

    def finish_weight_update(self) -> None:
        """Does nothing: each `update_weights` is complete."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads a version; as in the base class, but also without an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Reads, verifies and loads a version; a staged version is only loaded. With `stage`, begins to read
        and verify it.

        If the version is refused, the model keeps its weights. A staged version is refused at the call
        without `stage`.

        Raises:
            PoisonedError: a loader of the model failed half-way. With a store, the next update loads all
                weights; without, only an anchor is taken.
            InputError, FormatError: as `gcodec.store.Follower.stage` and `gcodec.sync.Receiver.stage`.
        """
        staging, self._staging = self._staging, None
        if update_info.stage:
            if staging is not None:
                staging.cancel()
            self._thread = self._thread or ThreadPoolExecutor(1, "gcodec-stage")
            self._staging = self._thread.submit(self._ready, update_info)
            return
        ready = None if staging is None else staging.result()
        if ready is None or update_info.path not in ("", ready.path) or update_info.version not in (None, ready.version):
            ready = self._ready(update_info)
        ready.load()

    def _ready(self, update_info: UpdateInfo) -> Ready:
        """Reads and verifies a version; changes nothing."""
        if self.follower is not None and not update_info.path:
            return self._follow(self.follower, update_info.version)
        if self.receiver is not None and update_info.path:
            return self._receive(self.receiver, update_info)
        raise InputError("give a store to init_weight_transfer_engine, or no store and path to update_weights")

    def _follow(self, follower: Follower, version: int | None) -> Ready:
        update = follower.stage(version)
        if update is None:
            return Ready("", version, lambda: None)
        entries = _entries(update.patches, lambda name: update.tensors({name}, framework="torch")[name])
        return Ready("", update.version, lambda: update.commit(lambda _: self._load(entries)))

    def _receive(self, receiver: Receiver, update_info: UpdateInfo) -> Ready:
        weights = sum(tensor.nbytes for tensor in receiver.weights.values())
        # No stream of these weights is longer.
        staged = receiver.stage(read_stream(update_info.path, 2 * weights + (1 << 20)))
        if update_info.version not in (None, staged.version):
            raise InputError(f"the stream has version {staged.version}, not {update_info.version}", kind="version")

        def whole(name: str) -> torch.Tensor:
            tensor: torch.Tensor = receiver.weights[name].clone()
            staged.patches[name].apply_(tensor)
            return tensor

        entries = _entries(staged.patches, whole)
        return Ready(update_info.path, staged.version, lambda: staged.commit(lambda _: self._load(entries)))

    def _load(self, entries: tuple[list[Any], list[Any]]) -> None:
        for group in entries:
            # The positions of a patch ascend, so they do not repeat.
            loaded = load_checkpoint_weight_patches(self.model, group, validate_unique_indices=False)
            if group and not loaded:
                raise InputError(f"the model took none of the weights {', '.join(p.name for p in group[:4])}, ..")

    def shutdown(self) -> None:
        """Forgets the weights, and what was staged."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self.follower = self.receiver = self._staging = self._thread = None


def _entries(patches: Mapping[str, Patch], whole: Callable[[str], torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """Returns patches as vLLM takes them: those of some elements, and those of whole tensors."""
    sparse: list[Any] = []
    dense: list[Any] = []
    for patch in patches.values():
        indices, values = patch.torch()
        # NaN marks elements that stay: a tensor that gets a NaN, or has no floats, goes whole.
        if indices is not None and (not values.dtype.is_floating_point or bool(values.isnan().any())):
            indices, values = None, whole(patch.name)
        entry = CheckpointWeightPatch(patch.name, patch.shape, values.dtype, values.reshape(-1), indices)
        (dense if indices is None else sparse).append(entry)
    return sparse, dense


@dataclass
class TrainerInfo(TrainerInitInfo):
    """Arguments of the trainer's factory."""

    backend: ClassVar[str] = BACKEND

    store: str
    """Address of the store for the versions, which the workers follow."""
    version: int = 0
    """Version of the checkpoint that the workers have loaded. 0: none, so that their first update loads all
    weights."""
    codec: str = "delta"
    """Codec of the deltas: the specification of a `gcodec.Delta`."""


class GcodecTrainer(TrainerWeightTransferEngine[TrainerInfo]):
    """Publishes the weights of a `WeightSource` as versions in a store; the workers load them."""

    init_info_cls = TrainerInfo
    store: Store | None = None
    _version: int | None = None
    """Version that was published and not loaded; 0 on ranks that publish nothing."""

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> Self:
        """Initialises the workers, on the sender."""
        if source is None:
            raise InputError("the gcodec backend sends the weights of a WeightSource: give source")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            engine.store = Store(init_info.store, codec=init_info.codec)
            client.init_weight_transfer_engine({"store": init_info.store, "version": init_info.version})
        return engine

    def stage_weights(self) -> None:
        """Publishes the next version, and tells the workers to read and verify it while they serve.

        Every rank calls it, before the pause in which it calls `send_weights`.
        """
        self._publish()
        self._update({"stage": True}, None)

    def send_weights(self) -> None:
        """Tells the workers to load the version of `stage_weights`; without one, publishes a version first.
        Every rank calls it."""
        if self._version is None:
            self._publish()
        self._update({}, str(self._version))
        self._version = None

    def _publish(self) -> None:
        assert self.source is not None
        weights = dict(_kept(self.source, self.is_sender))
        self._version = 0 if self.store is None else self.store.publish(weights).version

    def _update(self, info: dict[str, Any], finished: str | None) -> None:
        if self.store is not None:
            self.client.start_weight_update()
            self.client.update_weights({"version": self._version, **info})
            self.client.finish_weight_update(finished)


def _kept(source: Iterable[tuple[str, torch.Tensor]], keep: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields copies on the host; on ranks that send nothing, takes part in gathering only."""
    for name, tensor in source:
        if keep:
            yield name, tensor.detach().cpu()
