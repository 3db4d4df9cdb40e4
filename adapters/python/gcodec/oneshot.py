"""Tensors to bytes and back in one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gcodec import _native
from gcodec.codecs import Codec
from gcodec.feedback import Dgc, Feedback
from gcodec.limits import Limits
from gcodec.stream import PART_BYTES, Order, UpdateHeader, as_tree, native_update
from gcodec.tensors import Framework, convert, given
from gcodec.trees import named_tensors


def encode(
    tree: Any,
    codec: Codec | str | Dgc,
    *,
    rules: Mapping[str, Codec | str] | None = None,
    base: Any = None,
    feedback: Feedback | None = None,
    header: UpdateHeader | None = None,
    non_finite: Literal["reject", "zero"] = "reject",
    order: Order = None,
) -> bytes:
    """A stream of one update: the same bytes as the library's `encode`, for the same tensors and codec.

    Args:
        tree: a tensor, or a dict, list, tuple or pytree of tensors: of NumPy, PyTorch, JAX, or any with `__dlpack__`.
        codec: how to compress: a codec, its specification such as `"topk:density=0.01"`, or a `Dgc`.
        rules: other codecs for the tensors whose names match a pattern (`*.bias`); the last that matches counts.
        base: for the codec `Delta`: the tensors that these take the place of.
        feedback: what lossy codecs left out of earlier updates, and leave out of this one.
        header: who says it, when, and for whom.
        non_finite: what a lossy codec does with NaN and infinity: `reject` them, or take them for `zero`.
        order: of the tensors in the stream. Streams have a sum if it is the same: JAX sorts the keys of a dict, PyTorch does not.
            None is the tree's own; `name` sorts all names, which is the same everywhere; or the names themselves, in a row, such as
            another sender's stream decoded.

    Raises:
        InputError: a codec that cannot take a tensor's elements, a missing base, names that repeat; with the tensor's number.
        TypeError: something that is no tensor.
    """
    update = native_update(
        tree,
        codec,
        rules=rules,
        base=base,
        feedback=feedback,
        header=header,
        non_finite=non_finite,
        order=order,
    )
    return _native.Encoder(PART_BYTES, True, True).whole(update)


def decode(
    data: Any,
    *,
    like: Any = None,
    framework: Framework | None = None,
    names: set[str] | None = None,
    base: Any = None,
    limits: Limits | None = None,
) -> Any:
    """The tensors of the last update of a stream; the whole stream is checked.

    Args:
        data: the bytes: any object with the buffer protocol.
        like: a tree such as the one that was encoded: the result has its structure, and each tensor is of the library that
            the one in `like` is of. Without it the result is a dict by name; a tensor that was encoded by itself is `tensor`.
        framework: whose tensors to give: `numpy`, `torch`, `jax`; without it `gcodec.Tensor`.
        names: the tensors that are wanted.
        base: for a delta, the tensors that it changes.
        limits: what to allow.

    Raises:
        FormatError, UnsupportedError, LimitError: the bytes are not a complete stream within the limits.
        InputError: there is no update, or the base of a delta is missing or another one.
    """
    tensors = dict(_native.decode(memoryview(data).cast("B"), limits or Limits(), names, given(named_tensors(base))))
    if like is not None:
        return as_tree(tensors, like, framework)
    return {name: convert(tensor, framework) for name, tensor in tensors.items()}
