"""Sparse updates in the coordinates of a checkpoint, as vLLM takes them: names of checkpoint tensors, flat
indices and values.

    update = follower.stage()                   # of a store, or of the versions of slime and miles
    engine.send_weights(weight_patches(update.patches))         # vLLM's trainer engine `sparse_nccl`

`stream` goes the other way: a gcodec stream of the patches that a trainer made for vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from gcodec._tensors.trees import named_tensors
from gcodec.errors import InputError
from gcodec.header import UpdateHeader
from gcodec.oneshot import encode
from gcodec.patches import Patch


def weight_patches(patches: Mapping[str, Patch], make: Callable[..., Any] | None = None) -> list[Any]:
    """Returns patches as `SparseWeightPatch`es of vLLM. They share the memory of `patches`, on the host.

    Args:
        patches: an update, such as `gcodec.patches(data, base)` or `Update.patches`.
        make: a class with the fields name, indices, values and full_shape. Default: that of vLLM.

    Raises:
        InputError: vLLM does not take a patch: its values are no floats, or some are NaN, which marks
            elements that stay; or the tensor has 2^31 elements or more. The message names the tensor. Send
            these whole.
        ImportError: vLLM is not installed, and `make` is not given.
    """
    if make is None:
        from vllm.distributed.weight_transfer.sparse_nccl_engine import SparseWeightPatch

        make = SparseWeightPatch
    made = []
    for patch in patches.values():
        indices, values = patch.torch()
        values = values.reshape(-1)
        if not values.dtype.is_floating_point:
            raise InputError(f"tensor {patch.name!r} is {patch.dtype}: vLLM's sparse patches are floats")
        if bool(values.isnan().any()):
            raise InputError(f"tensor {patch.name!r} gets a NaN, which marks elements that stay in vLLM's sparse patches")
        if math.prod(patch.shape) >= 1 << 31:
            raise InputError(f"tensor {patch.name!r} has {math.prod(patch.shape)} elements: vLLM's indices are int32")
        if indices is None:
            indices = torch.arange(len(values), dtype=torch.int32)
        made.append(make(name=patch.name, indices=indices, values=values, full_shape=patch.shape))
    return made


def stream(patches: Iterable[Any], base: Any, *, codec: str = "delta", header: UpdateHeader | None = None) -> bytes:
    """Returns patches that were made for vLLM as a stream: a delta of the tensors that they name.

    Args:
        patches: `SparseWeightPatch`es or `CheckpointWeightPatch`es of vLLM, or objects with their fields.
            Those of one name apply in their order. Without indices, the values are the whole tensor.
        base: a tree of the weights that they change, with the names of the checkpoint.
        codec: the codec of the delta. Default: `delta`.
        header: step and sender of the update. Default: zeros.

    Raises:
        InputError: a patch does not fit its tensor. The message names it.
    """
    weights, changed = named_tensors(base), {}
    for patch in patches:
        name = patch.name
        if name not in weights:
            raise InputError(f"the base has no tensor {name!r}")
        if name not in changed:
            changed[name] = weights[name].detach().cpu().clone(memory_format=torch.contiguous_format)
        _put(changed[name], patch)
    olds = {name: weights[name] for name in changed}
    return encode(changed, codec, base=olds, header=header or UpdateHeader())


def _put(tensor: torch.Tensor, patch: Any) -> None:
    """Writes the values of a patch into a tensor."""
    shape = tuple(patch.full_shape if hasattr(patch, "full_shape") else patch.shape)
    values = patch.values.detach().cpu().reshape(-1)
    if shape != tuple(tensor.shape) or values.dtype != tensor.dtype:
        found, own = (f"{tuple(s)} of {d}" for s, d in ((shape, values.dtype), (tensor.shape, tensor.dtype)))
        raise InputError(f"the patch of tensor {patch.name!r} has the shape {found}, and the base {own}")
    # As bits: some types of floats cannot be written by index.
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat, values = tensor.view(-1).view(bits), values.view(bits)
    if patch.indices is None:
        indices = torch.arange(flat.numel())
    else:
        indices = patch.indices.detach().cpu().long()
    if indices.shape != values.shape:
        raise InputError(f"the patch of tensor {patch.name!r} has {indices.numel()} indices for {values.numel()} values")
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < flat.numel():
        raise InputError(f"the patch of tensor {patch.name!r} has an index outside of its {flat.numel()} elements")
    if len(indices.unique()) < len(indices):
        raise InputError(f"the patch of tensor {patch.name!r} repeats an index")
    flat[indices] = values
