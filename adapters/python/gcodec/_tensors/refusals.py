"""Tensors that gcodec does not take, each with its reason and what to give in its place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from gcodec._tensors.libraries import ML_DTYPES, framework_of
from gcodec.errors import InputError

T = TypeVar("T")

_PLAIN = ("bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_TAKEN = {*_PLAIN, *ML_DTYPES}
_BYTES = "give its bits as bytes, with a view as uint8"


def check_taken(name: str, x: Any) -> None:
    """Raises TypeError if gcodec takes no tensor of this kind."""
    if (reason := refusal(x)) is not None:
        raise TypeError(f"tensor {name!r} {reason}")


def refusal(x: Any) -> str | None:
    """Returns the reason why gcodec does not take a tensor of PyTorch, NumPy or JAX, as the rest of a
    sentence that begins with the tensor; None if its kind is taken."""
    framework = framework_of(x)
    if framework == "torch":
        return _of_torch(x)
    if framework == "numpy" and type(x).__name__ == "MaskedArray":
        return "is masked: give x.filled(..), and x.mask by another name"
    if framework in ("numpy", "jax"):
        return _of_dtype(x.dtype)
    return None


def naming(name: str, take: Callable[[Any], T], x: Any) -> T:
    """Calls `take` with a tensor. Its errors name the tensor."""
    try:
        return take(x)
    except InputError as e:
        raise InputError(f"tensor {name!r}: {e}", kind=e.kind) from e
    except (TypeError, BufferError) as e:
        # Types of their own, such as JAX's errors about tracers, stay what they are.
        if type(e) not in (TypeError, BufferError):
            raise
        raise type(e)(f"tensor {name!r}: {e}") from e
    except (RuntimeError, NotImplementedError) as e:
        if type(e) not in (RuntimeError, NotImplementedError):
            raise
        raise TypeError(f"tensor {name!r} is a {type(x).__name__}, which cannot be copied to the host: {e}") from e


def _of_torch(x: Any) -> str | None:
    torch = sys.modules["torch"]
    if x.is_nested:
        return "is nested: give the tensors of x.unbind(), each with a name"
    if x.layout is not torch.strided:
        return f"is sparse ({x.layout}): give x.to_dense(), or its indices and values, each with a name"
    if x.is_quantized:
        return f"is quantised ({x.dtype}): give x.int_repr(), and its scale and zero point by other names"
    if x.device.type == "meta":
        return "is on the device 'meta', so it has no elements: give it after they were loaded"
    if type(x).__name__ == "FakeTensor":
        return "is a FakeTensor, which has no elements: give it after tracing"
    return _of_torch_dtype(x.dtype)


@functools.lru_cache(maxsize=64)
def _of_torch_dtype(dtype: Any) -> str | None:
    name = str(dtype).removeprefix("torch.")
    if name in _TAKEN:
        return None
    if dtype.is_complex:
        return f"is {name}, and gcodec has no complex numbers: give torch.view_as_real(x)"
    return f"is {name}, an element type that gcodec does not have: {_BYTES}"


@functools.lru_cache(maxsize=64)
def _of_dtype(dtype: Any) -> str | None:
    """`dtype`: of NumPy, or one of JAX's own."""
    name, kind = getattr(dtype, "name", str(dtype)), getattr(dtype, "kind", None)
    if name in _TAKEN:
        return None
    if kind == "O":
        return "is an array of objects: give arrays of numbers, each with a name"
    if kind == "c":
        return f"is {name}, and gcodec has no complex numbers: give its real and its imaginary part, each with a name"
    if kind in ("M", "m"):
        return f"is {dtype}, a time: give its integers, with a view as int64"
    if kind in ("U", "S"):
        return f"is {dtype}, a text: leave it out"
    if getattr(dtype, "names", None):
        return "is an array of records: give its fields, each with a name"
    if kind == "f":
        return f"is {name}: give x.astype(float64), which rounds it"
    return f"is {name}, an element type that gcodec does not have: {_BYTES}"
