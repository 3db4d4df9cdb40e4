"""The scale of a loss: gradients are exchanged, and residuals kept, without it."""

from __future__ import annotations

from typing import Any

import torch

from gcodec.torch.finite import NotFinite, are_finite


def scale_of(scaler: Any) -> float:
    """Returns the scale of a `GradScaler`; 1 without one."""
    return 1.0 if scaler is None else float(scaler.get_scale())


def is_scaled(scaler: Any) -> bool:
    """Whether a rank scales its loss. A scaler that is not enabled does not."""
    return scaler is not None and (not hasattr(scaler, "is_enabled") or bool(scaler.is_enabled()))


def divided_all(
    tensors: dict[str, torch.Tensor], scale: float
) -> tuple[dict[str, torch.Tensor], dict[str, torch.dtype]]:
    """Returns the quotients, and the types of the tensors unless the scale is 1."""
    if scale == 1:
        return tensors, {}
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    return {name: _divided(tensor, scale) for name, tensor in tensors.items()}, dtypes


def scaled(
    means: dict[str, torch.Tensor], dtypes: dict[str, torch.dtype], scale: float, propagate: bool
) -> dict[str, torch.Tensor]:
    """Returns means in the scale and types of what `divided_all` divided.

    Raises:
        NotFinite: a mean is not finite, and that is to be propagated.
    """
    for name, dtype in dtypes.items():
        means[name] = (means[name] * scale).to(dtype)
    if propagate and not are_finite(means.values()):
        raise NotFinite
    return means


def _divided(tensor: torch.Tensor, by: float) -> torch.Tensor:
    """Returns a quotient: in place, or in f32 for a narrow type, in which it might vanish."""
    return tensor.div_(by) if tensor.dtype in (torch.float32, torch.float64) else tensor.float() / by
