"""What this rank contributes to the mean of a step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from gcodec import _native


@dataclass(frozen=True)
class Contribution:
    """This rank's tensors of a step, or the reason why it has none."""

    tensors: dict[str, torch.Tensor]
    step: int
    """Number of the step, from 0 on."""
    held: Collection[str]
    """Names of tensors of which this rank sends nothing, and whose residuals stay."""
    scale: float
    """Number by which the tensors were divided, and their mean is multiplied later."""
    error: Exception | None
    """The reason why this rank has no tensors; all ranks raise."""
    inner_steps: int = 0
    """Local steps that the tensors cover."""
    flat: _native._Flat | None = None
    """The buffer on the host that has the tensors, all of them in their order."""
