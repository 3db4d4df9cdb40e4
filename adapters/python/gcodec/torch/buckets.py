"""Gradients in the buckets of DistributedDataParallel."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from gcodec.errors import InputError
from gcodec.torch.pairs import reals


class Buckets:
    """Views of gradients in buckets, with the shapes and strides of their parameters.

    `GradBucket.gradients()` gives other views: row-major ones of the memory of parameters that are not, and
    half of a bucket of complex parameters, whose buffer has pairs of real numbers.
    """

    def __init__(self) -> None:
        # The strides of parameters whose gradients were compared with their places in a bucket.
        self._compared: dict[int, tuple[int, ...]] = {}

    def gradients(self, bucket: dist.GradBucket) -> list[torch.Tensor]:
        """Returns the gradients of a bucket in the order of its parameters, in the memory of its buffer."""
        flat, out, at = bucket.buffer().view(-1), [], 0
        parameters = bucket.parameters()
        if parameters[0].is_complex() and not flat.is_complex():
            flat = torch.view_as_complex(flat.view(-1, 2))
        # Buckets hold parameters of one type.
        for parameter in parameters:
            strides = strides_in_bucket(parameter.shape, parameter.stride())
            out.append(flat.as_strided(parameter.shape, strides, flat.storage_offset() + at))
            at += parameter.numel()
        return out

    def check(self, name: str, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Compares a gradient in a bucket with the parameter's own, when its strides are new here.

        Raises:
            InputError: the bucket was made for other strides: it has the same elements in another order.
        """
        strides = parameter.stride()
        if self._compared.get(id(parameter)) == strides:
            return
        own = parameter.grad
        if own is None or own.dtype != gradient.dtype or own.layout is not torch.strided:
            return
        if not _same(own, gradient) and _same(_sorted(own), _sorted(gradient)):
            raise InputError(
                f"the memory format of {name!r} was changed after DistributedDataParallel was made, and its bucket has another: "
                "change the format first, or make DistributedDataParallel and its hook again"
            )
        self._compared[id(parameter)] = strides


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
