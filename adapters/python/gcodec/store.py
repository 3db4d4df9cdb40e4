"""A store of versions of weights: a trainer publishes after each step, engines follow.

    store = gcodec.store.Store("s3://bucket/run")       # or a folder
    store.publish(model.state_dict(), meta={"step": "7"})

    follower = gcodec.store.Follower(store)             # in an engine
    if update := follower.stage():                      # while it serves: downloads, decodes, verifies
        update.apply(load)                              # in its pause: load(name, tensor) for what changed

Engines that take sparse updates use `update.commit(load)`, where `load` gets patches. Nothing is visible
before every digest matches. A load that fails half-way poisons the follower: its next update has every
tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from gcodec import _native
from gcodec._native import Tensor, without_prefix
from gcodec._tensors.dlpack import Framework, convert, given
from gcodec._tensors.prefixes import counterparts
from gcodec._tensors.trees import named_tensors
from gcodec.codecs import Codec, spec_of
from gcodec.errors import ConflictError, InputError, PoisonedError
from gcodec.header import UpdateHeader
from gcodec.patches import Patch, Patches

__all__ = ["Collected", "ConflictError", "Follower", "PoisonedError", "Published", "Store", "Update", "VersionInfo"]


@dataclass(frozen=True)
class Published:
    """A version that was published: its number, the number of tensors that changed, and sizes in bytes."""

    version: int
    touched: int
    bytes: int
    delta_bytes: int | None
    anchor_bytes: int | None


@dataclass(frozen=True)
class VersionInfo:
    """A version as `Store.log` lists it. `codec` is that of the delta, `state` the digest of all weights."""

    version: int
    created_ms: int
    meta: dict[str, str]
    bytes: int
    delta_bytes: int | None
    codec: str | None
    anchor_bytes: int | None
    touched: int
    state: str


@dataclass(frozen=True)
class Collected:
    """Result of a collection: the oldest version that is certain to stay, the numbers of objects that stay
    and that were deleted, and the bytes deleted."""

    oldest: int
    kept: int
    deleted: int
    bytes: int


class Store:
    """A store in a folder, at `s3://`, `gs://` or `az://`, or, for reading, at `http://` or `https://`.

    The environment variables `AWS_*`, `GOOGLE_*` and `AZURE_*` configure the cloud backends.

    Args:
        address: a folder or an address.
        anchor_every: versions from one anchor, which has all weights, to the next, at most. Default: 64.
        group_bytes: bytes of tensors in one object, unless one tensor has more. Default: 128 MiB.
        transfers: objects that are transferred at the same time. Default: 8.
        memory: bytes of objects on this machine during transfers, unless one object has more. Default: 256
            MiB.
        attempts: attempts of each request. Default: 5.
        cache: a folder that keeps parts of downloads, so that a stopped download continues. Default: None.
        scratch: a folder for temporary files, which then hold the weights of the last version, objects and
            streams in the place of memory. Default: None, all is in memory.
        grace: for a store that this object creates, the seconds for which `gc` keeps objects that readers and
            publishers may still use. Default: 3600.
        codec: the codec of the deltas that this object publishes, a `gcodec.Delta` or its specification.
            Default: `delta`.

    Raises:
        InputError: a wrong address or codec. `publish` raises it for a codec that makes no deltas.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        *,
        anchor_every: int = 64,
        group_bytes: int = 128 << 20,
        transfers: int = 8,
        memory: int = 256 << 20,
        attempts: int = 5,
        cache: str | os.PathLike[str] | None = None,
        scratch: str | os.PathLike[str] | None = None,
        grace: float = 3600.0,
        codec: Codec | str = "delta",
    ) -> None:
        kept, passing = (None if folder is None else os.fspath(folder) for folder in (cache, scratch))
        self._native = _native.Store(
            os.fspath(address),
            anchor_every,
            group_bytes,
            transfers,
            memory,
            attempts,
            kept,
            passing,
            grace,
            spec_of(codec),
        )

    def publish(self, tensors: Any, *, meta: Mapping[str, str] | None = None) -> Published:
        """Publishes a tree of tensors as the next version.

        Args:
            tensors: the weights: a tree of tensors, as in `gcodec.encode`.
            meta: keys and values that followers get with the version.

        Raises:
            ConflictError: another publisher was first. Publish again.
        """
        return Published(*self._native.publish(given(named_tensors(tensors)), dict(meta or {})))

    def pull(self, version: int | None = None, *, framework: Framework | None = None) -> dict[str, Any]:
        """Returns the tensors of a version, or of the latest, as tensors of `framework`."""
        replica = self._native.stage(None, version).commit(None)
        return {name: convert(tensor, framework) for name, tensor in replica.tensors(None)}

    def tensor(self, name: str, version: int | None = None) -> Tensor:
        """Downloads one tensor of a version, or of the latest, without the others."""
        return self._native.tensor(version, name)

    def latest(self) -> int:
        """Returns the number of the latest version, 0 if there is none."""
        return self._native.latest()

    def log(self, count: int = 20) -> list[VersionInfo]:
        """Returns the latest versions, newest first."""
        return [VersionInfo(**entry) for entry in self._native.log(count)]

    def fold(self, first: int, last: int) -> tuple[int, int]:
        """Stores one delta from version `first` to `last`. Returns its bytes, and those of the deltas that it
        replaces for readers."""
        return self._native.fold(first, last)

    def gc(self, *, keep: int = 1, dry_run: bool = False) -> Collected:
        """Deletes weights that no reader needs. The latest `keep` versions stay available."""
        return Collected(*self._native.gc(keep, dry_run))

    def lease(self, name: str, version: int, seconds: int) -> None:
        """Announces that the reader `name` holds a version: for `seconds`, `gc` keeps the deltas after it."""
        self._native.lease(name, version, seconds)

    def release(self, name: str) -> None:
        """Ends a lease."""
        self._native.release(name)


