"""The options of every function and trainer that compresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.feedback import Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.shards import Shard

Order = Literal["name"] | Iterable[str] | None
"""Order of the tensors in a stream: `name`, all names in the wanted order, or None for the tree's."""


NonFinite = Literal["reject", "zero", "propagate"] | None
"""Treatment of NaN and infinity; None is that of the entry point."""


class Options(TypedDict, total=False):
    """How to compress, apart from the codec: keywords of every function and trainer that compresses.

    Each entry point lists the options that it uses. Setting another one is an InputError. For the same
    options in several calls:

        encode = functools.partial(gcodec.encode, rules={"*.bias": "lossless"}, non_finite="zero")
        data = encode(gradients, "topk", header=gcodec.UpdateHeader(step=3))

    The class is the type of these keywords: `**options: Unpack[gcodec.Options]`.
    """

    rules: Mapping[str, Codec | str] | None
    """Codecs for tensors whose names match a pattern, such as `{"*.bias": "lossless"}` (patterns as in
    `fnmatch`). If several patterns match a name, the last one applies. Default: None, one codec for all
    tensors."""
    base: Any
    """For the codec `Delta`: the tree of tensors that these tensors replace. Default: None."""
    feedback: Feedback | bool | None
    """Error feedback: the residual of a lossy codec is added to the next update. `encode`, `Writer`: a
    `Feedback`, which holds the residuals; None is no error feedback. Trainers hold their own residuals and
    use them unless this is False. Default: None."""
    header: UpdateHeader | None
    """Step, round and sender of the update. Default: None, all numbers 0."""
    non_finite: NonFinite
    """NaN and infinity under a lossy codec: `reject` raises InputError, `zero` encodes them as 0.
    `propagate`, for trainers whose processes exchange updates: all processes get NaN, and their residuals
    stay unchanged, so that the step can be skipped. Default: None, which is `propagate` in
    `gcodec.torch.State`, otherwise `reject`."""
    order: Order
    """Order of the tensors in the stream. Streams can be summed only if their orders agree, and frameworks
    differ: JAX sorts the keys of a dict, PyTorch does not. `name` sorts all names; a sequence lists all
    names, for instance the decoded stream of another sender. Default: None, the order of the tree."""
    shards: Mapping[str, Shard] | None
    """Places of tensors that are parts of larger ones, by name. A delta of such a tensor has separate
    blocks and a separate digest, so a receiver of one part needs no other. Default: None; DTensors have
    their places."""
    limits: Limits | None
    """For entry points that also decode: limits on streams of other senders. Default: None, `Limits()`."""


@dataclass(frozen=True)
class Chosen:
    """The `Options` of a call, with defaults for those that it does not set."""

    rules: Mapping[str, Codec | str] | None = None
    base: Any = None
    feedback: Feedback | bool | None = None
    header: UpdateHeader | None = None
    non_finite: NonFinite = None
    order: Order = None
    shards: Mapping[str, Shard] | None = None
    limits: Limits | None = None


def resolve(where: str, used: tuple[str, ...], options: Options) -> Chosen:
    """Returns the options of a call.

    where: the entry point, for messages. used: the names of the options that it uses.

    Raises:
        InputError: an option has a wrong value, or is set and not among `used`.
        TypeError: a keyword is not an option.
    """
    known = [option.name for option in fields(Chosen)]
    for name in options:
        if name not in known:
            raise TypeError(f"{where}() got an unexpected keyword argument {name!r}")
    chosen = Chosen(**options)
    if chosen.non_finite not in (None, "reject", "zero", "propagate"):
        raise InputError(f"non_finite is {chosen.non_finite!r}: use reject, zero or propagate")
    for name in known:
        if name not in used and getattr(chosen, name) is not None:
            raise InputError(f"{where} does not use the option {name}: it uses {', '.join(used)}")
    return chosen


def callers_feedback(where: str, feedback: Feedback | bool | None) -> Feedback | None:
    """Returns the residuals that the caller gives to an entry point which holds none."""
    if feedback is True:
        raise InputError(f"feedback of {where} is True: give a gcodec.Feedback, which holds the residuals")
    return feedback if isinstance(feedback, Feedback) else None


def trainers_feedback(where: str, feedback: Feedback | bool | None) -> bool:
    """Returns whether a trainer that holds its own residuals is to use them."""
    if isinstance(feedback, Feedback):
        raise InputError(f"{where} holds its own residuals: feedback is True or False, not a gcodec.Feedback")
    return feedback is not False
