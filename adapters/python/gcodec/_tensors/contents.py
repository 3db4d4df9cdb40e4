"""What a stream of a file's tensors has: names, types, shapes as in a safetensors file, and its metadata."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gcodec import _native
from gcodec._tensors.elements import CODES, bits_of
from gcodec.errors import InputError

SOURCE = "gcodec-source"
"""Key of the metadata in which `gcodec compress` keeps what is around the tensors of a file."""
OPAQUE = "gcodec-opaque"
"""Key of the metadata with the types of tensors that a stream has as bytes."""
_LABELS = {"complex64": "C64", "<c8": "C64", "complex128": "C128", "<c16": "C128"}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file."""

    code: str
    """Element type, by its name in safetensors files."""
    shape: tuple[int, ...]
    as_bytes: bool = False
    """Whether the stream has its bytes, because streams do not have its element type."""
    is_stored: bool = True
    """Whether the stream has it; one without elements may be left out."""

    @property
    def nbytes(self) -> int:
        return (math.prod(self.shape) * bits_of(self.code) + 7) // 8


def entries_of(file: _native.File, number: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """Returns the tensors of an update by name, in the order of the file, and the file's own metadata."""
    metadata = file.metadata(number)
    source, opaque = metadata.pop(SOURCE, None), _json(metadata.pop(OPAQUE, "{}"))
    stored = {name: (dtype, tuple(shape)) for name, dtype, shape in file.update(number)[1]}
    entries = {name: _entry(dtype, shape, opaque.get(name)) for name, (dtype, shape) in stored.items()}
    header = _header(source) if source is not None else None
    if header is None:
        return entries, metadata
    listed = {name: entries.get(name) or entry for name, entry in header.items()}
    # A stream that was made anew from a file's may have other tensors.
    return (listed if entries.keys() <= listed.keys() else entries), metadata


def _entry(dtype: str, shape: tuple[int, ...], label: Any) -> Entry:
    """Returns an entry of a stream; `label` has the type and shape of one that it has as bytes."""
    if isinstance(label, dict) and dtype == "u8" and len(shape) == 1:
        code, of = str(label.get("dtype")), label.get("shape")
        known = Entry(_LABELS.get(code, code), tuple(of) if isinstance(of, list) and _is_shape(of) else shape, as_bytes=True)
        try:
            if known.nbytes == shape[0]:
                return known
        except InputError:
            # A type without a known size stays a row of bytes.
            pass
    return Entry(CODES[dtype], shape)


def _header(source: str) -> dict[str, Entry] | None:
    """Returns the tensors that the header of the safetensors file lists which was compressed, in order of
    their offsets; None if it was a file of another kind."""
    around = _json(source)
    pieces, gaps = around.get("pieces"), around.get("gaps")
    if not isinstance(pieces, dict) or not isinstance(gaps, list) or not gaps:
        return None
    try:
        first = pieces["text"].encode() if "text" in pieces else base64.b64decode(pieces["base64"])
        first = first[: gaps[0]]
        size = int.from_bytes(first[:8], "little")
        if len(first) < 8 or size > len(first) - 8:
            return None
        listed = json.loads(first[8 : 8 + size])
        listed.pop("__metadata__", None)
        order = sorted(listed, key=lambda name: listed[name]["data_offsets"])
        return {name: _listed(listed[name]) for name in order}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _listed(info: Mapping[str, Any]) -> Entry:
    start, end = info["data_offsets"]
    if not _is_shape(info["shape"]):
        raise ValueError("no shape")
    return Entry(str(info["dtype"]), tuple(info["shape"]), is_stored=start != end)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape)


def _json(text: str) -> dict[str, Any]:
    """Returns an object of JSON; an empty one if the text is something else."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
