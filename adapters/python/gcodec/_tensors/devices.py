"""The choice between compressing CUDA tensors on their device and copying them to the host."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gcodec import _native
from gcodec._tensors.dlpack import ML_DTYPES, given, local, readable
from gcodec._tensors.elements import CODES, code_of_torch
from gcodec._tensors.refusals import naming
from gcodec.errors import DeviceError, InputError

# DLPack's device type of CUDA.
_CUDA = 2
# Element types that the kernels take.
_DTYPES = ("f32", "f16", "bf16")
_log = logging.getLogger("gcodec.cuda")
_logged: set[str] = set()


@dataclass(frozen=True)
class Work:
    """A device, a stream on it, and the native module's memory there."""

    device: int
    stream: int | None
    memory: _native.Feedback


def on_device(spec: str) -> bool:
    """Whether a codec runs on CUDA devices."""
    return _native.cuda_takes(spec)


def is_torch(x: Any) -> bool:
    """Whether `x` is a PyTorch tensor."""
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)


def cuda_device(x: Any) -> int | None:
    """Returns the number of a tensor's CUDA device; -1 for an unknown one (no elements); None for the
    host."""
    if is_torch(x):
        return int(x.device.index) if x.is_cuda else None
    if hasattr(x, "__dlpack_device__"):
        kind, number = x.__dlpack_device__()
        return int(number) if kind == _CUDA else None
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        return None
    return -1 if 0 in interface["shape"] else _native.cuda_device_of(interface["data"][0])


def can_open(device: int, instead: str = "CUDA tensors are copied to the host and compressed there") -> bool:
    """Whether the kernels run on a CUDA device: not if it or its driver is too old, which is logged once,
    with what happens `instead`."""
    try:
        _native.cuda_open(device)
    except DeviceError as e:
        if e.kind not in ("old-driver", "old-device"):
            raise
        _log_once(_log.warning, f"{instead}: {e}")
        return False
    return True


def stream_number(stream: Any) -> int:
    """Returns the driver's number of a stream.

    stream: an int, or a stream of PyTorch, CuPy, Numba, or with `__cuda_stream__`. Others are a TypeError.
    """
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for attribute in ("cuda_stream", "ptr", "handle"):
        stream = getattr(stream, attribute, stream)
    # Numba's handle is a C pointer; the value of a null pointer is None.
    stream = (stream.value or 0) if hasattr(stream, "value") else stream
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
        raise TypeError(
            f"stream is a {type(stream).__name__}: give a number, or a stream of PyTorch, CuPy, Numba or with __cuda_stream__"
        )
    return stream


def lend(tensors: dict[str, Any], device: int, stream: int | None) -> dict[str, _native.Lent]:
    """Borrows tensors on a device for work in a stream, which waits for the libraries that still write them.

    stream: None is PyTorch's current stream if a tensor is PyTorch's, otherwise the legacy default stream.
    """
    theirs = {name for name, x in tensors.items() if is_torch(x)}
    current: Any = contextlib.nullcontext()
    by_address = bool(theirs) and stream is None
    if theirs:
        # PyTorch exports only tensors on its current device.
        cuda = sys.modules["torch"].cuda
        current = cuda.device(device)
        if stream is None:
            stream = cuda.current_stream(device).cuda_stream
    out = {}
    with current:
        for name, x in tensors.items():
            dtype = None
            if name in theirs:
                # As on the host: without history and lazy negation.
                x = x.detach()
                x = x.resolve_neg() if x.is_neg() else x
                if by_address and (own := _element_type(x)) is not None:
                    out[name] = _native.lend_at(x, (x.data_ptr(), own), x.shape, x.stride(), (device, stream or 0))
                    continue
                if x.element_size() == 1 and x.is_floating_point():
                    # DLPack of older versions has no code for them.
                    dtype = name_of_torch(x.dtype)
                    x = x.view(sys.modules["torch"].uint8)
            elif not hasattr(x, "__dlpack_device__"):
                # Only the CUDA Array Interface lacks names for some types.
                dtype = ML_DTYPES.get(getattr(getattr(x, "dtype", None), "name", ""))
            out[name] = _native.lend(x, stream or 0, device, dtype)
    return out


def _element_type(x: Any) -> str | None:
    """Returns the element type of a strided tensor of PyTorch; None for others, and for types that only
    DLPack can name."""
    torch = sys.modules["torch"]
    return name_of_torch(x.dtype) if type(x) is torch.Tensor and x.layout is torch.strided else None


