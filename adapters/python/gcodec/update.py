"""Trees of tensors as the native module's encoder takes them."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from typing import Any

from gcodec import _native
from gcodec.codecs import Codec, spec_of
from gcodec.devices import Work, place
from gcodec.errors import InputError
from gcodec.feedback import Dgc, split
from gcodec.header import UpdateHeader
from gcodec.options import Options, Order, callers_feedback
from gcodec.tensors import given
from gcodec.trees import named_tensors

# The defaults of the library's EncodeOptions (bytes) and of its compressors' Options (elements).
PART_BYTES = 64 << 20
BLOCK_LEN = 1 << 22

ENCODE_OPTIONS = ("rules", "base", "feedback", "header", "non_finite", "order")
"""The options that `encode` and `Writer.write` use."""


@dataclass(frozen=True)
class EncodeSettings:
    """Settings that the native module reads, apart from the codecs."""

    block_len: int
    """Elements in a block, at most."""
    zero_non_finite: bool
    """Whether NaN and infinity are encoded as 0."""


def native_update(
    where: str, tree: Any, codec: Codec | str | Dgc, options: Options, on: Work | None = None
) -> _native._Update:
    """Returns an update as the native module's encoder takes it.

    where: the entry point, for messages. on: the stream and the device memory to work in.
    """
    tensors = ordered(named_tensors(tree), options.order)
    chosen, native_feedback, native_dgc = split(codec, callers_feedback(where, options.feedback))
    default = spec_of(chosen)
    specs, label = [default], default
    if options.rules:
        if native_dgc is not None:
            raise InputError("Deep Gradient Compression takes no rules: it compresses every tensor in the same way")
        ruled = [(glob, spec_of(rule)) for glob, rule in options.rules.items()]
        specs = [_ruled(name, default, ruled) for name in tensors]
        label = "; ".join([default, *(f"{glob}={spec}" for glob, spec in ruled)])
    header = options.header or UpdateHeader()
    if not header.label:
        header = replace(header, label=label)
    settings = EncodeSettings(BLOCK_LEN, options.non_finite == "zero")
    bases = given(named_tensors(options.base))
    # Deep Gradient Compression runs on the host only.
    placed = given(tensors) if native_dgc is not None else place(tensors, specs, on)
    remember = native_feedback is not None
    if on is not None and native_feedback is None:
        native_feedback = on.memory
    return placed, specs, header, settings, bases, native_feedback, native_dgc, remember


def ordered(tensors: dict[str, Any], order: Order) -> dict[str, Any]:
    """Returns the tensors in another order."""
    if order is None:
        return tensors
    if isinstance(order, str):
        if order != "name":
            raise InputError(f"order is {order!r}: use 'name', or the names of all tensors")
        names = sorted(tensors)
    else:
        names = list(order)
    if len(names) != len(tensors) or set(names) != set(tensors):
        wrong = sorted(set(names) ^ set(tensors)) or sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"order and the tree do not have the same names: {', '.join(map(repr, wrong[:8]))}")
    return {name: tensors[name] for name in names}


def _ruled(name: str, default: str, rules: list[tuple[str, str]]) -> str:
    """Returns the codec of a tensor: that of the last rule whose pattern matches."""
    return next((spec for glob, spec in reversed(rules) if fnmatch.fnmatchcase(name, glob)), default)
