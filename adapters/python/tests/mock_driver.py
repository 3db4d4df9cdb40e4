"""The mock of the CUDA driver (adapters/cuda/mock_driver), and tensors in its device memory, shared as other
libraries do."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gcodec import _native

ROOT = Path(__file__).resolve().parents[3]
CUDA = ROOT / "adapters/cuda"

DLPACK = {"float32": (2, 32), "float16": (2, 16), "float64": (2, 64), "bfloat16": (4, 16), "int8": (0, 8), "int32": (0, 32), "bool": (6, 8)}


def skip(why: str) -> NoReturn:
    try:
        import pytest
    except ImportError:
        raise RuntimeError(why) from None
    pytest.skip(why)


def build() -> Path:
    """Builds the mock driver unless it is built already. Skips the test, with a message, without a C++
    compiler."""
    chosen = os.environ.get("GCODEC_MOCK_DRIVER")
    if chosen:
        return Path(chosen)
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        skip("no C++ compiler: the mock of the CUDA driver cannot be built")
    if not CUDA.exists():
        skip("adapters/cuda is not here: the mock of the CUDA driver cannot be built")
    hashed = hashlib.sha256(subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout)
    for folder in ("kernels", "cpu_emulator", "mock_driver"):
        for file in sorted((CUDA / folder).iterdir()):
            hashed.update(file.read_bytes())
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    out = target / "mock-driver" / hashed.hexdigest()[:16] / "libcuda.so.1"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        new = out.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++17", "-O2", "-Wno-unknown-pragmas", "-ffp-contract=off", "-fPIC", "-shared"]
        subprocess.run([compiler, *flags, "-o", new, CUDA / "mock_driver/driver.cpp"], check=True)
        new.rename(out)
    return out


class MockDriver:
    """The mock driver, loaded as the package's driver."""

    def __init__(self, path: Path) -> None:
        self.path, self.library = path, ctypes.CDLL(str(path))
        self.library.mock_driver_count.restype = self.library.mock_driver_allocations.restype = ctypes.c_uint64
        self.library.mock_driver_fault.restype = ctypes.c_char_p
        self.library.mock_driver_fail.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        for name, arguments in {
            "cuCtxPushCurrent_v2": [ctypes.c_size_t],
            "cuMemAlloc_v2": [ctypes.c_void_p, ctypes.c_size_t],
            "cuMemFree_v2": [ctypes.c_uint64],
            "cuMemHostAlloc": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint],
            "cuMemFreeHost": [ctypes.c_size_t],
            "cuMemcpyHtoDAsync_v2": [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t],
            "cuStreamCreate": [ctypes.c_void_p, ctypes.c_uint],
            "cuStreamSynchronize": [ctypes.c_size_t],
            "cuStreamWaitEvent": [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint],
            "cuEventCreate": [ctypes.c_void_p, ctypes.c_uint],
            "cuEventRecord": [ctypes.c_size_t, ctypes.c_size_t],
            "cuEventDestroy_v2": [ctypes.c_size_t],
        }.items():
            getattr(self.library, name).argtypes = arguments

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def count(self, name: str) -> int:
        return int(self.library.mock_driver_count(name.encode()))

    def fail(self, name: str, after: int) -> None:
        self.library.mock_driver_fail(name.encode(), after)

    def machine(self, devices: int, version: int) -> None:
        self.library.mock_driver_machine(devices, version)

    def load(self) -> None:
        _native._load_driver(self.path)

    def allocate(self, size: int, device: int = 0) -> int:
        address = ctypes.c_uint64()
        self.call("cuCtxPushCurrent_v2", device + 1)
        self.call("cuMemAlloc_v2", ctypes.byref(address), max(size, 1))
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_size_t()))
        return address.value

    def stream(self) -> int:
        stream = ctypes.c_size_t()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream.value

    def order(self, earlier: int, later: int) -> None:
        """Makes `later` wait for `earlier`, as a library does for the consumer of its tensor."""
        event = ctypes.c_size_t()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        self.call("cuEventRecord", event, earlier)
        self.call("cuStreamWaitEvent", later, event, 0)
        self.call("cuEventDestroy_v2", event)


def loaded() -> Iterator[MockDriver]:
    """Fixture: the mock driver, for the tests of a module. At the end it must not have recorded a fault."""
    driver = MockDriver(build())
    driver.machine(2, 13000)
    driver.load()
    yield driver
    fault = driver.library.mock_driver_fault()
    _native._load_driver(None)
    assert fault is None, fault


