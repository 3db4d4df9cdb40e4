"""What a reader allows a stranger to ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gcodec import _native
from gcodec.errors import check_u64

_DEFAULT = _native.default_limits()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a reader allows; each is checked before the memory or the time is spent. The defaults are the library's."""

    max_frame_bytes: int = _DEFAULT["max_frame_bytes"]
    """Bytes in the body of one frame."""
    max_tensors: int = _DEFAULT["max_tensors"]
    """Tensors in one manifest."""
    max_rank: int = _DEFAULT["max_rank"]
    """Dimensions of one tensor."""
    max_name_bytes: int = _DEFAULT["max_name_bytes"]
    """Bytes in one tensor name."""
    max_elements: int = _DEFAULT["max_elements"]
    """Elements that all blocks of one part of an update may span together."""
    max_alloc_bytes: int = _DEFAULT["max_alloc_bytes"]
    """Bytes of memory that decoding may take for what a frame declares beyond the bytes that have arrived; and of the tensors
    that are put together."""
    max_blocks: int = _DEFAULT["max_blocks"]
    """Blocks in one part of an update, each counted once for every tensor that it touches."""
    max_inflated_bytes: int = _DEFAULT["max_inflated_bytes"]
    """Bytes that compressed metadata, a model or all names of a manifest may grow to."""
    max_definitions: int = _DEFAULT["max_definitions"]
    """Manifests, index sets and models that are remembered of one stream, each."""

    def __post_init__(self) -> None:
        for f in fields(self):
            check_u64("Limits", f.name, getattr(self, f.name))
