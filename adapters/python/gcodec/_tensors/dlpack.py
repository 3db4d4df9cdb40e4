"""Exchange of tensors with NumPy, PyTorch, JAX and others through DLPack, without a copy on the host.

gcodec depends on none of these libraries. Each is imported when one of its tensors is requested.

A tensor on another device is copied to the host by its own library, in the order of that library's current
stream, unless it is compressed on its CUDA device (`gcodec.cuda`).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from gcodec._native import Tensor
from gcodec._tensors.libraries import ML_DTYPES as ML_DTYPES
from gcodec._tensors.libraries import Framework as Framework
from gcodec._tensors.libraries import framework_of as framework_of
from gcodec._tensors.refusals import check_taken, naming
from gcodec.errors import InputError

# DLPack devices whose memory the host can read: CPU, and the pinned memory of CUDA and ROCm.
_HOST = (1, 3, 11)

_NAMES = {ours: theirs for theirs, ours in ML_DTYPES.items()}


def is_tensor(x: Any) -> bool:
    """Whether `x` is an object with DLPack or the CUDA Array Interface, or a NumPy scalar."""
    if isinstance(x, type):
        return False
    if (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")) or hasattr(x, "__cuda_array_interface__"):
        return True
    return "numpy" in sys.modules and isinstance(x, sys.modules["numpy"].generic)


def is_on_host(x: Any) -> bool:
    """Whether the host can read the memory of a tensor."""
    if framework_of(x) == "torch":
        return bool(x.device.type == "cpu")
    if hasattr(x, "__dlpack_device__"):
        return x.__dlpack_device__()[0] in _HOST
    return not hasattr(x, "__cuda_array_interface__")


def local(x: Any) -> Any:
    """Returns the part of a DTensor in this process, a JAX array on several devices as one, and anything else
    as it is."""
    framework = framework_of(x)
    kind: type = type(x)
    if framework == "torch" and _is_divided(kind):
        return x.detach().to_local()
    if framework != "jax" or len(x.sharding.device_set) == 1:
        return x
    if x.is_fully_replicated:
        return x.addressable_data(0)
    if not x.is_fully_addressable:
        raise InputError("a JAX array is partly in other processes: give the arrays of x.addressable_shards, each with a name")
    import jax

    return jax.device_get(x)


@functools.lru_cache(maxsize=64)
def _is_divided(kind: type) -> bool:
    """Whether tensors of this class are DTensors. To look for what a tensor has not takes microseconds."""
    return hasattr(kind, "to_local")


def readable(x: Any) -> tuple[Any, str | None]:
    """Returns an object that the native module can borrow for `x`, and the element type if DLPack has no code
    for it."""
    framework = framework_of(x)
    if framework in ("torch", "jax"):
        x = local(x)
        framework = framework_of(x)
    if framework == "torch":
        # PyTorch does not export a tensor with a history.
        x = x.detach()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
        return (x if x.device.type == "cpu" else x.cpu()), None
    if framework == "jax":
        if x.__dlpack_device__()[0] in _HOST:
            return x, None
        import jax

        framework, x = "numpy", jax.device_get(x)
    if framework == "numpy":
        return _readable_numpy(x)
    if not hasattr(x, "__dlpack_device__"):
        raise BufferError(
            f"a {type(x).__name__} has the CUDA Array Interface only, so gcodec cannot copy it to the host: copy it with its "
            "own library"
        )
    if x.__dlpack_device__()[0] not in _HOST:
        x = _OnHost(x)
    return x, None


def _readable_numpy(x: Any) -> tuple[Any, str | None]:
    import numpy as np

    x = np.asarray(x)
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    # NumPy makes `dtype.name` anew each time, which takes as long as everything else here.
    dtype = ML_DTYPES.get(x.dtype.type.__name__)
    if dtype is not None:
        x = x.view(np.uint8 if x.dtype.itemsize == 1 else np.uint16)
    if not x.flags.writeable and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        # NumPy before 2.1 does not export read-only arrays.
        x = x.copy()
    return x, dtype


class _OnHost:
    """A tensor on another device, exported as the copy on the host that its library makes."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        try:
            return self._x.__dlpack__(max_version=max_version, dl_device=(1, 0), copy=True)
        except TypeError:
            # A TypeError would mean a producer without `max_version`.
            raise BufferError(
                f"a {type(self._x).__name__} on DLPack device {self._x.__dlpack_device__()[0]} cannot be copied to the "
                "host through DLPack: copy it with its own library"
            ) from None


def given(tensors: dict[str, Any]) -> list[tuple[str, Any, str | None]]:
    """Returns named tensors as the native module takes them."""
    out = []
    for name, x in tensors.items():
        check_taken(name, x)
        out.append((name, *naming(name, readable, x)))
    return out


def convert(tensor: Tensor, framework: Framework | None) -> Any:
    """Returns a tensor of `framework` in the same memory, or `tensor` itself if `framework` is None."""
    if framework is None:
        return tensor
    if framework == "numpy":
        return to_numpy(tensor)
    if framework == "torch":
        return to_torch(tensor)
    if framework == "jax":
        return to_jax(tensor)
    raise InputError(f"framework is {framework!r}: use numpy, torch, jax or None")


def to_numpy(tensor: Tensor) -> Any:
    """Returns a NumPy array in the same memory. bf16 and 8-bit floats need ml_dtypes."""
    import numpy as np

    if tensor.dtype not in _NAMES:
        return np.from_dlpack(_shareable(tensor, "NumPy"))
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"NumPy has no element type for {tensor.dtype}: install ml_dtypes, or take the bits as unsigned integers with "
            "bits().numpy()"
        ) from None
    return np.from_dlpack(tensor.bits()).view(getattr(ml_dtypes, _NAMES[tensor.dtype]))


def to_torch(tensor: Tensor) -> Any:
    """Returns a PyTorch tensor on the CPU in the same memory."""
    from torch.utils.dlpack import from_dlpack

    # Of a capsule, PyTorch asks no questions in Python.
    return from_dlpack(_shareable(tensor, "PyTorch").__dlpack__())


def to_jax(tensor: Tensor) -> Any:
    """Returns a JAX array on the CPU, in the same memory where JAX allows it.

    JAX copies tensors of fewer than 1024 bytes. Like `jax.numpy.asarray`, it narrows 64-bit elements to 32
    bits unless `jax_enable_x64` is set.
    """
    import jax
    import jax.numpy as jnp

    wide = tensor.dtype in ("f64", "i64", "u64")
    if tensor.size == 0 or (wide and not jax.config.jax_enable_x64):  # type: ignore[attr-defined]
        return jnp.asarray(to_numpy(tensor))
    return jax.dlpack.from_dlpack(_shareable(tensor, "JAX"))


def placed_like(new: Any, old: Any) -> Any:
    """Returns a JAX array on the devices of another, if that is on several."""
    if len(old.sharding.device_set) == 1:
        return new
    import jax

    return jax.device_put(new, old.sharding)


def _shareable(tensor: Tensor, whose: str) -> Tensor:
    if tensor.dtype == "f4e2m1":
        raise TypeError(f"{whose} has no element type for {tensor.dtype}: take bits(), the bytes with two elements in each")
    return tensor
