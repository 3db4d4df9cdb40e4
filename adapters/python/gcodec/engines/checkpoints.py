"""Checkpoints in model folders."""

from __future__ import annotations

from typing import Any

from gcodec._tensors.folders import weight_files
from gcodec.loading import load_file


def checkpoint(folder: str) -> dict[str, Any]:
    """Returns the weights of a model folder, of safetensors files or their streams, by name, as tensors of
    PyTorch on the host."""
    return {name: tensor for file in weight_files(folder) for name, tensor in load_file(file).items()}
