"""A copy of weights on the host: in memory, or in a mapped file."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from gcodec._tensors.dlpack import framework_of

_ALIGN = 64


def on_host(tensor: Any) -> Any:
    """Returns a row-major tensor on the host, without a copy if it is one. Those of JAX become arrays of
    NumPy."""
    if framework_of(tensor) == "torch":
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        return whole.detach().to("cpu").contiguous().resolve_neg()
    return np.asarray(tensor, order="C")


def kept_copy(tensors: Mapping[str, Any], folder: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Returns a copy of row-major tensors on the host.

    Args:
        folder: where a file without a name is the memory; it is gone with the last tensor. None: the memory
            of the process.

    Raises:
        OSError: the folder has no room for it.
    """
    starts, end = {}, 0
    for name, tensor in tensors.items():
        starts[name] = end + -end % _ALIGN
        end = starts[name] + tensor.nbytes
    if folder is None or end == 0:
        memory: Any = bytearray(end)
    else:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Written, not mapped and then filled: a page without room on the disk is a signal, not an error.
            for name, tensor in tensors.items():
                file.seek(starts[name])
                file.write(_bytes(tensor))
            file.flush()
            memory = mmap.mmap(file.fileno(), end)
    copy = {name: _within(memory, starts[name], tensor) for name, tensor in tensors.items()}
    if isinstance(memory, bytearray):
        copy_into(copy, tensors)
    return copy


def copy_into(copy: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Writes row-major tensors on the host into a copy of others of the same types and shapes."""
    for name, tensor in tensors.items():
        _bytes(copy[name])[...] = _bytes(tensor)


def _bytes(tensor: Any) -> Any:
    """Returns the bytes of a row-major tensor as an array in its memory."""
    if framework_of(tensor) == "torch":
        import torch

        return tensor.reshape(-1).view(torch.uint8).numpy()
    return tensor.reshape(-1).view(np.uint8)


def _within(memory: Any, start: int, like: Any) -> Any:
    """Returns a tensor like this one in the memory from `start` on."""
    is_torch = framework_of(like) == "torch"
    if like.nbytes == 0:
        return like.clone() if is_torch else like.copy()
    part = np.frombuffer(memory, dtype=np.uint8, offset=start, count=like.nbytes)
    if is_torch:
        import torch

        return torch.from_numpy(part).view(like.dtype).reshape(like.shape)
    return part.view(like.dtype).reshape(like.shape)
