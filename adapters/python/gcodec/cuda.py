"""CUDA tensors, compressed where they are: what crosses the bus is what is kept of them.

    compressor = gcodec.cuda.Compressor(feedback=gcodec.Feedback())
    data = compressor.encode({"w": gradient}, gcodec.TopK(density=0.001))

`gcodec.encode` and `Writer` do this by themselves for tensors of PyTorch, CuPy, JAX and any other with `__dlpack__` or
`__cuda_array_interface__`; a `Compressor` keeps its memory on the device to itself, takes a stream, and refuses what would have to be
copied. The bytes are those that the same tensors make on the host, and so are the residuals of `Feedback`.

No CUDA is needed to import this. It has not run on a device yet: README.md says what was tested how.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gcodec import _native, devices
from gcodec.codecs import Codec, spec_of
from gcodec.errors import DeviceError, InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.limits import Limits
from gcodec.stream import PART_BYTES, Order, UpdateHeader, Writer, native_update
from gcodec.tensors import framework_of
from gcodec.trees import named_tensors

__all__ = ["Compressor", "apply", "available", "on_device", "release_memory", "why_not"]


def why_not() -> str | None:
    """Why there is no CUDA here, in words: no driver, one older than the kernels, no device. None if there is. Whether a device is new
    enough is said when it is first used."""
    try:
        _native.cuda_open()
    except DeviceError as e:
        return str(e)
    return None


def available() -> bool:
    """Whether there is a driver, and a device."""
    return why_not() is None


def on_device(codec: Codec | str) -> bool:
    """Whether tensors of this codec are compressed on the device that they are on; if not, they are copied to the host first."""
    return devices.on_device(spec_of(codec))


def release_memory() -> None:
    """Frees the memory on devices that `gcodec.encode` and `Writer` keep for the next update, one for each device; not what a
    `Feedback` or a `Compressor` has."""
    _native.cuda_release()


def apply(data: Any, tensors: Any, *, add: bool = False, stream: Any = None, limits: Limits | None = None) -> UpdateHeader:
    """Puts the last update of a stream into CUDA tensors, in the place of what is in them or added to it; not into JAX's, which never change.

    What crosses the bus are positions and numbers of what the update has: 12 bytes for an element of a sparse block, 4 for one of a dense
    block. The blocks follow each other in the stream's order, so that the result is the same bits every time: those of `gcodec.decode`, or
    with `add` of adding each block to the elements in the order of the stream, in 32-bit floats rounded to the tensors' type.

    Args:
        data: the bytes: any object with the buffer protocol.
        tensors: a tree of tensors with the update's names, types and shapes: f32, f16 or bf16, row-major, all on one device.
        add: whether what is in the tensors stays, and the update is added to it. Otherwise they become the update, zero where it says nothing.
        stream: as for `Compressor.encode`. If one is given, or some tensor is PyTorch's, this returns when the work is in the stream, and the
            tensors must stay until it is done; otherwise it is done when this returns.
        limits: what to allow.

    Returns:
        The update's header.

    Raises:
        FormatError, UnsupportedError, LimitError: as for `gcodec.decode`.
        InputError: the update is a delta, or of other tensors; or a tensor is not on the device as `Compressor.encode` has it, or `read-only`.
        DeviceError: too little memory. Nothing was written then; if a call of the driver fails later, a part may be.
    """
    named = named_tensors(tensors)
    where = {name: devices.cuda_device(x) for name, x in named.items()}
    for name, x in named.items():
        # JAX's arrays never change, which its capsules do not say.
        if framework_of(x) == "jax":
            raise InputError(f"tensor {name!r} is JAX's, which is not written to: give gcodec.decode's result to jax.device_put", kind="read-only")
    for name, device in where.items():
        if device is None:
            raise InputError(f"tensor {name!r} is not on a CUDA device", kind="wrong-device")
    device = next((d for d in where.values() if d is not None and d >= 0), 0)
    for name, other in where.items():
        if other not in (device, -1):
            raise InputError(f"tensor {name!r} is on CUDA device {other}, another one on {device}", kind="wrong-device")
    _native.cuda_open(device)
    number = None if stream is None else devices.stream_number(stream)
    lent = devices.lend(named, device, number)
    for name, one in lent.items():
        if one.read_only:
            raise InputError(f"tensor {name!r} is read-only", kind="read-only")
        if not one.contiguous:
            raise InputError(f"tensor {name!r} does not lie row-major", kind="strides")
    wait = number is None and not any(devices.is_torch(x) for x in named.values())
    header = _native.cuda_apply(memoryview(data).cast("B"), limits or Limits(), list(lent.items()), add, wait)
    return UpdateHeader(**header)


class Compressor:
    """Memory on a device to compress in, kept from update to update. Its tensors are on this device, row-major.

    A call puts its work into the stream, after what wrote the tensors, and returns when it is done with them. It may be used from several
    threads, which take turns.

    Args:
        device: the number of the device.
        feedback: what lossy codecs leave out of one update and add to the next; it stays on the device until it is asked for, two
            32-bit floats for each element. None: nothing is remembered.

    Raises:
        DeviceError: there is no driver, an older one than the kernels need, no such device, or one older than the kernels.
    """

    def __init__(self, device: int = 0, *, feedback: Feedback | None = None) -> None:
        _native.cuda_open(device)
        self.device = device
        self.feedback = feedback
        self._memory = _native.Feedback() if feedback is None else feedback._native

    def encode(
        self,
        tree: Any,
        codec: Codec | str,
        *,
        rules: Mapping[str, Codec | str] | None = None,
        header: UpdateHeader | None = None,
        non_finite: Literal["reject", "zero"] = "reject",
        order: Order = None,
        stream: Any = None,
    ) -> bytes:
        """A stream of one update: the bytes of `gcodec.encode`.

        Tensors on the host, and those whose codec is not `on_device`, are compressed on the host.

        Args:
            tree, codec, rules, header, non_finite, order: as in `gcodec.encode`.
            stream: in which the work is done: a CUDA stream's number (0 and 1: the legacy default stream), or a stream of PyTorch,
                CuPy, Numba, or with `__cuda_stream__`. None is PyTorch's current stream for its tensors, or else the legacy default
                stream. The tensors' own libraries are asked to let it wait for what they have still to do.

        Raises:
            InputError: a tensor on another device (`wrong-device`), not row-major (`strides`), not aligned to its elements
                (`misaligned`), or not in the device's memory (`not-device-memory`); and as `gcodec.encode`. The feedback is as it was.
            DeviceError: too little memory, or a call of the driver that failed. The feedback is as it was.
        """
        update = self._update(tree, codec, rules, header, non_finite, order, stream)
        return _native.Encoder(PART_BYTES, True, True).whole(update)

    def write(
        self,
        writer: Writer,
        tree: Any,
        codec: Codec | str,
        *,
        rules: Mapping[str, Codec | str] | None = None,
        header: UpdateHeader | None = None,
        non_finite: Literal["reject", "zero"] = "reject",
        order: Order = None,
        stream: Any = None,
    ) -> int:
        """Writes an update into a `Writer`; the arguments are those of `encode`. Gives the number of its bytes."""
        return writer._write(lambda: self._update(tree, codec, rules, header, non_finite, order, stream))

    def _update(
        self,
        tree: Any,
        codec: Codec | str,
        rules: Mapping[str, Codec | str] | None,
        header: UpdateHeader | None,
        non_finite: str,
        order: Order,
        stream: Any,
    ) -> _native._Update:
        if isinstance(codec, Dgc):
            raise InputError("Deep Gradient Compression is the host's: give it to gcodec.encode")
        number = None if stream is None else devices.stream_number(stream)
        return native_update(
            tree,
            codec,
            rules=rules,
            feedback=self.feedback,
            header=header,
            non_finite=non_finite,
            order=order,
            on=devices.Work(self.device, number, self._memory),
        )

    def __repr__(self) -> str:
        return f"Compressor(device={self.device}, feedback={self.feedback!r})"
