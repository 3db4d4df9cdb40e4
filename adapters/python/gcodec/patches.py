"""Updates as patches: which elements change, and to which values.

    patches = gcodec.patches(data, base=weights)
    for patch in patches.values():
        indices, values = patch.torch()

A patch holds only the elements that change. Engines that load sparse updates take it as it is, and `apply_`
writes it into buffers of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gcodec import _native
from gcodec._native import Tensor
from gcodec._tensors.dlpack import ML_DTYPES, convert, framework_of, given, is_on_host
from gcodec._tensors.prefixes import counterparts, hint
from gcodec._tensors.refusals import check_taken, refusal
from gcodec._tensors.trees import named_tensors
from gcodec.errors import InputError
from gcodec.header import UpdateHeader
from gcodec.limits import Limits


@dataclass(frozen=True)
class Patch:
    """New values for some elements of a tensor.

    The values replace elements, so applying a patch twice equals applying it once.
    """

    name: str
    shape: tuple[int, ...]
    """Dimensions of the tensor."""
    dtype: str
    """Element type of the tensor and of the values."""
    indices: Tensor | None
    """Positions of the elements, row-major, ascending, without repetition: i32, or i64 in tensors of 2^31
    elements or more. None means all elements."""
    values: Tensor
    """The new elements: one for each index, or a whole tensor."""

    @property
    def count(self) -> int:
        """Number of elements that get values."""
        return self.values.size

    def torch(self) -> tuple[Any, Any]:
        """Returns `indices` (or None) and `values` as PyTorch tensors in the same memory."""
        return self._as("torch")

    def numpy(self) -> tuple[Any, Any]:
        """Returns `indices` (or None) and `values` as NumPy arrays in the same memory."""
        return self._as("numpy")

    def _as(self, framework: Any) -> tuple[Any, Any]:
        return None if self.indices is None else convert(self.indices, framework), convert(self.values, framework)

    def shard(self, dim: int, start: int, stop: int) -> Patch | None:
        """Returns the part of the patch in a shard of a tensor-parallel rank: the indices `start` to `stop`,
        without `stop`, of dimension `dim`. None if no element is in it.

        Indices of the result count from the start of the shard. It needs NumPy.
        """
        import numpy as np

        if not 0 <= dim < len(self.shape) or not 0 <= start <= stop <= self.shape[dim]:
            raise InputError(f"dimension {dim} of {self.name!r} with shape {self.shape} has no range {start} to {stop}")
        shape = (*self.shape[:dim], stop - start, *self.shape[dim + 1 :])
        if self.indices is None:
            if self.dtype == "f4e2m1":
                raise InputError(f"tensor {self.name!r} has two elements in each byte: shard the bytes")
            whole = self.values.bits().numpy().reshape(self.shape)
            values = np.ascontiguousarray(np.moveaxis(np.moveaxis(whole, dim, 0)[start:stop], 0, dim))
            return self._of(shape, None, values, shape) if values.size else None
        indices, values = self.indices.numpy(), self.values.bits().numpy()
        row = math.prod(self.shape[dim + 1 :])
        if dim == 0 or math.prod(self.shape[:dim]) == 1:
            # A range of rows is a range of positions.
            inside: Any = slice(np.searchsorted(indices, start * row), np.searchsorted(indices, stop * row))
            indices = indices[inside] - indices.dtype.type(start * row)
        else:
            outer, rest = np.divmod(indices.astype(np.int64), self.shape[dim] * row)
            inside = (rest >= start * row) & (rest < stop * row)
            indices = (outer * (stop - start) * row + rest - start * row)[inside]
        if not len(indices):
            return None
        kind = np.int32 if math.prod(shape) < 1 << 31 else np.int64
        return self._of(shape, indices.astype(kind), values[inside], (len(indices),))

    def _of(self, shape: tuple[int, ...], indices: Any, values: Any, values_shape: tuple[int, ...]) -> Patch:
        positions = None
        if indices is not None:
            positions = Tensor("i32" if indices.dtype.itemsize == 4 else "i64", (len(indices),), indices.tobytes())
        return Patch(self.name, shape, self.dtype, positions, Tensor(self.dtype, values_shape, values.tobytes()))

    def apply_(self, tensor: Any) -> None:
        """Writes the values into a PyTorch tensor, on any device, or into a NumPy array, of any strides.

        Raises:
            InputError: the tensor has another shape or type, is read-only, or some of its elements share
                memory, as those of an expanded tensor do. Nothing is written.
        """
        self.check(tensor)
        _Place(self, tensor).write()

    def check(self, tensor: Any) -> None:
        """Raises InputError if the patch does not fit a tensor of PyTorch or NumPy."""
        framework = framework_of(tensor)
        if framework not in ("torch", "numpy"):
            raise InputError(f"tensor {self.name!r} is a {type(tensor).__name__}: give a PyTorch tensor or a NumPy array")
        if (reason := refusal(tensor)) is not None:
            raise InputError(f"tensor {self.name!r} {reason}")
        if tuple(tensor.shape) != self.shape:
            raise InputError(f"tensor {self.name!r} has shape {tuple(tensor.shape)}, but in the update {self.shape}")
        dtype = _numpy_name(tensor.dtype) if framework == "numpy" else _torch_name(tensor.dtype)
        if dtype != self.dtype:
            raise InputError(f"tensor {self.name!r} is {dtype or tensor.dtype}, but in the update {self.dtype}")
        if framework == "numpy":
            strides, width, writable = tensor.strides, tensor.itemsize, tensor.flags.writeable
        else:
            strides, width, writable = tensor.stride(), 1, not tensor.is_neg()
        if not writable:
            raise InputError(f"tensor {self.name!r} is read-only: give a copy, or the tensor that it is a view of")
        if _overlaps(self.shape, strides, width):
            raise InputError(f"elements of tensor {self.name!r} share memory (strides {strides}): give it .clone() or .copy()")


class _Place:
    """A tensor that a patch fits, and which it changes."""

    def __init__(self, patch: Patch, tensor: Any) -> None:
        self._numpy = framework_of(tensor) == "numpy"
        if self._numpy:
            indices, self._values = patch.numpy()
            self._at: Any = indices
            # A flat iterator counts elements in row-major order, whatever the strides.
            self._tensor = tensor.reshape(-1) if tensor.flags.c_contiguous else tensor.flat
            self._whole = tensor
            return
        import torch

        indices, values = patch.torch()
        # Bits: not every operation knows every element type.
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        self._whole = self._tensor = tensor.detach().view(bits)
        self._values, self._at = values.reshape(-1).view(bits), None
        if indices is not None:
            indices = indices.to(tensor.device, torch.int64)
            flat = self._tensor.is_contiguous()
            self._tensor = self._tensor.view(-1) if flat else self._tensor
            self._at = (indices,) if flat else torch.unravel_index(indices, tensor.shape)

    def write(self) -> None:
        """Writes the patch's values."""
        self.put(self._values)

    def read(self) -> Any:
        """Returns a copy of the elements that the patch changes."""
        if self._at is None:
            return self._whole.copy() if self._numpy else self._whole.clone()
        return self._tensor[self._at]

    def put(self, values: Any) -> None:
        """Writes values in place of the elements that the patch changes."""
        if self._numpy:
            values = values.reshape(-1)
            if self._at is None:
                self._whole[...] = values.reshape(self._whole.shape)
            else:
                self._tensor[self._at] = values
            return
        values = values.to(self._whole.device)
        if self._at is None:
            self._whole.copy_(values.view(self._whole.shape))
        elif len(self._at) == 1:
            self._tensor.index_copy_(0, self._at[0], values)
        else:
            self._tensor.index_put_(self._at, values)


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> bool:
    """Whether two elements of a tensor may share memory.

    width: the size of an element, in units of the strides.
    """
    reach = width - 1
    if 0 in shape:
        return False
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


