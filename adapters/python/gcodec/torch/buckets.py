"""Gradients in the buckets of DistributedDataParallel."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_

import torch
import torch.distributed as dist

from gcodec import _native
from gcodec.errors import InputError
from gcodec.torch.pairs import reals


@dataclass(frozen=True)
class Contents:
    """The gradients of a bucket, as they mostly are in the next step, too."""

    buffer: torch.Tensor
    """The bucket's buffer, in one dimension."""
    parameters: list[torch.nn.Parameter]
    """The parameters in the order of the bucket."""
    strides: list[tuple[int, ...]]
    """The strides of the parameters."""
    gradients: dict[str, torch.Tensor]
    """The gradients by name, in the order of the model, in the memory of the buffer."""
    flat: _native._Flat | None
    """The gradients as the native module borrows them, if they are on the host and not complex."""
    new: dict[str, torch.nn.Parameter]
    """Parameters whose gradients were not compared with their places yet, by name."""

    def are_of(self, parameters: list[torch.nn.Parameter], buffer: torch.Tensor) -> bool:
        """Whether they are the gradients of these parameters in this buffer."""
        return (
            (buffer.data_ptr(), buffer.dtype, len(buffer)) == (self.buffer.data_ptr(), self.buffer.dtype, len(self.buffer))
            and len(parameters) == len(self.parameters)
            and all(map(is_, parameters, self.parameters))
            and self.strides == [parameter.stride() for parameter in parameters]
        )


class Buckets:
    """Views of gradients in buckets, with the shapes and strides of their parameters.

    `GradBucket.gradients()` gives other views: row-major ones of the memory of parameters that are not, and
    half of a bucket of complex parameters, whose buffer has pairs of real numbers.

    order: number and name of each parameter in the model, by `id`.
    """

    def __init__(self, order: Mapping[int, tuple[int, str]]) -> None:
        self._order = order
        self._known: dict[int, Contents] = {}

    def contents(self, bucket: dist.GradBucket) -> Contents:
        """Returns the gradients of a bucket.

        Raises:
            InputError: a bucket was made for other strides than a parameter has: it has the same elements in
                another order.
        """
        parameters, buffer = bucket.parameters(), bucket.buffer().view(-1)
        known = self._known.get(bucket.index())
        if known is None or not known.are_of(parameters, buffer):
            known = self._known[bucket.index()] = _contents(parameters, buffer, self._order)
        for name, parameter in list(known.new.items()):
            if _compare(name, parameter, known.gradients[name]):
                del known.new[name]
        return known


def _contents(parameters: list[torch.nn.Parameter], buffer: torch.Tensor, order: Mapping[int, tuple[int, str]]) -> Contents:
    numbers, at = buffer, 0
    # Buckets hold parameters of one type.
    if parameters[0].is_complex() and not buffer.is_complex():
        numbers = torch.view_as_complex(buffer.view(-1, 2))
    places = {}
    for parameter in parameters:
        places[id(parameter)] = at
        at += parameter.numel()
    gradients, layout, new = {}, [], {}
    for parameter in sorted(parameters, key=lambda one: order[id(one)]):
        name, shape, at = order[id(parameter)][1], tuple(parameter.shape), places[id(parameter)]
        strides = strides_in_bucket(shape, parameter.stride())
        gradients[name] = numbers.as_strided(shape, strides, numbers.storage_offset() + at)
        layout.append((name, shape, strides, at))
        new[name] = parameter
    is_lent = buffer.device.type == "cpu" and not numbers.is_complex()
    flat = (_native.Layout(layout), buffer) if is_lent else None
    return Contents(buffer, parameters, [parameter.stride() for parameter in parameters], gradients, flat, new)


def _compare(name: str, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> bool:
    """Compares a gradient in a bucket with the parameter's own. Returns whether it has one."""
    own = parameter.grad
    if own is None or own.dtype != gradient.dtype or own.layout is not torch.strided:
        return False
    if not _same(own, gradient) and _same(_sorted(own), _sorted(gradient)):
        raise InputError(
            f"the memory format of {name!r} was changed after DistributedDataParallel was made, and its bucket has another: "
            "change the format first, or make DistributedDataParallel and its hook again"
        )
    return True


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))


def _sorted(tensor: torch.Tensor) -> torch.Tensor:
    return reals(tensor).flatten().sort().values


@functools.lru_cache(maxsize=1024)
def strides_in_bucket(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a parameter's gradient in a bucket: those of the parameter if it covers its
    memory without gaps and overlaps, else row-major ones."""
    expected = 1
    sizes = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1]
    for stride, size in sorted(sizes):
        if stride != expected:
            return row_major(shape)
        expected *= size
    return strides


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a row-major tensor."""
    out, step = [], 1
    for size in reversed(shape):
        out.append(step)
        step *= size
    return tuple(reversed(out))
