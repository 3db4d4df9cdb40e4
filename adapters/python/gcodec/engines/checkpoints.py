"""Checkpoints in safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcodec.errors import InputError


def checkpoint(folder: str) -> dict[str, Any]:
    """Returns the tensors of a folder's safetensors files, by name, as PyTorch tensors on the host."""
    from safetensors.torch import load_file

    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no safetensors files: give the folder of the checkpoint that is loaded")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}
