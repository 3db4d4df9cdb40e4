"""Many senders' updates into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gcodec import _native
from gcodec.errors import InputError
from gcodec.limits import Limits
from gcodec.stream import Update, UpdateHeader


@dataclass(frozen=True)
class _Settings:
    """What the native module reads."""

    mean: bool
    f64: bool
    by_input: bool


def reduce(
    streams: Sequence[Any],
    *,
    weights: Sequence[float] | None = None,
    mean: bool = False,
    precision: Literal["f32", "f64"] = "f32",
    by_input: bool = False,
    limits: Limits | None = None,
) -> Update:
    """The sum of many senders' updates, element by element: the same bits on every node that has the same streams.

    It is taken in the order of the senders' numbers, whatever the order of the streams. Of each stream the last update counts;
    its codec may be any, but a delta has no sum. The result's header says how many contributed.

    Args:
        streams: each sender's stream, whole: any objects with the buffer protocol.
        weights: how much each counts, more than 0, for instance its number of samples; 1 without.
        mean: divide by the sum of the weights.
        precision: in what floats are added: `f32`, rounded after each sender, or `f64`, rounded once; f64 tensors always in that.
        by_input: number the senders in the order of `streams`, instead of by what their headers say.
        limits: what to allow, for each stream and for the sum.

    Raises:
        FormatError, UnsupportedError, LimitError: a stream, which the message numbers, is not a complete one within the limits.
        InputError: updates that have no sum: other tensors, another step or round, one sender twice, a delta, a mean; a weight
            or a mean of integer tensors.
    """
    streams = [memoryview(stream).cast("B") for stream in streams]
    weights = [1.0] * len(streams) if weights is None else [float(weight) for weight in weights]
    if len(weights) != len(streams):
        raise InputError(f"{len(weights)} weights for {len(streams)} streams")
    if precision not in ("f32", "f64"):
        raise InputError(f"precision is f32 or f64, not {precision!r}")
    settings = _Settings(mean, precision == "f64", by_input)
    header, tensors = _native.reduce(streams, weights, settings, limits or Limits())
    return Update(UpdateHeader(**header), dict(tensors))
