"""The settings of ScaleCom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gcodec.codecs import TopK, spec_of


@dataclass(frozen=True)
class ScaleCom:
    """ScaleCom's CLT-k (arXiv 2104.11125): one rank in turn chooses elements, and all ranks sum their values
    there.

    It replaces a codec. The positions travel once, in the frame of an index set, and the values by an
    all-reduce, so traffic per rank does not grow with the number of ranks. Gradients of other types than f32
    are converted to f32.

    Attributes:
        density, k, scope: number of chosen elements, and the scope of the choice, as in `TopK`.
        beta: weight of the residual in the memory, more than 0, at most 1; 1 is plain error feedback.
    """

    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    scope: Literal["tensor", "global"] = field(default="tensor", kw_only=True)
    beta: float = field(default=1.0, kw_only=True)

    @property
    def spec(self) -> str:
        """Specification of the top-k codec that makes the choice."""
        return spec_of(TopK(self.density, k=self.k, scope=self.scope))
