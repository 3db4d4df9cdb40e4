"""Sums of the updates of several senders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gcodec import _native
from gcodec.errors import InputError
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.stream import Update


@dataclass(frozen=True)
class _Settings:
    """Settings that the native module reads."""

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
    """Sums the last updates of several streams, element by element.

    The terms are added in the order of the senders' numbers, so every node with the same streams gets the
    same bits, for any order of `streams`. Codecs may differ between streams, but a delta cannot be summed.
    The result's header gives the number of contributors.

    Args:
        streams: one whole stream of each sender: objects with the buffer protocol.
        weights: the weight of each stream, more than 0, such as its number of samples. Default: 1 for each.
        mean: divide the sum by the sum of the weights.
        precision: the type in which floats are added: `f32` rounds after each sender, `f64` rounds once. f64
            tensors are always added in f64.
        by_input: number the senders in the order of `streams` instead of by their headers.
        limits: limits on each stream and on the sum. Default: `Limits()`.

    Raises:
        FormatError, UnsupportedError, LimitError: a stream is not complete and within the limits. The message
            gives its number.
        InputError: the updates cannot be summed: their tensors, steps or rounds differ, a sender occurs
            twice, one is a delta or a mean; or integer tensors have a weight or a mean.
    """
    streams = [memoryview(stream).cast("B") for stream in streams]
    weights = [1.0] * len(streams) if weights is None else [float(weight) for weight in weights]
    if len(weights) != len(streams):
        raise InputError(f"reduce has {len(weights)} weights for {len(streams)} streams: give one for each")
    if precision not in ("f32", "f64"):
        raise InputError(f"precision is {precision!r}: use f32 or f64")
    settings = _Settings(mean, precision == "f64", by_input)
    header, tensors = _native.reduce(streams, weights, settings, limits or Limits())
    return Update(UpdateHeader(**header), dict(tensors))