_NUMPY = {"float16": "f16", "float32": "f32", "float64": "f64", "bool": "bool"} | {
    f"{sign}{bits}": f"{sign[0]}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32, 64)
}
_NUMPY |= ML_DTYPES


def _numpy_name(dtype: Any) -> str | None:
    return _NUMPY.get(dtype.name)


def _torch_name(dtype: Any) -> str | None:
    return _NUMPY.get(str(dtype).removeprefix("torch."))


class Patches(Mapping[str, Patch]):
    """An update as a mapping from the names of the tensors that it changes to patches, with a `header`.

    A tensor that stays the same has no patch, so an update that changes nothing is false.

    Attributes:
        header: the `UpdateHeader`.
    """

    def __init__(self, header: UpdateHeader, patches: Mapping[str, Patch]) -> None:
        self.header = header
        self._patches = dict(patches)
        self._strip_prefix = ""
        # The names that the sender gave the tensors, where they differ.
        self._sent: dict[str, str] = {}
        # Whether the load that runs was given a patch, or wrote one: from then on tensors may have changed.
        self._used = False
        # The error of the last `apply_` that wrote nothing.
        self._refused: BaseException | None = None

    def __getitem__(self, name: str) -> Patch:
        self._used = True
        return self._patches[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._patches)

    def __len__(self) -> int:
        return len(self._patches)

    @property
    def touched(self) -> list[str]:
        """The names of the tensors that change."""
        return list(self._patches)

    @property
    def count(self) -> int:
        """Number of elements that get values."""
        return sum(patch.count for patch in self._patches.values())

    def apply_(self, tensors: Mapping[str, Any], *, strip_prefix: str | None = None) -> None:
        """Writes the values into tensors of PyTorch or NumPy, by name, whatever their strides.

        strip_prefix: a prefix, such as `module.`, that names have here or in the update. They are compared
            without it. Default: none, or that of the `Follower`.

        Raises:
            InputError: a tensor is missing or does not fit. Nothing is written.

        If a write fails, for example for want of memory, the tensors of a delta have their old elements
        again.
        """
        try:
            places = self._places(tensors, strip_prefix or self._strip_prefix)
        except InputError as e:
            self._refused = e
            raise
        self._write(places)

    def _write(self, places: list[tuple[Patch, Any]], check: Callable[[], None] | None = None) -> None:
        """Writes all patches, and calls `check`. If that or a write fails, a delta's old elements are written
        back: they take as much memory as the patch."""
        used, self._used = self._used, self._used or bool(places)
        saved: list[tuple[_Place, Any]] = []
        try:
            for patch, tensor in places:
                place = _Place(patch, tensor)
                if self.header.delta:
                    saved.append((place, place.read()))
                place.write()
            if check is not None:
                check()
        except BaseException as e:
            if self.header.delta or not places:
                for place, old in reversed(saved):
                    place.put(old)
                self._used, self._refused = used, e
            raise

    def _places(self, tensors: Mapping[str, Any], prefix: str) -> list[tuple[Patch, Any]]:
        """Returns the patches with the tensors that they fit."""
        sent = {name: self._sent.get(name, name) for name in self._patches}
        own = {name: name for name in sent.values()}
        if prefix:
            own = counterparts(sent.values(), tensors.keys(), prefix)
        if missing := [name for name in sent.values() if own.get(name) not in tensors]:
            why = hint(sent.values(), tensors.keys())
            raise InputError(f"the update changes {missing[0]!r}, which is not among the given tensors{why}")
        places = [(patch, tensors[own[sent[name]]]) for name, patch in self._patches.items()]
        for patch, place in places:
            patch.check(place)
        return places

    def _begin(self) -> None:
        """Notes that a load begins."""
        self._used, self._refused = False, None

    def _wrote_nothing(self, error: BaseException) -> bool:
        """Whether a load that failed with `error` did so before it could write anything."""
        return error is self._refused and not self._used

    def __repr__(self) -> str:
        return f"Patches(step={self.header.step}, {len(self)} tensors, {self.count} elements)"


