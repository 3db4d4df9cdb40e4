"""Weight sync over a transport of the caller's: streams that a receiver verifies before it changes anything.

    sender = gcodec.sync.Sender(model.state_dict())                      # the trainer; version 0
    send(sender.delta(model.state_dict()))                               # after each step

    receiver = gcodec.sync.Receiver(checkpoint)                          # an engine, at version 0
    receiver.stage(receive()).commit(load_into_the_engine)

    receiver = gcodec.sync.Receiver(check.views(model, layout))          # or on its own parameters, no copy
    receiver.stage(receive()).commit()

To keep versions for engines that join late or fall behind, use `gcodec.store`.

Each version is a stream of one update: a delta, or an anchor, which has all weights (`lossless`). The
header's `step` is the version that a delta changes, and `inner_steps` the number of versions that it covers;
the `step` of an anchor is its version. A receiver takes each version once and in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gcodec import _native, check, units
from gcodec._tensors import sums
from gcodec._tensors.copies import copy_into, kept_copy, on_host
from gcodec._tensors.dlpack import framework_of
from gcodec._tensors.prefixes import counterparts, hint
from gcodec._tensors.refusals import check_taken, naming
from gcodec._tensors.trees import named_tensors
from gcodec._tensors.update import PART_BYTES, native_update
from gcodec.codecs import Codec, spec_of
from gcodec.errors import InputError, PoisonedError
from gcodec.file import File
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.oneshot import encode
from gcodec.options import Chosen
from gcodec.patches import Patch, Patches, patches

__all__ = ["PoisonedError", "Receiver", "Sender", "Staged"]


class Sender:
    """Makes the streams of versions, one after another. It keeps one copy of the last version, and reads the
    new weights where they are: they must not change during `delta`. Weights on a device, and those that are
    not row-major, are copied for its time.

    Args:
        weights: the weights that receivers have: a tree of tensors, as in `gcodec.encode`. None among them,
            such as the `_extra_state` of a module, is left out.
        version: the version of these weights. Default: 0.
        codec: the codec of deltas, a `gcodec.Delta` or its specification. Default: `delta`, differences.
        on_device: keep the copy where the weights are, made by their own library. Weights on one CUDA device
            are then compared there, and only changes leave it (`gcodec.encode`). It takes as much device
            memory as the weights, and twice as much during `delta`. Default: False, a copy on the host.
        folder: keep the copy in a file without a name in this folder, mapped into memory: it takes as much of
            the disk as the weights, and memory only as long as the system has some to spare. Not for
            `on_device`. Default: the copy is in the process's memory.

    Raises:
        InputError: the codec is not a delta, or `folder` is given with `on_device`.
        OSError: the folder has no room.
        TypeError: a leaf of the tree is not a tensor, or gcodec has no element type for it.
    """

    def __init__(
        self,
        weights: Any,
        version: int = 0,
        *,
        codec: Codec | str = "delta",
        on_device: bool = False,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._codec = spec_of(codec)
        if self._codec.partition(":")[0] != "delta":
            raise InputError(f"a Sender makes deltas, not {self._codec}")
        if on_device and folder is not None:
            raise InputError("a copy on a device is not in a folder: give one of on_device and folder")
        self._on_device = on_device
        named = named_tensors(weights)
        for name, tensor in named.items():
            check_taken(name, tensor)
        if on_device:
            self._last: dict[str, Any] | None = {name: naming(name, _copy_there, tensor) for name, tensor in named.items()}
        else:
            self._last = kept_copy({name: naming(name, on_host, tensor) for name, tensor in named.items()}, folder)
        # Half of the work: the digests of a version are those of the next one's base.
        self._digests = _native.Digests()
        self.version = version
        """The last version."""

    def delta(self, weights: Any) -> bytes:
        """Returns the stream from the last version to the next, which has `weights`.

        Raises:
            InputError: names, shapes or types are not those of the last version, which stays the last.
            PoisonedError: the call before was interrupted while it copied the new version.
        """
        named = named_tensors(weights)
        for name, tensor in named.items():
            check_taken(name, tensor)
        last = self._of_last()
        _check_same(last, named)
        read = _copy_there if self._on_device else on_host
        new = {name: naming(name, read, named[name]) for name in last}
        header = UpdateHeader(step=self.version, inner_steps=1, world=1)
        update = native_update("Sender.delta", new, self._codec, Chosen(base=last, header=header), digests=self._digests)
        try:
            data = _native.Encoder(PART_BYTES, True, True).whole(update)
        except BaseException:
            # They may be those of the version that failed.
            self._digests = _native.Digests()
            raise
        if self._on_device:
            self._last = new
        else:
            self._last = None
            copy_into(last, new)
            self._last = last
        self.version += 1
        return data

    def anchor(self) -> bytes:
        """Returns the stream of an anchor of the last version, for receivers that are new or poisoned, or
        that missed a delta."""
        return encode(self._of_last(), "lossless", header=UpdateHeader(step=self.version, world=1))

    def _of_last(self) -> dict[str, Any]:
        if self._last is None:
            raise PoisonedError("the copy of the last version was interrupted: make a new Sender, and send an anchor")
        return self._last


class Receiver:
    """Follows versions of weights.

    Deltas change the weights where they are, and digests are compared with them. Those of an engine can be
    its own parameters, on their device: no other copy is needed. `gcodec.check.views` gives the tensors in
    fused, stacked or transposed parameters. Quantised weights and their scales change together or not at all
    (`gcodec.units`).

    Args:
        weights: the weights of `version` by name, tensors of PyTorch, on any device, or of NumPy, with any
            strides. The receiver writes to them. None among them is left out.
        version: the version of these weights. Default: 0.
        limits: limits on streams. Default: `Limits()`.
        strip_prefix: a prefix, such as `module.`, that names have in the streams or in `weights`. They are
            compared without it, and patches have the names of `weights`. Default: None.
    """

    def __init__(
        self, weights: Any, version: int = 0, *, limits: Limits | None = None, strip_prefix: str | None = None
    ) -> None:
        self._weights, self._limits = named_tensors(weights), limits
        self._strip_prefix = strip_prefix or ""
        self.version = version
        """The version of the weights; that of the last whole one if the receiver is poisoned."""
        self.poisoned = False
        """Whether a commit failed half-way. Only an anchor is taken then."""

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights. Do not write to them."""
        return self._weights

    def stage(self, data: Any) -> Staged:
        """Reads and verifies a stream; changes nothing.

        Raises:
            PoisonedError: the receiver needs an anchor.
            InputError: the stream is not the next version (kind `version`), or its base is not the weights
                here (kind `checksum_mismatch`), or it does not fit them, or has only a part of a unit of
                `gcodec.units` that is here.
            FormatError, UnsupportedError, LimitError: as `gcodec.patches`.
        """
        # Without tensors: only the frames are checked, and the version comes before the digests.
        header = patches(data, names=set(), limits=self._limits).header
        if header.delta and self.poisoned:
            raise PoisonedError("the weights are neither the old nor the new version: apply an anchor", kind="poisoned")
        if header.delta:
            self._check_next(header)
        elif header.step < self.version or (header.step == self.version and not self.poisoned):
            raise InputError(f"the stream is version {header.step}, and version {self.version} is here", kind="version")
        found, own = self._patches(data)
        self._check_units(self._names(data))
        if header.delta:
            result = _native.patch_groups(memoryview(data).cast("B"), self._limits or Limits())[1]
            return Staged(self, found, header.step + header.inner_steps, anchor=False, result=_sums(result, own))
        self._check_whole(found)
        return Staged(self, found, header.step, anchor=True)

    def _write(self, staged: Staged) -> None:
        """Writes a version to the weights, checked before. PoisonedError if they are neither version then."""
        places = [(patch, self._weights[name]) for name, patch in staged.patches._patches.items()]
        staged.patches._begin()
        try:
            staged.patches._write(places, staged._compare)
        except BaseException as e:
            if staged.patches._wrote_nothing(e):
                raise
            self.poisoned = True
            raise PoisonedError(f"version {staged.version} was not written completely: {e}", kind="poisoned") from e

    def _patches(self, data: Any) -> tuple[Patches, dict[str, str]]:
        """Reads the patches of a stream, under the names of the weights. Returns them, and the weights' names
        of the stream's tensors where they differ."""
        if not self._strip_prefix:
            try:
                return patches(data, base=self._weights, limits=self._limits), {}
            except InputError as e:
                # A base is missing: all have other names, perhaps.
                if e.kind == "unknown_reference" and (why := hint(self._names(data), self._weights)):
                    raise InputError(f"{e}{why}", kind=e.kind) from e
                raise
        own = counterparts(self._names(data), self._weights, self._strip_prefix)
        base = {name: self._weights[mine] for name, mine in own.items()}
        found = patches(data, base=base, limits=self._limits)
        mine = ((own.get(name, name), patch) for name, patch in found.items())
        return Patches(found.header, {name: replace(patch, name=name) for name, patch in mine}), own

    def _names(self, data: Any) -> list[str]:
        """Returns the names of the tensors of a stream."""
        return list(File(data, limits=self._limits)[-1].shapes)

    def _check_next(self, header: UpdateHeader) -> None:
        base, version = header.step, header.step + header.inner_steps
        if header.inner_steps == 0:
            raise InputError("the delta does not say which version it makes: set inner_steps in its header", kind="version")
        if version <= self.version:
            raise InputError(f"the delta makes version {version}, and version {self.version} is here already", kind="version")
        if base != self.version:
            raise InputError(f"the delta changes version {base}, and version {self.version} is here", kind="version")

    def _check_units(self, sent: Iterable[str]) -> None:
        """InputError if the stream has a part of a quantised weight and its scales: either would be read with
        another version of the other."""
        names, own = ({name.removeprefix(self._strip_prefix) for name in found} for found in (sent, self._weights))
        for unit, members in units.find(sorted(names | own)).items():
            there, here = ([name for name in members if name in found] for found in (names, own))
            if here and there and here != there:
                raise InputError(f"the stream has {_some(there)} of the unit {unit!r}, and the weights here {_some(here)}")

    def _check_whole(self, found: Patches) -> None:
        for name, tensor in self._weights.items():
            if name not in found or found[name].indices is not None:
                raise InputError(f"the anchor has not all elements of {name!r}{hint(self._weights, found)}")
            found[name].check(tensor)


