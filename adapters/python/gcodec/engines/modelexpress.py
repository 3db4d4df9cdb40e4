"""Weight sync of ModelExpress: a decompressor of its canonical deltas.

    gcodec.engines.modelexpress.register()      # in the receivers, before they start

A publisher then writes `"compression_format": "gcodec"` into the index of a version, and
`compress(new ^ old)` of each tensor's bytes in place of zstd's. The layout, checksums and XOR of ModelExpress
stay, because its decompressor does not get the receiver's base.
"""

from __future__ import annotations

import io
from typing import Any

from gcodec._native import Tensor
from gcodec.errors import FormatError
from gcodec.limits import Limits
from gcodec.oneshot import decode, encode

FORMAT = "gcodec"
"""The name of the compression format in an index."""
_NAME = "xor"


def register() -> None:
    """Adds the decompressor to those of ModelExpress's receiver."""
    from modelexpress_rl.inference import receiver

    receiver._DECOMPRESSORS[FORMAT] = decompressor


def compress(xor: Any, *, width: int = 2) -> bytes:
    """Returns the XOR of a tensor's old and new bytes as a stream with one lossless tensor.

    Args:
        xor: the bytes.
        width: bytes of an element: 1, 2, 4 or 8; taken as 1 if the number of bytes is no multiple of it.
    """
    data = bytes(memoryview(xor).cast("B"))
    width = width if len(data) % width == 0 else 1
    return encode({_NAME: Tensor(f"u{8 * width}", (len(data) // width,), data)}, "lossless")


def decompressor(data: memoryview, *, limits: Limits | None = None) -> io.BytesIO:
    """Returns a reader of the XOR's bytes.

    Raises:
        FormatError, LimitError: the bytes are corrupt, or exceed `limits`. ModelExpress then discards the
            new checkpoint.
    """
    tensors = decode(data, limits=limits)
    if list(tensors) != [_NAME]:
        raise FormatError(f"the stream has not one tensor called {_NAME!r}", kind="tensors", fault="bytes")
    return io.BytesIO(tensors[_NAME].tobytes())
