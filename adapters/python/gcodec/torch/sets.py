"""The settings of shared sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gcodec.codecs import TopK, spec_of
from gcodec.errors import InputError


@dataclass(frozen=True)
class SharedSet:
    """Shared sets: one rank in turn chooses elements, and every rank sends its own values there.

    It replaces a codec. Only one rank's positions travel, in the frame of an index set. The values travel in
    frames, so they may have any form; with `ScaleCom`, ranks sum floats by an all-reduce instead. Gradients
    of other types than f32 are converted to f32.

    Attributes:
        density, k, scope: number of chosen elements, and the scope of the choice, as in `TopK`.
        values: form of the values, as in `TopK`; by default powers of two, rounded at random.
        momentum: momentum correction, 0 to less than 1: ranks accumulate velocities, as in `Dgc`. The
            optimizer then has no momentum of its own.
    """

    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    scope: Literal["tensor", "global"] = field(default="tensor", kw_only=True)
    values: Literal["f32", "f16", "bf16", "pow2", "sign", "q4"] = field(default="pow2", kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum of SharedSet is {self.momentum}: use at least 0, less than 1")
        _ = self.spec

    @property
    def spec(self) -> str:
        """Specification of the top-k codec that makes the choice."""
        return spec_of(TopK(self.density, k=self.k, scope=self.scope, values=self.values))
