"""The header of an update: its step, sender and kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gcodec.errors import InputError, check_u64


@dataclass(frozen=True, kw_only=True)
class UpdateHeader:
    """Step, sender and kind of an update. Numbers are 0 to 2^64 - 1; the default of each is 0."""

    step: int = 0
    """Optimizer updates before this one."""
    round: int = 0
    """Communication rounds before this one."""
    sender: int = 0
    """Number of the sender."""
    world: int = 0
    """Number of senders; 0 if unknown."""
    contributors: int = 0
    """Number of senders whose updates this one contains; 0 if unknown."""
    inner_steps: int = 0
    """Local optimizer steps that the update covers; 0 if unknown."""
    reduction: Literal["none", "sum", "mean"] = "none"
    """Whether the update is the sum or the mean of several."""
    label: str = ""
    """Compressor of the sender, a text for display. Default: empty, which writes the codec here."""
    delta: bool = False
    """Whether the update is a delta against a base. Decoding sets it; encoding ignores it."""

    def __post_init__(self) -> None:
        for name in ("step", "round", "sender", "world", "contributors", "inner_steps"):
            check_u64("UpdateHeader", name, getattr(self, name))
        if self.reduction not in ("none", "sum", "mean"):
            raise InputError(f"reduction of UpdateHeader is {self.reduction!r}: use none, sum or mean")