class Memory:
    """An array in the mock driver's device memory. `late`: a stream that writes it only when it is waited
    for."""

    def __init__(self, driver: MockDriver, array: np.ndarray, *, device: int = 0, skip: int = 0, late: int | None = None) -> None:
        self.driver, self.device = driver, device
        self.shape, self.dtype, self.size = array.shape, array.dtype, array.nbytes
        self.base = driver.allocate(skip + array.nbytes, device)
        self.address = self.base + skip if array.size else 0
        data = np.ascontiguousarray(array).tobytes()
        self.pinned = ctypes.c_uint64()
        if late is not None:
            driver.call("cuCtxPushCurrent_v2", device + 1)
            driver.call("cuMemHostAlloc", ctypes.byref(self.pinned), len(data), 0)
            ctypes.memmove(self.pinned.value, data, len(data))
            driver.call("cuMemcpyHtoDAsync_v2", self.address, self.pinned.value, len(data), late)
            driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_size_t()))
        elif data:
            ctypes.memmove(self.address, data, len(data))

    def read(self) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(self.address, self.size), self.dtype).reshape(self.shape)

    def __del__(self) -> None:
        self.driver.call("cuMemFree_v2", self.base)
        if self.pinned.value:
            self.driver.call("cuMemFreeHost", self.pinned.value)


class Interface:
    """An array with the CUDA Array Interface, as Numba shares it."""

    def __init__(self, memory: Memory, **changes: Any) -> None:
        self.memory, self.dtype = memory, memory.dtype
        typestr = "<V2" if memory.dtype.name == "bfloat16" else memory.dtype.str
        fields = {"shape": memory.shape, "typestr": typestr, "data": (memory.address, False), "version": 3}
        self.__cuda_array_interface__ = {**fields, "strides": None, **changes}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Legacy(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_NAMES = {_Legacy: ctypes.c_char_p(b"dltensor"), _Versioned: ctypes.c_char_p(b"dltensor_versioned")}
ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


# The targets of capsules. A capsule may outlive its object, and garbage is collected in any order.
_LIVE: list[Any] = []


class Shared:
    """An array with DLPack on a CUDA device, as PyTorch, CuPy and JAX share it; `dl_device` copies it to the
    host."""

    def __init__(
        self, memory: Memory, *, on: int = 0, versioned: bool = True, offset: int = 0, strides: tuple[int, ...] | None = None, flags: int = 0
    ) -> None:
        self.memory, self.dtype = memory, memory.dtype
        self.on, self.versioned, self.offset, self.strides, self.flags = on, versioned, offset, strides, flags
        self.asked: list[dict[str, Any]] = []
        self.type = memory.dtype.name
        self._freed = [0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory.shape

    @property
    def freed(self) -> int:
        """Number of its capsules whose tensors were freed."""
        return self._freed[0]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.memory.device)

    def __dlpack__(self, **given: Any) -> object:
        if not self.versioned and "max_version" in given:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.asked.append(given)
        if given.get("dl_device") == (1, 0):
            self.memory.driver.call("cuStreamSynchronize", self.on)
            return self.memory.read().copy().__dlpack__(max_version=given.get("max_version"))
        stream = given["stream"]
        assert stream != 0, "0 is ambiguous in DLPack"
        if stream != -1:
            self.memory.driver.order(self.on, 0 if stream == 1 else stream)
        rank = len(self.memory.shape)
        row_major = tuple(int(np.prod(self.memory.shape[d + 1 :])) for d in range(rank))
        shape, strides = ((ctypes.c_int64 * rank)(*dims) for dims in (self.memory.shape, self.strides or row_major))
        code, bits = DLPACK[self.type]
        data = self.memory.address - self.offset if self.memory.address else None
        tensor = _Tensor(data, _Device(2, self.memory.device), rank, _Type(code, bits, 1), shape, strides, self.offset)

        held, freed = [self.memory], self._freed

        def delete(_: int) -> None:
            held.clear()
            freed[0] += 1

        deleter = _DELETER(delete)
        kind = _Versioned if self.versioned else _Legacy
        managed = _Versioned(1, 0, None, deleter, self.flags, tensor) if self.versioned else _Legacy(tensor, None, deleter)
        _LIVE.append((managed, shape, strides, deleter))
        return ctypes.pythonapi.PyCapsule_New(ctypes.addressof(managed), _NAMES[kind], None)
