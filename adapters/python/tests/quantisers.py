"""Quantisers of bf16 matrices into the public layouts of checkpoints, in plain PyTorch.

Names, types and shapes are those that vLLM 0.32 creates for its layers, and compressed-tensors, ModelOpt,
GPTQ and DeepSeek-V3 write. Rounding is to the nearest; real quantisers may choose other scales.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = dict[str, torch.Tensor]

_E4M3, _E2M1 = 448.0, 6.0
_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp8_tensor(w: torch.Tensor) -> Tensors:
    """fp8 with a scale for each tensor."""
    scale = (w.float().abs().max() / _E4M3).clamp(min=1e-12)
    return {"weight": (w.float() / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def fp8_block(w: torch.Tensor, size: int = 128) -> Tensors:
    """fp8 with a scale for each block of 128 x 128; the tensor need not be divided by it."""
    rows, columns = w.shape
    padded = torch.nn.functional.pad(w.float(), (0, -columns % size, 0, -rows % size))
    blocks = padded.unflatten(0, (-1, size)).unflatten(2, (-1, size))
    scale = (blocks.abs().amax((1, 3)) / _E4M3).clamp(min=1e-12)
    own = (blocks / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return {"weight": own.to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def int4(w: torch.Tensor, group: int = 32) -> Tensors:
    """int4, eight in an i32 along the columns, with a bf16 scale for each group, as compressed-tensors."""
    values, scale = _nibbles(w, group)
    shape = torch.tensor(w.shape)
    return {"weight_packed": _packed(values, 1), "weight_scale": scale.bfloat16(), "weight_shape": shape}


def int4_gptq(w: torch.Tensor, group: int = 32) -> Tensors:
    """int4, eight in an i32 along the rows of the transposed matrix, with zero points, as GPTQ."""
    values, scale = _nibbles(w, group)
    zeros = torch.full((w.shape[1] // group, w.shape[0]), 7, dtype=torch.int64)
    order = (torch.arange(w.shape[1]) // group).int()
    return {"qweight": _packed(values.t(), 0), "qzeros": _packed(zeros, 1), "scales": scale.t().half().contiguous(), "g_idx": order}


def mxfp8(w: torch.Tensor) -> Tensors:
    """fp8 with an exponent for each 32 elements: e8m0, which vLLM and checkpoints hold as u8."""
    groups = w.float().unflatten(1, (-1, 32))
    exponent = torch.ceil(torch.log2((groups.abs().amax(2) / _E4M3).clamp(min=2.0**-126)))
    own = (groups / torch.exp2(exponent)[..., None]).flatten(1)
    return {"weight": own.to(torch.float8_e4m3fn), "weight_scale": (exponent + 127).to(torch.uint8)}


def nvfp4(w: torch.Tensor) -> Tensors:
    """fp4, two in a byte, with an e4m3 scale for each 16 elements and an f32 scale of scales, as ModelOpt."""
    outer = (w.float().abs().max() / (_E4M3 * _E2M1)).clamp(min=1e-12)
    groups = w.float().unflatten(1, (-1, 16))
    scale = (groups.abs().amax(2) / _E2M1 / outer).to(torch.float8_e4m3fn)
    own = groups / (scale.float() * outer).clamp(min=1e-12)[..., None]
    code = (own.abs()[..., None] - _LEVELS).abs().argmin(-1).to(torch.uint8) | (own < 0).to(torch.uint8) << 3
    code = code.flatten(1)
    return {"weight": code[:, ::2] | code[:, 1::2] << 4, "weight_scale": scale, "weight_scale_2": outer}


def nvfp4_packed(w: torch.Tensor) -> Tensors:
    """The same under the names of compressed-tensors, whose scale of scales is the reciprocal."""
    own = nvfp4(w)
    return {"weight_packed": own["weight"], "weight_scale": own["weight_scale"], "weight_global_scale": 1 / own["weight_scale_2"]}


KINDS: dict[str, Callable[[torch.Tensor], Tensors]] = {
    "fp8-tensor": fp8_tensor,
    "fp8-block": fp8_block,
    "int4": int4,
    "int4-gptq": int4_gptq,
    "mxfp8": mxfp8,
    "nvfp4": nvfp4,
    "nvfp4-packed": nvfp4_packed,
}

ROWS = {
    "weight": 0, "weight_scale_inv": 0, "weight_packed": 0, "weight_scale": 0,
    "qweight": 1, "qzeros": 1, "scales": 1,
}  # fmt: skip
"""The dimension that fused tensors follow each other in; the others have a row for each tensor."""


def quantise(weights: Tensors, kind: str) -> Tensors:
    """Returns a checkpoint whose matrices are quantised."""
    out: Tensors = {}
    for name, tensor in weights.items():
        if tensor.dim() == 2 and name.endswith(".weight"):
            unit = name.removesuffix("weight")
            out |= {unit + leaf: own.contiguous() for leaf, own in KINDS[kind](tensor).items()}
        else:
            out[name] = tensor.clone()
    return out


def _nibbles(w: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns values from 0 to 15, of which 8 is zero, and the scale of each group of columns."""
    groups = w.float().unflatten(1, (-1, group))
    scale = (groups.abs().amax(2) / 7).clamp(min=1e-12)
    return (groups / scale[..., None]).round().clamp(-8, 7).flatten(1).long() + 8, scale


def _packed(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Packs eight nibbles along a dimension into an i32, the first into the low bits."""
    parts = values.unflatten(dim, (-1, 8))
    shifts = (4 * torch.arange(8)).view([-1 if at == dim + 1 else 1 for at in range(parts.dim())])
    word = (parts << shifts).sum(dim + 1)
    return torch.where(word >= 2**31, word - 2**32, word).int()
