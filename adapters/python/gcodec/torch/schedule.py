"""Codecs that follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.sets import SharedSet


@dataclass(frozen=True)
class Schedule:
    """Codecs for consecutive ranges of steps, for instance a dense one first and then sparse ones.

        gcodec.torch.Schedule({0: "raw", 500: gcodec.TopK(density=0.1), 1000: gcodec.TopK(density=0.01)})

    Each codec takes over the residuals of the one before. `Dgc` and `Lgc` have phases of their own.

    Attributes:
        stages: codecs by the number of the first exchange in which they are used, from 0 on.
    """

    stages: Mapping[int, Codec | str | ScaleCom | SharedSet]

    def __post_init__(self) -> None:
        if 0 not in self.stages or not all(isinstance(first, int) and first >= 0 for first in self.stages):
            raise InputError(f"a schedule begins at the exchanges {list(self.stages)}: use whole numbers, the first of them 0")
        for codec in self.stages.values():
            if not isinstance(codec, (Codec, str, ScaleCom, SharedSet)):
                raise InputError(f"a schedule has a {type(codec).__name__}: use codecs, ScaleCom and SharedSet. Dgc and Lgc have phases of their own")

    def at(self, exchange: int) -> Codec | str | ScaleCom | SharedSet:
        """Returns the codec of an exchange."""
        return self.stages[max(first for first in self.stages if first <= exchange)]
