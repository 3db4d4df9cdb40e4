"""The files with the weights of a model folder, of which some are streams (`.gcu`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gcodec.errors import InputError

_PATTERNS = ("*.safetensors.gcu", "pytorch_model*.bin.gcu", "*.safetensors")


def weight_files(folder: str | os.PathLike[str], variant: str | None = None) -> list[Path]:
    """Returns the files with the weights of a model folder, each as a stream if there is one.

    They are those of the index (`model.safetensors.index.json`), or else all `.safetensors.gcu`, all
    `pytorch_model*.bin.gcu`, or all `.safetensors` files.

    Args:
        variant: part of the names before their ends, as in `model.fp16.safetensors`.

    Raises:
        InputError: there are none, one of the index is missing, or they have differences from other weights.
    """
    place, dot = Path(folder), f".{variant}" if variant else ""
    if not place.is_dir():
        raise InputError(f"{place} is no folder: give a folder of files of gcodec compress")
    index = place / f"model.safetensors.index{dot}.json"
    if index.is_file():
        return [_stream_or_file(place, name) for name in _listed(index)]
    for pattern in (f"model{dot}.safetensors.gcu", *(() if variant else _PATTERNS)):
        if found := sorted(place.glob(pattern)):
            return found
    raise InputError(f"{place} has no weights: no {', '.join(_PATTERNS)}")


def _listed(index: Path) -> list[str]:
    """Returns the names of files in an index."""
    names: Any = None
    try:
        found = json.loads(index.read_text())
        is_of_differences = "delta_encoding" in (found.get("metadata") or {})
        names = set(found["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        is_of_differences = False
    if is_of_differences:
        raise InputError(f"{index} is of differences from another version: gcodec.engines.versions resolves them")
    if names and all(isinstance(name, str) and Path(name).name == name for name in names):
        return sorted(names)
    raise InputError(f"{index} is no index of files in its folder")


def _stream_or_file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gcu", folder / name):
        if path.is_file():
            return path
    raise InputError(f"{folder} has neither {name}.gcu nor {name}, which its index lists")