class Staged:
    """A verified version that is not loaded yet."""

    def __init__(self, receiver: Receiver, found: Patches, version: int, anchor: bool, result: list[_Sum] | None = None) -> None:
        self._receiver, self._from, self._poisoned = receiver, receiver.version, receiver.poisoned
        self._result, self._loaded = result or [], False
        self.version, self.anchor = version, anchor
        self.patches = Patches(found.header, {name: p for name, p in found.items() if name in receiver._weights})
        """The elements that change; empty if none does."""

    @property
    def touched(self) -> list[str]:
        """The names of the tensors that change."""
        return self.patches.touched

    def commit(self, load: Callable[[Mapping[str, Patch]], object] | None = None) -> int:
        """Calls `load` with the patches, to change the engine, unless they are empty, and changes the
        receiver's weights. Returns the version.

        Without `load`, the weights are the engine's own: after a delta with sums, the default, the digests of
        the tensors that changed are computed where they are, and compared with the stream's. If one differs,
        or a write fails, the old elements are written back: the weights are those of the old version.

        Raises:
            InputError: the receiver has another version by now (kind `version`). Nothing is changed.
                The same if `Patches.apply_` refused the tensors of `load`. Without `load`: the digest of a
                tensor is not that of the stream (kind `checksum_mismatch`).
            PoisonedError: `load` raised after it may have written something; the receiver's weights are still
                those of the old version. Or the weights were not written completely, and could not be
                restored: an anchor failed, or a device.
        """
        receiver = self._receiver
        if (receiver.version, receiver.poisoned) != (self._from, self._poisoned):
            raise InputError(f"version {self.version} was staged on another version than {receiver.version}", kind="version")
        for name, patch in self.patches._patches.items():
            patch.check(receiver._weights[name])
        self._loaded = load is not None
        if load is not None and self.patches:
            self.patches._begin()
            try:
                load(self.patches)
            except BaseException as e:
                if self.patches._wrote_nothing(e):
                    raise
                receiver.poisoned = True
                raise PoisonedError(f"version {self.version} was not loaded completely: {e}", kind="poisoned") from e
        receiver._write(self)
        receiver.version, receiver.poisoned = self.version, False
        return self.version

    def _compare(self) -> None:
        """InputError if the digests of the tensors that changed are not those of the stream. Not after a
        load, which has changed an engine: then the weights are a copy of the receiver's own."""
        weights, changed = self._receiver._weights, set(self.touched)
        for one in self._result:
            own = one.weights
            mine = set(own.values())
            if self._loaded or not (mine & changed and mine <= weights.keys()):
                continue
            found = check.digest({name: weights[mine] for name, mine in own.items()}).sum
            if found != one.digest:
                names = _some([*own.values()])
                raise InputError(f"after version {self.version} was written, {names} has the digest {found}, not {one.digest}", kind="checksum_mismatch")


