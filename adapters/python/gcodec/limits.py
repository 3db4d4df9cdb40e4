"""Limits on the resources that a stream may make a reader use."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gcodec import _native
from gcodec.errors import check_u64

_DEFAULT = _native.default_limits()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a reader, each 0 to 2^64 - 1 and checked before the memory or the time is spent.

    The defaults are those of the Rust library. A stream that exceeds a limit is a LimitError.
    """

    max_frame_bytes: int = _DEFAULT["max_frame_bytes"]
    """Bytes in the body of one frame."""
    max_tensors: int = _DEFAULT["max_tensors"]
    """Tensors in one manifest."""
    max_rank: int = _DEFAULT["max_rank"]
    """Dimensions of one tensor."""
    max_name_bytes: int = _DEFAULT["max_name_bytes"]
    """Bytes in one tensor name."""
    max_elements: int = _DEFAULT["max_elements"]
    """Elements that all blocks in one part of an update may span together."""
    max_alloc_bytes: int = _DEFAULT["max_alloc_bytes"]
    """Bytes that decoding may allocate: for sizes that a frame declares beyond the bytes received so far, and
    for the decoded tensors."""
    max_blocks: int = _DEFAULT["max_blocks"]
    """Blocks in one part of an update. A block counts once for each tensor that it spans."""
    max_inflated_bytes: int = _DEFAULT["max_inflated_bytes"]
    """Bytes of compressed metadata, of a model, or of all names in a manifest after decompression."""
    max_definitions: int = _DEFAULT["max_definitions"]
    """Manifests, index sets and models that a reader keeps of one stream; the limit applies to each of the
    three."""

    def __post_init__(self) -> None:
        for f in fields(self):
            check_u64("Limits", f.name, getattr(self, f.name))