@functools.cache
def name_of_torch(dtype: Any) -> str | None:
    """Returns the element type of whole bytes that a type of PyTorch is; None if there is none."""
    code = code_of_torch(dtype)
    # Two elements in each byte have another shape here.
    return next((ours for ours, theirs in CODES.items() if theirs == code and code != "F4"), None)


def place(tensors: dict[str, Any], specs: list[str], on: Work | None = None) -> list[tuple[str, Any, str | None]]:
    """Returns named tensors as the native module's encoder takes them: on their device, or on the host.

    Tensors of one codec share blocks. They go the same way together, so the bytes do not depend on it.
    """
    where = {name: number for name, x in tensors.items() if (number := cuda_device(x)) is not None}
    if not where:
        return given(tensors)
    spec_by_name = dict(zip(tensors, specs if len(specs) == len(tensors) else specs * len(tensors), strict=True))
    lent: dict[str, _native.Lent] = {}
    for spec in dict.fromkeys(spec_by_name[name] for name in where):
        names = [name for name in tensors if spec_by_name[name] == spec]
        lent |= _lend_all(spec, {name: tensors[name] for name in names}, where, on)
    return [(name, lent[name], None) if name in lent else (name, *naming(name, readable, x)) for name, x in tensors.items()]


def _lend_all(spec: str, tensors: dict[str, Any], where: dict[str, int], on: Work | None) -> dict[str, _native.Lent]:
    """Borrows all tensors of a codec; returns none if they are to be copied to the host."""

    def to_host(why: str) -> dict[str, _native.Lent]:
        _log_once(_log.debug, f"{spec.partition(':')[0]}: CUDA tensors are copied to the host and compressed there: {why}")
        return {}

    if not on_device(spec):
        return to_host("the codec does not run on devices")
    devices = {where.get(name) for name in tensors} - {-1}
    if on is not None:
        wrong = [name for name in tensors if where.get(name, -1) not in (-1, on.device)]
        if wrong:
            number = where[wrong[0]]
            raise InputError(f"tensor {wrong[0]!r} is on CUDA device {number}, but the compressor on {on.device}", kind="wrong-device")
    if None in devices:
        return to_host("tensors that share its blocks are on the host")
    if len(devices) > 1:
        return to_host("tensors that share its blocks are on several devices")
    device = next((d for d in devices if d is not None), on.device if on is not None else 0)
    if on is not None:
        _native.cuda_open(device)
    elif not can_open(device):
        return {}
    lent = lend(tensors, device, None if on is None else on.stream)
    for name, one in lent.items():
        if one.dtype not in _DTYPES:
            return to_host(f"the kernels do not take {one.dtype}")
        if not one.contiguous:
            if on is not None:
                raise InputError(f"tensor {name!r} is not row-major: give a contiguous copy", kind="strides")
            return to_host("a tensor is not row-major")
    return lent


def place_changes(
    tensors: dict[str, Any], bases: dict[str, Any], specs: list[str]
) -> tuple[list[tuple[str, Any, str | None]], list[tuple[str, Any, str | None]]] | None:
    """Returns the tensors of an update of deltas and their bases as the native module's encoder takes them on
    their device; None if they are to be compressed on the host.

    All go the same way, because tensors of several codecs share digests.
    """
    if not tensors or any(spec.partition(":")[0] != "delta" for spec in specs) or not tensors.keys() <= bases.keys():
        return None
    bases = {name: local(bases[name]) for name in tensors}
    where = {cuda_device(x) for x in (*tensors.values(), *bases.values())} - {-1}
    device = next(iter(where), None)
    if device is None or len(where) > 1:
        return None
    if not can_open(device):
        return None
    # Together, so that they are borrowed for work in one stream.
    both = {f"0{name}": x for name, x in tensors.items()} | {f"1{name}": x for name, x in bases.items()}
    lent = lend(both, device, None)
    for name in tensors:
        new, base = lent[f"0{name}"], lent[f"1{name}"]
        fits = (new.dtype, new.shape) == (base.dtype, base.shape) and new.dtype in _DTYPES
        if not (fits and new.contiguous and base.contiguous):
            _log_once(_log.debug, f"deltas: CUDA tensors are copied to the host and compressed there: {name!r} or its base")
            return None
    return [(name, lent[f"0{name}"], None) for name in tensors], [(name, lent[f"1{name}"], None) for name in tensors]


def _log_once(level: Callable[[str], None], message: str) -> None:
    """Logs a message once."""
    if message not in _logged:
        _logged.add(message)
        level(message)
