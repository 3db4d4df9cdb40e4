"""Tensors that are parts of larger ones: DTensors of PyTorch, and shards of tensor-parallel ranks.

The manifest of a stream says where a part lies in the whole tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from gcodec import _native
from gcodec._native import Tensor
from gcodec._tensors.dlpack import convert, framework_of, local
from gcodec.errors import InputError
from gcodec.limits import Limits

Place = tuple[list[int], list[int]]
"""Dimensions of the whole tensor, and the first index in each."""


@dataclass(frozen=True)
class Shard:
    """Place of a tensor in a larger one."""

    global_shape: tuple[int, ...]
    """Dimensions of the larger tensor."""
    offsets: tuple[int, ...]
    """First index in each dimension."""
    shape: tuple[int, ...]
    """Dimensions of the part."""

    @classmethod
    def split(cls, name: str, shape: Sequence[int], dim: int, parts: int) -> dict[str, Self]:
        """Divides a tensor into shards of equal size along a dimension, in order. Names are as in `w[:,4:8]`.

        Choose the largest number of ranks as `parts`: with 4 shards, each of 2 ranks holds two.

        Raises:
            InputError: `parts` does not divide the dimension.
        """
        whole = tuple(shape)
        # Shards of an empty dimension would all have the same name.
        if not 0 <= dim < len(whole) or not 1 <= parts <= max(whole[dim], 1) or whole[dim] % parts:
            raise InputError(f"dimension {dim} of {name!r} with shape {whole} is not divided by {parts}")
        own = whole[dim] // parts
        before, after = whole[:dim], whole[dim + 1 :]

        def shard(start: int) -> tuple[str, Self]:
            offsets = (0,) * len(before) + (start,) + (0,) * len(after)
            return f"{name}[{':,' * dim}{start}:{start + own}]", cls(whole, offsets, (*before, own, *after))

        return dict(shard(part * own) for part in range(parts))

    @property
    def index(self) -> tuple[slice, ...]:
        """The part's range in each dimension: `whole[shard.index]` is the part."""
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True))

    def within(self, outer: Shard) -> Shard | None:
        """Returns the place in another shard of the same tensor; None if it is not inside."""
        if self.global_shape != outer.global_shape:
            return None
        offsets = tuple(own - first for own, first in zip(self.offsets, outer.offsets, strict=True))
        ends = zip(offsets, self.shape, outer.shape, strict=True)
        inside = all(start >= 0 and start + size <= limit for start, size, limit in ends)
        return Shard(outer.shape, offsets, self.shape) if inside else None

    def cut(self, whole: Any) -> Any:
        """Returns the part of a PyTorch tensor or a NumPy array, in the same memory.

        Raises:
            InputError: the tensor does not have the shape `global_shape`.
        """
        if tuple(whole.shape) != self.global_shape:
            raise InputError(f"the tensor has shape {tuple(whole.shape)}, and the shard is of {self.global_shape}")
        return whole[self.index]

    def paste(self, part: Any, whole: Any) -> None:
        """Writes a part, also a `gcodec.Tensor`, to its place in a PyTorch tensor or a NumPy array.

        Raises:
            InputError: a shape or an element type differs. Nothing is written.
        """
        place, framework = self.cut(whole), framework_of(whole)
        if framework not in ("torch", "numpy"):
            raise InputError(f"the whole is a {type(whole).__name__}: give a PyTorch tensor or a NumPy array")
        new = convert(part, framework) if isinstance(part, Tensor) else part
        if (tuple(new.shape), new.dtype) != (self.shape, whole.dtype):
            raise InputError(f"the part is {new.dtype} {tuple(new.shape)}, not {whole.dtype} {self.shape}")
        if framework == "torch":
            place.detach().copy_(new.detach())
        else:
            place[...] = new


def shards(data: Any, *, limits: Limits | None = None) -> dict[str, Shard]:
    """Returns the places of those tensors of a stream's last update that are parts of larger ones, by name.

    Raises:
        FormatError, UnsupportedError, LimitError: the bytes are not a complete stream within the limits.
    """
    found = _native.shards(memoryview(data).cast("B"), limits or Limits())
    return {name: Shard(tuple(whole), tuple(offsets), tuple(shape)) for name, whole, offsets, shape in found}


def is_dtensor(x: Any) -> bool:
    """Whether `x` is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def place_of(name: str, x: Any) -> Place | None:
    """Returns where this process's part of a DTensor lies in it; None for a tensor that is whole here."""
    if not is_dtensor(x) or all(placement.is_replicate() for placement in x.placements):
        return None
    if any(placement.is_partial() for placement in x.placements):
        raise InputError(f"tensor {name!r} is a DTensor with a partial sum: redistribute it first")
    chunks = x.__create_chunk_list__()
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(x.to_local().shape):
        raise InputError(f"the part of the DTensor {name!r} in this process is not one range in each dimension")
    return list(x.shape), list(chunks[0].offsets)


def places_of(tensors: Mapping[str, Any]) -> dict[str, Place]:
    """Returns where the parts of DTensors lie, by name."""
    found = ((name, place_of(name, x)) for name, x in tensors.items())
    return {name: place for name, place in found if place is not None}


def check_places(tensors: Mapping[str, Any], data: Any, limits: Limits) -> None:
    """Raises InputError if a stream has other parts of DTensors than these."""
    wanted = places_of(tensors)
    if not wanted:
        return
    have = shards(data, limits=limits)
    for name, (shape, offsets) in wanted.items():
        found, expected = have.get(name), Shard(tuple(shape), tuple(offsets), tuple(local(tensors[name]).shape))
        if found != expected:
            raise InputError(f"tensor {name!r} of the stream is {found or 'whole'}, and the DTensor here is {expected}")


def like_dtensor(local: Any, like: Any) -> Any:
    """Returns a DTensor with this part and the placement of another."""
    return type(like).from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())
