"""Trees of tensors as the native module's encoder takes them."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gcodec import _native
from gcodec._tensors.devices import Work, place, place_changes
from gcodec._tensors.dlpack import given, local
from gcodec._tensors.refusals import check_taken, naming
from gcodec._tensors.trees import named_tensors
from gcodec.codecs import Codec, spec_of
from gcodec.errors import InputError
from gcodec.feedback import Dgc, split
from gcodec.header import UpdateHeader
from gcodec.options import Chosen, Order, callers_feedback
from gcodec.shards import Place, Shard, places_of

# The defaults of the library's EncodeOptions (bytes) and of its compressors' Options (elements).
PART_BYTES = 64 << 20
BLOCK_LEN = 1 << 22

ENCODE_OPTIONS = ("rules", "base", "feedback", "header", "non_finite", "order", "shards")
"""The options that `encode` and `Writer.write` use."""


@dataclass(frozen=True)
class EncodeSettings:
    """Settings that the native module reads, apart from the codecs."""

    block_len: int
    """Elements in a block, at most."""
    zero_non_finite: bool
    """Whether NaN and infinity are encoded as 0."""
    held: list[str]
    """Names of tensors that stay out of the update, with their residuals. A receiver gets zeros."""
    provisional: bool
    """Whether the sender state can be restored after the update."""
    shards: dict[str, Place]
    """Names of tensors that are parts of larger ones: dimensions of the larger tensor, and first indices."""
    digests: _native.Digests | None = None
    """Digests of the bases, if they are the tensors of the last update with these digests."""


def native_update(
    where: str,
    tree: Any,
    codec: Codec | str | Dgc,
    options: Chosen,
    on: Work | None = None,
    *,
    held: Collection[str] = (),
    provisional: bool = False,
    shards: Mapping[str, Place] | None = None,
    digests: _native.Digests | None = None,
    flat: _native._Flat | None = None,
) -> _native._Update:
    """Returns an update as the native module's encoder takes it.

    where: the entry point, for messages. on: the stream and the device memory to work in. held, provisional,
    shards, digests: see `EncodeSettings`. flat: the buffer that has the tensors of a flat dict, all of them
    in its order, without bases.
    """
    if options.non_finite == "propagate":
        raise InputError(f"{where} has no other processes to tell: non_finite is reject or zero")
    tensors, places = (tree, {}) if flat is not None else _placed(tree, options, shards or {})
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
    settings = EncodeSettings(BLOCK_LEN, options.non_finite == "zero", list(held), provisional, places, digests)
    remember = native_feedback is not None
    if flat is not None:
        return flat, specs, header, settings, [], native_feedback, native_dgc, remember
    bases = named_tensors(options.base)
    # Sender state of deltas, and that of Deep Gradient Compression, is on the host only.
    changes = None if native_dgc is not None or remember or places else place_changes(tensors, bases, specs)
    if changes is not None:
        placed, lent_bases = changes
        return placed, specs, header, settings, lent_bases, None, None, False
    placed = given(tensors) if native_dgc is not None else place(tensors, specs, on)
    if on is not None and native_feedback is None:
        native_feedback = on.memory
    return placed, specs, header, settings, given(bases), native_feedback, native_dgc, remember


def _placed(tree: Any, options: Chosen, shards: Mapping[str, Place]) -> tuple[dict[str, Any], dict[str, Place]]:
    """Returns the tensors of a tree in their order, and the places of those that are parts of larger ones."""
    tensors = ordered(named_tensors(tree), options.order)
    for name, x in tensors.items():
        check_taken(name, x)
    places = {**places_of(tensors), **shards}
    tensors = {name: naming(name, local, x) for name, x in tensors.items()}
    return tensors, places | chosen_places(options.shards or {}, tensors)


def chosen_places(shards: Mapping[str, Shard], tensors: Mapping[str, Any]) -> dict[str, Place]:
    """Returns the places of tensors that the caller states.

    Raises:
        InputError: a name is not among the tensors, or a tensor has another shape than its shard.
    """
    for name, shard in shards.items():
        shape = tuple(tensors[name].shape) if name in tensors else None
        if shape != shard.shape:
            raise InputError(f"shards has {name!r} with shape {shard.shape}, and the tensors have {shape or 'no such name'}")
    return {name: (list(shard.global_shape), list(shard.offsets)) for name, shard in shards.items()}


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


def check_codecs(where: str, codec: Any, rules: Mapping[str, Any]) -> None:
    """Raises InputError for codecs that a trainer without bases and without sender state cannot use."""
    for one in (codec, *rules.values()):
        if not isinstance(one, (Codec, str)):
            name = type(one).__name__
            raise InputError(
                f"{where} takes no {name}, which keeps state of its own: use gcodec.TopK with error feedback, "
                f"or {name} with gcodec.torch"
            )
        if spec_of(one).partition(":")[0] == "delta":
            raise InputError(f"{where} takes no delta, which needs a base that both sides have: use another codec")


def check_rules(where: str, rules: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises InputError if a rule matches none of the names."""
    names = list(names)
    for glob in rules:
        if not any(fnmatch.fnmatchcase(name, glob) for name in names):
            some = ", ".join(map(repr, names[:4])) + (", .." if len(names) > 4 else "")
            raise InputError(f"the rule {glob!r} of {where} matches no tensor: there are {some or 'none'}")


def _ruled(name: str, default: str, rules: list[tuple[str, str]]) -> str:
    """Returns the codec of a tensor: that of the last rule whose pattern matches."""
    return next((spec for glob, spec in reversed(rules) if fnmatch.fnmatchcase(name, glob)), default)
