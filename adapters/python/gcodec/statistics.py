"""Statistics of tensors, as `gcodec inspect` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gcodec import _native
from gcodec._tensors.dlpack import given
from gcodec._tensors.trees import named_tensors


@dataclass(frozen=True)
class Stats:
    """Statistics of the elements of a tensor.

    `norm` (L2), `mean`, `std` (divided by the number of elements), `min` and `max` are those of the finite
    elements, computed in float64; `min` and `max` are None if there are none. `first_nan` and
    `first_infinite` are indices in the flattened tensor. `exponents` counts the finite elements that are not
    zero: `exponents[negative, e]` of them have that sign and a magnitude from 2^e up to 2^(e + 1). -127 and
    127 also count all smaller and larger ones.
    """

    elements: int
    norm: float
    mean: float
    std: float
    min: float | None
    max: float | None
    zeros: int
    nan: int
    infinite: int
    first_nan: int | None
    first_infinite: int | None
    exponents: dict[tuple[bool, int], int]


def stats(tree: Any) -> dict[str, Stats]:
    """Returns the statistics of each tensor of a tree, by name.

    One pass over each tensor, without a copy for tensors in row-major order on the host. The sums are made in
    a fixed order: any number of threads gives the same bits.

    Args:
        tree: a tensor, which gets the name "tensor", or a dict, list, tuple or pytree of tensors of NumPy,
            PyTorch, JAX or any library with `__dlpack__`.

    Raises:
        TypeError: a leaf of the tree is not a tensor.
    """
    found = _native.stats(given(named_tensors(tree)))
    return {name: _of(fields) for name, fields in found}


def _of(fields: dict[str, Any]) -> Stats:
    # The library counts biased exponents, as they stand in a float32.
    counts = {(negative, exponent - 127): count for negative, exponent, count in fields.pop("exponents")}
    return Stats(**fields, exponents=counts)
