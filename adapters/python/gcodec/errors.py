"""The exceptions of gcodec: one tree, which mirrors the errors of the Rust library.

`fault` names the cause: `world` (reading or writing failed), `bytes` (they violate the format),
`newer writer` (they need a newer reader), `limits` (they exceed the reader's limits) or `caller`.
"""

from __future__ import annotations

from typing import Any


class GcodecError(Exception):
    """Base of all errors of gcodec.

    Attributes:
        kind: the name of the error in the specification's vectors, such as `truncated`; or `unsupported`,
            `limit`, `io`, `input`, or `non_finite` for NaN, infinity, or a value beyond the range of f32
            under a lossy codec.
        fault: the cause, as listed in `gcodec.errors`.
        offset: byte offset from the beginning of the stream, or None.
        frame, block, tensor: number of the frame, block or tensor, from 0, or None.
    """

    def __init__(
        self,
        message: str = "",
        *,
        kind: str = "input",
        fault: str = "caller",
        offset: int | None = None,
        frame: int | None = None,
        block: int | None = None,
        tensor: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.fault = fault
        self.offset = offset
        self.frame = frame
        self.block = block
        self.tensor = tensor

    def __reduce__(self) -> Any:
        # Pickling an exception keeps `args` only. The keyword arguments travel as attributes.
        return (type(self), (str(self),), self.__dict__)


class FormatError(GcodecError):
    """The bytes violate the format: they are corrupt or truncated."""


class UnsupportedError(GcodecError):
    """The bytes use a feature that this reader does not have, for instance of a newer version."""


class LimitError(GcodecError):
    """The bytes exceed a limit of the reader."""


class ConflictError(GcodecError):
    """Another publisher published this version of a store first. Nothing was published."""


class PoisonedError(GcodecError):
    """Loading weights into an engine failed half-way: the weights are neither the old nor the new version.

    Only a version with all tensors restores it.
    """


class InputError(GcodecError, ValueError):
    """An argument or an input tensor is wrong, or a base, index set or model is missing."""


class DeviceError(GcodecError):
    """A CUDA device cannot do the work.

    `kind` is `no-driver`, `old-driver`, `no-device` (no device, or none with that number), `old-device`,
    `out-of-memory`, or `cuda` for a driver call that failed.

    A wrong tensor on a device is an InputError of the kind `wrong-device`, `misaligned`, `not-device-memory`,
    `device-dtype`, `strides` or `read-only`.
    """


class IoError(GcodecError, OSError):
    """Reading or writing failed."""

    def __init__(self, message: str = "", *, errno: int | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.errno = errno

    def __reduce__(self) -> Any:
        return (type(self), (str(self),), {**self.__dict__, "errno": self.errno})


def check_u64(owner: str, name: str, value: Any) -> None:
    """Raises InputError unless `value` is an integer from 0 to 2^64 - 1."""
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise InputError(f"{name} of {owner} is {value!r}: use a whole number from 0 to 2^64 - 1")
