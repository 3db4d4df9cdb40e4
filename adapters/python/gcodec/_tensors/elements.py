"""Element types by their names in safetensors files, and the tensors of other libraries that have them."""

from __future__ import annotations

import sys
from typing import Any

from gcodec._native import Tensor
from gcodec._tensors.dlpack import Framework, convert
from gcodec.errors import InputError

CODES = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "f8e4m3fn": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
    "f8e4m3fnuz": "F8_E4M3FNUZ",
    "f8e5m2fnuz": "F8_E5M2FNUZ",
    "f4e2m1": "F4",
    "i8": "I8",
    "i16": "I16",
    "i32": "I32",
    "i64": "I64",
    "u8": "U8",
    "u16": "U16",
    "u32": "U32",
    "u64": "U64",
    "bool": "BOOL",
}
"""Names in safetensors files of the element types of streams."""

_OF_TORCH = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    "BOOL": "bool",
    "C64": "complex64",
    "C128": "complex128",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}

_BITS = {"F8_E8M0": 8, "C64": 64, "C128": 128, "BOOL": 8, "BF16": 16, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_NUMPY_BYTES = {"C64": "complex64", "C128": "complex128"}


def bits_of(code: str) -> int:
    """Returns the number of bits of an element."""
    if code in _BITS:
        return _BITS[code]
    digits = code.partition("_")[0][1:]
    if not digits.isdecimal():
        raise InputError(f"the element type {code!r} has no known size")
    return int(digits)


def torch_dtype(code: str) -> Any:
    """Returns the element type in PyTorch."""
    import torch

    name = _OF_TORCH.get(code)
    if name is None or not hasattr(torch, name):
        raise TypeError(f"PyTorch {torch.__version__} has no element type {code}")
    return getattr(torch, name)


def torch_shape(code: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a tensor of PyTorch, which has two elements of 4 bits in one."""
    if code != "F4" or not shape:
        return shape
    return (*shape[:-1], shape[-1] // 2)


def code_of_torch(dtype: Any) -> str:
    """Returns the name of an element type of PyTorch; its own name if safetensors has none."""
    name = str(dtype).removeprefix("torch.")
    return next((code for code, theirs in _OF_TORCH.items() if theirs == name), name)


def framework_of_name(name: str) -> Framework:
    """Returns the library that safetensors calls by this name."""
    names: dict[str, Framework] = {"jax": "jax", "flax": "jax", "np": "numpy", "numpy": "numpy"}
    names |= {"pt": "torch", "torch": "torch", "pytorch": "torch"}
    if name not in names:
        raise InputError(f"framework is {name!r}: use pt, np or jax")
    return names[name]


def empty(code: str, shape: tuple[int, ...], framework: Framework, *, pin_memory: bool = False) -> Any:
    """Returns a tensor with arbitrary elements; of JAX, only without elements."""
    if framework == "torch":
        import torch

        return torch.empty(torch_shape(code, shape), dtype=torch_dtype(code), pin_memory=pin_memory)
    dtype = next((ours for ours, theirs in CODES.items() if theirs == code), None)
    if dtype is not None:
        return convert(Tensor(dtype, shape, b""), framework)
    import numpy as np

    return np.empty(shape, _NUMPY_BYTES[code])


def of_bytes(tensor: Tensor, code: str, shape: tuple[int, ...], framework: Framework) -> Any:
    """Returns a tensor of another library in the memory of one that has its bytes."""
    if framework == "torch":
        from torch.utils.dlpack import from_dlpack

        return from_dlpack(tensor).view(torch_dtype(code)).reshape(torch_shape(code, shape))
    if framework == "numpy" and code in _NUMPY_BYTES:
        return tensor.numpy().view(_NUMPY_BYTES[code]).reshape(shape)
    raise TypeError(f"{framework} has no element type {code} here: open the file with framework='pt'")


def bytes_of_torch(x: Any) -> Any:
    """Returns the bytes of a row-major tensor of PyTorch, in the same memory."""
    torch = sys.modules["torch"]
    flat = x.detach().reshape(-1)
    return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)
