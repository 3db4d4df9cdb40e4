"""Versions of weights in folders beside each other, as slime and miles write them and SGLang's
`/pull_weights` reads them.

    follower = gcodec.store.Follower(Versions("/shared/updates", base="/models/m"))
    if update := follower.stage():                      # resolves the newest version, compares all checksums
        update.commit(lambda patches: patches.apply_(served))

`difference` and `apply` are what a trainer and a receiver of this layout need to take gcodec as one more
`delta_encoding`. docs/engines.md describes the layout.
"""

from __future__ import annotations

import os
from typing import Any

from gcodec import _native
from gcodec._native import Tensor
from gcodec._tensors.elements import CODES, bits_of
from gcodec.errors import FormatError, InputError
from gcodec.limits import Limits
from gcodec.oneshot import decode, encode
from gcodec.patches import _torch_name

ENCODING = "gcodec"
"""The name of the encoding in an index."""


class Versions:
    """The versions in a folder, for a `gcodec.store.Follower` in the place of a store.

    Tensors that no difference changes have no checksum in this layout. All others are compared with theirs.

    Args:
        folder: the folder that has `weight_v000001` and so on.
        base: version 0, the checkpoint that the engines have loaded: a model folder, or a file of tensors.
            Default: `weight_v000000` in `folder`. A follower that has weights does not read it.
    """

    def __init__(self, folder: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> None:
        self._native = _native.Versions(os.fspath(folder), None if base is None else os.fspath(base))

    def latest(self) -> int:
        """Returns the number of the newest complete version, 0 if there is none."""
        return self._native.latest()


def difference(name: str, old: Any, new: Any, dtype: Any = "u8") -> bytes:
    """Returns what changes the bytes of a tensor: a stream of one delta.

    Args:
        name: the tensor's name.
        old, new: its bytes: objects with the buffer protocol, such as NumPy arrays of `uint8`.
        dtype: its element type: a name such as `bf16`, or a type of PyTorch. One that streams do not have
            counts as bytes, which give a larger stream. Default: `u8`.

    Raises:
        InputError: both are not as many bytes, or those are no whole elements.
    """
    return encode({name: _tensor(dtype, new)}, "delta", base={name: _tensor(dtype, old)})


def apply(region: Any, data: Any, *, limits: Limits | None = None) -> None:
    """Changes the bytes of a tensor in place, by a stream of `difference`.

    Args:
        region: the bytes: a writable object with the buffer protocol. They stay as they are if it raises.
        data: the stream.

    Raises:
        FormatError, LimitError: the stream is corrupt, exceeds `limits`, or has not one tensor.
        InputError: the bytes are not those that the stream was made from.
    """
    limits = limits or Limits()
    stream, place = memoryview(data).cast("B"), memoryview(region).cast("B")
    file = _native.File(stream, False, limits)
    entries = file.update(0)[1] if file.count() == 1 else []
    if len(entries) != 1:
        raise FormatError("the stream has not one update of one tensor", kind="tensors", fault="bytes")
    name, dtype, shape = entries[0]
    new = decode(stream, base={name: Tensor(dtype, tuple(shape), bytes(place))}, limits=limits)[name]
    place[:] = new.tobytes()


def _tensor(dtype: Any, data: Any) -> Tensor:
    name = str(dtype).removeprefix("torch.")
    name = name if name in CODES else (_torch_name(name) or "u8")
    bits, held = bits_of(CODES[name]), memoryview(data).cast("B")
    if held.nbytes * 8 % bits:
        raise InputError(f"{held.nbytes} bytes are no elements of {name}")
    return Tensor(name, (held.nbytes * 8 // bits,), bytes(held))