@dataclass(frozen=True)
class _Sum:
    """A sum digest of some tensors."""

    weights: dict[str, str]
    """The tensors' names in the stream, and those of the receiver's weights."""
    digest: str


def _sums(found: list[tuple[list[str], tuple[int, int, int, int]]], own: dict[str, str]) -> list[_Sum]:
    return [_Sum({name: own.get(name, name) for name in names}, sums.text(lanes)) for names, lanes in found]


def _copy_there(tensor: Any) -> Any:
    """Returns a row-major copy where the tensor is."""
    if framework_of(tensor) == "torch":
        import torch

        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        return whole.detach().clone(memory_format=torch.contiguous_format)
    return tensor.copy()


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if old.keys() != new.keys():
        missing, extra = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
        parts = [f"{what} {_some(names)}" for what, names in (("missing:", missing), ("new:", extra)) if names]
        prefix = hint(new, old, advice="")
        raise InputError(f"the weights have not the names of the last version ({'; '.join(parts)}){prefix}")
    for name, tensor in new.items():
        if (tuple(tensor.shape), tensor.dtype) != (tuple(old[name].shape), old[name].dtype):
            raise InputError(f"tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, in the last version {old[name].dtype} {tuple(old[name].shape)}")


def _some(names: list[str]) -> str:
    """Returns the first names, for a message."""
    return ", ".join(map(repr, names[:4])) + (f", .. ({len(names)} in all)" if len(names) > 4 else "")
