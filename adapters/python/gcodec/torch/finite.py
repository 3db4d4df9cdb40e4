"""Tensors with NaN or infinity."""

from __future__ import annotations

import torch


class NotFinite(Exception):
    """A rank's tensors are not finite, or the mean is not: no rank gets a mean."""

    kind = "non_finite"
    """As of an `InputError` for the same reason."""


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite."""
    if not tensor.is_floating_point():
        return True
    # A sum is faster than a comparison of each element. It may overflow, though.
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return bool(torch.isfinite(total)) or bool(torch.isfinite(tensor).all())
