"""Compression of CUDA tensors on their device, so that only compressed data leaves the GPU.

    compressor = gcodec.cuda.Compressor(feedback=gcodec.Feedback())
    data = compressor.encode({"w": gradient}, gcodec.TopK(density=0.001))

`gcodec.encode` and `Writer` do this too, for tensors of PyTorch, CuPy, JAX and any other library with
`__dlpack__` or `__cuda_array_interface__`. A `Compressor` adds device memory of its own, a choice of stream,
and errors instead of copies to the host. `encode` and `Writer` compare deltas with their base on the device
if both are there, so that only changes leave the GPU. The bytes, and the residuals of a `Feedback`, are those
that the same tensors give on the host.

Importing this module does not need CUDA. docs/cuda.md says how it was tested.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from gcodec import _native
from gcodec._tensors import devices
from gcodec._tensors.dlpack import framework_of
from gcodec._tensors.trees import named_tensors
from gcodec._tensors.update import PART_BYTES, native_update
from gcodec.codecs import Codec, spec_of
from gcodec.errors import DeviceError, InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.options import Options, resolve
from gcodec.stream import Writer

__all__ = ["Compressor", "apply", "available", "on_device", "release_memory", "why_not"]


def why_not() -> str | None:
    """Returns why CUDA cannot be used (no driver, an old driver, no device), or None if it can.

    The compute capability of a device is checked at its first use.
    """
    try:
        _native.cuda_open()
    except DeviceError as e:
        return str(e)
    return None


def available() -> bool:
    """Whether a CUDA driver and a device are present."""
    return why_not() is None


def on_device(codec: Codec | str) -> bool:
    """Whether CUDA tensors are compressed on their device with this codec. Otherwise they are copied to the
    host, except for a delta whose base is on the same device."""
    return devices.on_device(spec_of(codec))


def release_memory() -> None:
    """Frees the device memory that `gcodec.encode` and `Writer` hold for the next update.

    The memory of a `Feedback` or a `Compressor` stays.
    """
    _native.cuda_release()


def apply(data: Any, tensors: Any, *, add: bool = False, stream: Any = None, limits: Limits | None = None) -> UpdateHeader:
    """Writes the last update of a stream into CUDA tensors, or adds it to them.

    Positions and values cross the bus: 12 bytes for each element of a sparse block, 4 bytes for each element
    of a dense block. Blocks are applied in the order of the stream, so the bits are the same every time:
    those of `gcodec.decode`; or with `add`, those of adding each block to the elements in f32, rounded to the
    tensor's type.

    Args:
        data: the bytes: any object with the buffer protocol.
        tensors: a tree of tensors with the names, types and shapes of the update: f32, f16 or bf16,
            row-major, on one device, not of JAX (its arrays are immutable).
        add: add the update to the tensors. Otherwise they become the update, with 0 for the elements that it
            does not have.
        stream: as in `Compressor.encode`. With a stream, or if a tensor is PyTorch's, the call returns when
            the work is queued in the stream, and the tensors must live until the work is done. Otherwise it
            returns when the work is done.
        limits: limits on the stream of updates. Default: `Limits()`.

    Returns:
        The header of the update.

    Raises:
        FormatError, UnsupportedError, LimitError: as in `gcodec.decode`.
        InputError: the update is a delta or has other tensors, or a tensor is not as above (`wrong-device`,
            `strides`, `misaligned`, `not-device-memory`, `read-only`).
        DeviceError: device memory is exhausted, in which case the tensors are unchanged; or a driver call
            failed, in which case they may be partly written.
    """
    named = named_tensors(tensors)
    device = _one_device(named)
    _native.cuda_open(device)
    number = None if stream is None else devices.stream_number(stream)
    lent = devices.lend(named, device, number)
    for name, one in lent.items():
        if one.read_only:
            raise InputError(f"tensor {name!r} is read-only: give a writable tensor", kind="read-only")
        if not one.contiguous:
            raise InputError(f"tensor {name!r} is not row-major: give a contiguous tensor", kind="strides")
    wait = number is None and not any(devices.is_torch(x) for x in named.values())
    header = _native.cuda_apply(memoryview(data).cast("B"), limits or Limits(), list(lent.items()), add, wait)
    return UpdateHeader(**header)


def _one_device(named: dict[str, Any]) -> int:
    """Returns the device of all tensors, which may be written to."""
    for name, x in named.items():
        # A DLPack capsule of JAX does not say that the array is immutable.
        if framework_of(x) == "jax":
            message = f"tensor {name!r} is a JAX array, which is immutable: give gcodec.decode's result to jax.device_put"
            raise InputError(message, kind="read-only")
    where = {name: devices.cuda_device(x) for name, x in named.items()}
    for name, device in where.items():
        if device is None:
            raise InputError(f"tensor {name!r} is not on a CUDA device", kind="wrong-device")
    device = next((d for d in where.values() if d is not None and d >= 0), 0)
    for name, other in where.items():
        if other not in (device, -1):
            raise InputError(f"tensor {name!r} is on CUDA device {other}, another one on {device}", kind="wrong-device")
    return device


class Compressor:
    """A compressor for row-major tensors on one CUDA device, which keeps its device memory between updates.

    A call queues its work in the stream, after the work that writes the tensors, and returns when it has
    finished with them. Threads may share a compressor; they take turns.

    Args:
        device: number of the device. Default: 0.
        feedback: residuals of error feedback, which stay on the device until they are read: 8 bytes for each
            element. Default: None, no error feedback.

    Raises:
        DeviceError: the driver or the device is missing, or older than the kernels need.
    """

    def __init__(self, device: int = 0, *, feedback: Feedback | None = None) -> None:
        _native.cuda_open(device)
        self.device = device
        self.feedback = feedback
        self._memory = _native.Feedback() if feedback is None else feedback._native

    def encode(
        self, tree: Any, codec: Codec | str, *, stream: Any = None, **options: Unpack[Options]
    ) -> bytes:
        """Encodes a tree of tensors as a stream of one update: the bytes of `gcodec.encode`.

        Tensors on the host, and tensors of a codec that is not `on_device`, are compressed on the host.

        Args:
            tree, codec: as in `gcodec.encode`.
            options: see `gcodec.Options`. Used: rules, header, non_finite, order.
            stream: the stream to work in: a CUDA stream's number (0 and 1 are the legacy default stream), or
                a stream of PyTorch, CuPy, Numba, or with `__cuda_stream__`. It waits for the libraries that
                still write the tensors. Default: PyTorch's current stream for its tensors, otherwise the
                legacy default stream.

        Raises:
            InputError: a tensor is on another device (`wrong-device`), not row-major (`strides`), not aligned
                to its elements (`misaligned`), or not in device memory (`not-device-memory`); or as in
                `gcodec.encode`. The feedback is unchanged.
            DeviceError: device memory is exhausted, or a driver call failed. The feedback is unchanged.
        """
        update = self._update("Compressor.encode", tree, codec, options, stream)
        return _native.Encoder(PART_BYTES, True, True).whole(update)

    def write(
        self, writer: Writer, tree: Any, codec: Codec | str, *, stream: Any = None, **options: Unpack[Options]
    ) -> int:
        """Writes an update to a `Writer` and returns its size in bytes. The other arguments are those of
        `encode`."""
        return writer._write(lambda: self._update("Compressor.write", tree, codec, options, stream))

    def _update(
        self, where: str, tree: Any, codec: Codec | str, options: Options, stream: Any
    ) -> _native._Update:
        if isinstance(codec, Dgc):
            raise InputError("Deep Gradient Compression runs on the host: give it to gcodec.encode")
        chosen = resolve(where, ("rules", "header", "non_finite", "order"), options)
        number = None if stream is None else devices.stream_number(stream)
        on = devices.Work(self.device, number, self._memory)
        return native_update(where, tree, codec, replace(chosen, feedback=self.feedback), on)

    def __repr__(self) -> str:
        return f"Compressor(device={self.device}, feedback={self.feedback!r})"
