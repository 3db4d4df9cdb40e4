"""Tensors with NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class NotFinite(Exception):
    """A rank's tensors are not finite, or the mean is not: no rank gets a mean."""

    kind = "non_finite"
    """As of an `InputError` for the same reason."""


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite."""
    return are_finite([tensor])


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all elements of all tensors are finite."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    # A sum is faster than a comparison of each element. It may overflow, though.
    totals: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in floats:
        total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
        totals.setdefault((total.device, total.dtype), []).append(total)
    if all(torch.isfinite(torch.stack(alike)).all() for alike in totals.values()):
        return True
    return all(torch.isfinite(tensor).all() for tensor in floats)