class Update:
    """A verified version that is not loaded yet.

    Attributes:
        version, meta: its number, and the publisher's keys and values.
        touched: names of the tensors that change. If it is empty, `commit` only sets the version.
        bytes, steps: bytes of the anchor and deltas that were read for it, and their number.
    """

    def __init__(self, follower: Follower, staged: _native.Version) -> None:
        self._follower, self._held = follower, follower._replica
        held = None if self._held is None else self._held.version
        self._replica = staged.commit(held)
        self._touched = staged.touched
        self.version = self._replica.version
        self.meta = self._replica.meta
        # The engine's names, by those of the store.
        self._own = {name: follower._own(name) for name in self._replica.names()}
        if len(set(self._own.values())) < len(self._own):
            raise InputError(f"without {follower._strip_prefix!r}, two tensors of version {self.version} have the same name")
        self.touched = [self._own[name] for name in staged.touched]
        self.bytes = staged.bytes
        self.steps = staged.steps

    @cached_property
    def patches(self) -> Patches:
        """The elements that change; all elements of the touched tensors if the follower holds no version.

        It is computed at the first access: access it before the pause.
        """
        if self._held is None:
            header = UpdateHeader(step=self.version)
            parts: list[_native._Patch] = [(name, list(t.shape), t.dtype, None, t) for name, t in self._replica.tensors(None)]
        else:
            held = self._held.version
            header = UpdateHeader(step=min(held, self.version), inner_steps=abs(self.version - held), delta=True)
            parts = self._replica.patches(self._held, self._touched)
        own = self._own
        made = [Patch(own[name], tuple(shape), dtype, indices, values) for name, shape, dtype, indices, values in parts]
        patches = Patches(header, {patch.name: patch for patch in made})
        patches._strip_prefix = self._follower._strip_prefix
        patches._sent = {own: name for name, own in self._own.items()}
        return patches

    def tensors(self, names: Iterable[str] | None = None, *, framework: Framework | None = None) -> dict[str, Any]:
        """Returns whole tensors of the version: the touched ones, or those in `names`."""
        own = self._own
        wanted = self._touched
        if names is not None:
            chosen = set(names)
            wanted = [name for name in self._replica.names() if own[name] in chosen]
        return {own[name]: convert(tensor, framework) for name, tensor in self._replica.tensors(wanted)}

    def apply(self, load: Callable[[str, Any], object], *, framework: Framework | None = "torch") -> int:
        """Loads each touched tensor by `load(name, tensor)`; otherwise as `commit`."""
        tensors = self.tensors(framework=framework)
        return self._finish(lambda: [load(name, tensor) for name, tensor in tensors.items()])

    def commit(self, load: Callable[[Patches], object]) -> int:
        """Loads `patches` by `load(patches)`, unless they are empty, and makes the version the follower's.

        Returns the version.

        Raises:
            InputError: the follower has another version by now, or `Patches.apply_` refused the tensors.
                Nothing is loaded, and the follower keeps its version.
            PoisonedError: `load` raised after it may have written something. The follower's next update has
                every tensor.
        """
        patches = self.patches
        patches._begin()
        return self._finish(lambda: load(patches) if patches else None, patches._wrote_nothing)

    def _finish(self, load: Callable[[], object], wrote_nothing: Callable[[BaseException], bool] = lambda _: False) -> int:
        follower = self._follower
        if follower._replica is not self._held:
            raise InputError("the update was staged for another version than the follower holds", kind="version")
        follower._replica = None
        try:
            load()
        except BaseException as e:
            if wrote_nothing(e):
                follower._replica = self._held
                raise
            raise PoisonedError(f"version {self.version} was not loaded completely: {e}", kind="poisoned") from e
        follower._replica = self._replica
        return self.version


