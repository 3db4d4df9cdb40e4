"""The settings of ScaleCom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gcodec.codecs import TopK, spec_of
from gcodec.errors import InputError


@dataclass(frozen=True)
class ScaleCom:
    """ScaleCom's CLT-k (arXiv 2104.11125): the ranks take turns to choose elements, and all ranks sum their
    values there.

    Pass it in place of a codec. The positions are sent once, in the frame of an index set, and the values by
    an all-reduce, so traffic per rank does not grow with the number of ranks. Gradients of other types than
    f32 are converted to f32.

    Attributes:
        density, k, scope: number of chosen elements, and the scope of the choice, as in `TopK`.
        chunk: the rank chooses the largest element of each run of this many elements instead, 1 to 2^32,
            which takes no sorting. Runs continue across tensors. It replaces `density`.
        beta: weight of the residual in the memory, more than 0, at most 1; 1 is plain error feedback.
    """

    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    scope: Literal["tensor", "global"] = field(default="tensor", kw_only=True)
    chunk: int | None = field(default=None, kw_only=True)
    beta: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1:
            raise InputError(f"beta of ScaleCom is {self.beta}: use more than 0, at most 1")
        if self.chunk is not None:
            if self.k is not None:
                raise InputError("ScaleCom has k and chunk: give one of them")
            if not 1 <= self.chunk <= 1 << 32:
                raise InputError(f"chunk of ScaleCom is {self.chunk}: use 1 to 2^32")
            object.__setattr__(self, "density", None)
        _ = self.spec

    @property
    def spec(self) -> str:
        """Specification of the top-k codec that makes the choice."""
        return spec_of(TopK(self.density, k=self.k if self.chunk is None else 1, scope=self.scope))