def patches(data: Any, *, base: Any = None, names: set[str] | None = None, limits: Limits | None = None) -> Patches:
    """Returns the last update of a stream as patches, after checking the whole stream.

    A patch of a delta has the elements that differ from the base; all digests of base and result are checked
    first. A patch of any other update has the elements that are not zero, or all elements of a dense block.
    Only a few tensors have dense copies at a time.

    Args:
        data: the bytes: any object with the buffer protocol.
        base: for a delta, the tree of tensors that it changes. Those on a device are copied to the host some
            at a time: 64 MiB, or one tensor.
        names: the tensors to decode. Default: all.
        limits: limits on the stream. Default: `Limits()`.

    Raises:
        FormatError, UnsupportedError, LimitError: the bytes are not a complete stream within the limits.
        InputError: the stream has no update, or the base of a delta is missing or is not the sender's.
    """
    view, limits, bases = memoryview(data).cast("B"), limits or Limits(), named_tensors(base)
    if all(is_on_host(x) for x in bases.values()):
        header, found = _native.patches(view, limits, names, given(bases))
    else:
        for name, x in bases.items():
            check_taken(name, x)
        header, found = _native.patches(view, limits, set(), [])
        # Only a delta needs them.
        bases = bases if header["delta"] else {}
        for own in _batches(_native.patch_groups(view, limits)[0]):
            wanted = own if names is None else own & names
            if wanted:
                here = given({name: x for name, x in bases.items() if name in own})
                found += _native.patches(view, limits, wanted, here)[1]
    made = (Patch(name, tuple(shape), dtype, indices, values) for name, shape, dtype, indices, values in found)
    return Patches(UpdateHeader(**header), {patch.name: patch for patch in made})


_BATCH = 64 << 20
"""Bytes of tensors that are copied from a device to the host at a time, at least one group."""


def _batches(groups: list[tuple[list[str], int]]) -> Iterator[set[str]]:
    """Returns the names of groups that are decoded together."""
    own: set[str] = set()
    taken = 0
    for names, size in groups:
        if own and taken + size > _BATCH:
            yield own
            own, taken = set(), 0
        own.update(names)
        taken += size
    if own:
        yield own