class Source(Protocol):
    """What a `Follower` follows: a `Store`, or `gcodec.engines.versions.Versions`."""

    @property
    def _native(self) -> Any: ...
    def latest(self) -> int:
        """Returns the number of the latest version, 0 if there is none."""
        ...


class Follower:
    """Follows a store: without weights at first, or from weights that the engine has loaded.

    It keeps a copy of the weights on the host.

    Args:
        store: the store, or another source of versions.
        weights: a tree of the tensors of `version`, which the engine has loaded already. They are compared
            with the digest in the store, and copied. Default: the first update has every tensor.
        version: a version of the store.
        strip_prefix: a prefix, such as `module.`, that names have in the store or in the engine. They are
            compared without it. Updates have the names of `weights`, or names without the prefix if there are
            none, and `Patches.apply_` takes tensors with or without it. Default: None.

    Raises:
        InputError: the weights are not those of the version. The message names the tensors that are missing
            or differ; for other values, the version is downloaded to find them.
    """

    def __init__(
        self, store: Source, weights: Any = None, version: int | None = None, *, strip_prefix: str | None = None
    ) -> None:
        if (weights is None) != (version is None):
            raise InputError("a Follower begins with weights and their version, or with neither")
        self.store = store
        self._strip_prefix = strip_prefix or ""
        # The engine's names, by those of the store.
        self._names: dict[str, str] = {}
        self._replica: _native.Replica | None = None
        if weights is not None and version is not None:
            named = named_tensors(weights)
            if self._strip_prefix:
                own = counterparts(store._native.names(version), named.keys(), self._strip_prefix)
                theirs = {name: theirs for theirs, name in own.items()}
                self._names = own
                named = {theirs.get(name, name): tensor for name, tensor in named.items()}
            self._replica = store._native.hold(version, given(named))

    def _own(self, name: str) -> str:
        """Returns the engine's name of a tensor of the store."""
        return self._names.get(name) or without_prefix(name, self._strip_prefix)

    @property
    def poisoned(self) -> bool:
        """Whether the engine may have no weights, or weights of two versions: it must not serve before the
        next update, which has every tensor."""
        return self._replica is None

    @property
    def version(self) -> int | None:
        """Version that was loaded last; None before the first, and after a load that failed."""
        return None if self._replica is None else self._replica.version

    @property
    def meta(self) -> dict[str, str]:
        """The publisher's keys and values of that version; empty without one."""
        return {} if self._replica is None else self._replica.meta

    def stage(self, version: int | None = None) -> Update | None:
        """Downloads, decodes and verifies a version, or the latest. None if the follower has it already."""
        wanted = self.store.latest() if version is None else version
        if wanted == (self.version or 0):
            return None
        return Update(self, self.store._native.stage(self._replica, version))
