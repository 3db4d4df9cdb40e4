"""Complex tensors as pairs of real numbers, the form in which ranks exchange them."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def reals(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose last dimension has the real and the imaginary part of each element, in the same
    memory where that is possible; a real tensor as it is."""
    # The parts of a lazy conjugate have other signs in memory.
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def all_reals(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns tensors with those that are complex as pairs."""
    return {name: reals(tensor) for name, tensor in tensors.items()}


def joined(tensors: dict[str, torch.Tensor], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Returns tensors with the pairs of these names as complex numbers."""
    pairs = {name: torch.view_as_complex(tensors[name].contiguous()) for name in names if name in tensors}
    return tensors | pairs
