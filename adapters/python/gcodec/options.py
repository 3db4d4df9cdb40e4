"""The options of every function and trainer that compresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
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


class OptionKeywords(TypedDict, total=False):
    """The fields of `Options` as keyword arguments, for type checkers. `Options` documents them."""

    rules: Mapping[str, Codec | str] | None
    base: Any
    feedback: Feedback | bool | None
    header: UpdateHeader | None
    non_finite: NonFinite
    order: Order
    shards: Mapping[str, Shard] | None
    limits: Limits | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to compress, apart from the codec.

    Every function and trainer that compresses takes an `Options`, its fields as keywords, or both. A keyword
    replaces the field of that name.

        options = gcodec.Options(rules={"*.bias": "lossless"}, non_finite="zero")
        data = gcodec.encode(gradients, "topk", options, header=gcodec.UpdateHeader(step=3))

    Each entry point lists the options that it uses. Setting another one is an InputError.
    """

    rules: Mapping[str, Codec | str] | None = None
    """Codecs for tensors whose names match a pattern, such as `{"*.bias": "lossless"}` (patterns as in
    `fnmatch`). If several patterns match a name, the last one applies. Default: None, one codec for all
    tensors."""
    base: Any = field(default=None, compare=False)
    """For the codec `Delta`: the tree of tensors that these tensors replace. Default: None."""
    feedback: Feedback | bool | None = None
    """Error feedback: the residual of a lossy codec is added to the next update. `encode`, `Writer`: a
    `Feedback`, which holds the residuals; None is no error feedback. Trainers hold their own residuals and
    use them unless this is False. Default: None."""
    header: UpdateHeader | None = None
    """Step, round and sender of the update. Default: None, all numbers 0."""
    non_finite: NonFinite = None
    """NaN and infinity under a lossy codec: `reject` raises InputError, `zero` encodes them as 0.
    `propagate`, for trainers whose processes exchange updates: all processes get NaN, and their residuals
    stay unchanged, so that the step can be skipped. Default: None, which is `propagate` in
    `gcodec.torch.State`, otherwise `reject`."""
    order: Order = field(default=None, compare=False)
    """Order of the tensors in the stream. Streams can be summed only if their orders agree, and frameworks
    differ: JAX sorts the keys of a dict, PyTorch does not. `name` sorts all names; a sequence lists all
    names, for instance the decoded stream of another sender. Default: None, the order of the tree."""
    shards: Mapping[str, Shard] | None = field(default=None, compare=False)
    """Places of tensors that are parts of larger ones, by name. A delta of such a tensor has separate
    blocks and a separate digest, so a receiver of one part needs no other. Default: None; DTensors have
    their places."""
    limits: Limits | None = None
    """For entry points that also decode: limits on streams of other senders. Default: None, `Limits()`."""

    def __post_init__(self) -> None:
        if self.non_finite not in (None, "reject", "zero", "propagate"):
            raise InputError(f"non_finite is {self.non_finite!r}: use reject, zero or propagate")


def resolve(where: str, used: tuple[str, ...], options: Options | None, keywords: OptionKeywords) -> Options:
    """Returns `options` with `keywords` in place of its fields.

    where: the entry point, for messages. used: the names of the options that it uses.

    Raises:
        InputError: an option is set that is not among `used`.
        TypeError: `options` is not an `Options`, or a keyword is not an option.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options of {where} is a {type(options).__name__}: give a gcodec.Options, or keywords")
    resolved = replace(options or Options(), **keywords)
    for option in fields(resolved):
        value = getattr(resolved, option.name)
        is_default = value is option.default or (isinstance(value, str) and value == option.default)
        if not is_default and option.name not in used:
            raise InputError(f"{where} does not use the option {option.name}: it uses {', '.join(used)}")
    return resolved


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
