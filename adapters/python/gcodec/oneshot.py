"""Tensors to bytes and back in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

from gcodec import _native
from gcodec._tensors.dlpack import Framework, convert, given
from gcodec._tensors.trees import named_tensors
from gcodec._tensors.update import ENCODE_OPTIONS, PART_BYTES, native_update
from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.feedback import Dgc
from gcodec.limits import Limits
from gcodec.options import Options, resolve
from gcodec.shards import check_places
from gcodec.stream import as_tree


def encode(
    tree: Any,
    codec: Codec | str | Dgc,
    *,
    profile: Literal["full", "core"] = "full",
    **options: Unpack[Options],
) -> bytes:
    """Encodes a tree of tensors as a stream of one update.

    The bytes are those of the Rust library's `encode` for the same tensors and codec.

    Args:
        tree: a tensor, or a dict, list, tuple or pytree of tensors of NumPy, PyTorch, JAX or any library with
            `__dlpack__`; or an iterator of names and tensors, such as `model.named_parameters()`. It is read
            to its end first, because a stream has the names, types and shapes before the values. For a
            DTensor, this process's part is encoded, with its place in the whole.
        codec: a codec, its specification such as `"topk:density=0.01"`, or a `Dgc`.
        profile: `core` writes only what readers of the format's core profile know: the same elements, in
            other kinds where it must.
        options: see `Options`. Used: rules, base, feedback, header, non_finite, order, shards.

    Raises:
        InputError: a codec cannot take a tensor's element type, a base is missing, or names repeat. `tensor`
            is the number of the tensor. With the core profile, also for codecs that it has no form for:
            delta, demo, powersgd.
        TypeError: a leaf of the tree is not a tensor.
    """
    chosen = resolve("encode", ENCODE_OPTIONS, options)
    update = native_update("encode", tree, codec, chosen)
    return _native.Encoder(PART_BYTES, True, True, profile).whole(update)


def decode(
    data: Any,
    *,
    like: Any = None,
    framework: Framework | None = None,
    names: set[str] | None = None,
    base: Any = None,
    models: Sequence[Any] = (),
    limits: Limits | None = None,
) -> Any:
    """Decodes the last update of a stream, after checking the whole stream.

    Neighbouring tensors of less than 4 MiB share memory in pieces of 8 to 12 MiB (Linux), each freed with the
    last of its tensors: copy a tensor that is kept longer than the others.

    Args:
        data: the bytes: any object with the buffer protocol.
        like: a tree of the structure that was encoded. The result has that structure, and each tensor belongs
            to the library of its counterpart in `like`. Default: the result is a dict by name. A tensor
            encoded by itself has the name `tensor`. Counterparts of DTensors are DTensors with the same
            placement; the stream must have this process's part.
        framework: the library of the resulting tensors: `numpy`, `torch` or `jax`. Default: `gcodec.Tensor`.
        names: the tensors to decode. Default: all.
        base: for a delta, the tree of tensors that it changes.
        models: bytes of the models of latent codes (`gcodec model train`, `gcodec.torch.Lgc`) that the stream
            does not carry. A model may take minutes for a few codes.
        limits: limits on the stream. Default: `Limits()`.

    Raises:
        FormatError, UnsupportedError, LimitError: the bytes are not a complete stream within the limits.
        InputError: the stream has no update, the base of a delta is missing or is not the sender's, or a
            model is missing.
    """
    limits = limits or Limits()
    if like is not None:
        check_places(named_tensors(like), data, limits)
    frames, bases = memoryview(data).cast("B"), given(named_tensors(base))
    try:
        tensors = dict(_native.decode(frames, limits, names, bases))
    except InputError as e:
        # The library leaves latent codes to their models.
        if e.kind != "unknown_reference" or (values := _native.without_codes(frames, models, limits)) is None:
            raise
        tensors = dict(_native.decode(values, limits, names, bases))
    if like is not None:
        return as_tree(tensors, like, framework)
    return {name: convert(tensor, framework) for name, tensor in tensors.items()}
