"""Tensors that are parts of larger ones: DTensors of PyTorch.

Each process encodes its own part. The manifest of its stream says where the part lies in the whole tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gcodec import _native
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


def shards(data: Any, *, limits: Limits | None = None) -> dict[str, Shard]:
    """Returns which tensors of a stream's last update are parts of larger ones, and where they lie, by name.

    Raises:
        FormatError, UnsupportedError, LimitError: the bytes are not a complete stream within the limits.
    """
    found = _native.shards(memoryview(data).cast("B"), limits or Limits())
    return {name: Shard(tuple(shape), tuple(offsets)) for name, shape, offsets in found}


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
        found, expected = have.get(name), Shard(tuple(shape), tuple(offsets))
        if found != expected:
            raise InputError(f"tensor {name!r} of the stream is {found or 'whole'}, and the DTensor here is {expected}")


def like_dtensor(local: Any, like: Any) -> Any:
    """Returns a DTensor with this part and the placement of another."""
    return type(like).from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())
