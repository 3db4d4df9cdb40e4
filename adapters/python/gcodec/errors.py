"""What went wrong, where, and whose fault it is: one tree, the library's.

`fault` is one of `world` (reading or writing failed), `bytes` (they are not what the format allows), `newer writer` (they need
a reader that knows more), `limits` (they ask for more than the reader allows) and `caller`.
"""

from __future__ import annotations

from typing import Any


class GcodecError(Exception):
    """Any error of gcodec.

    Attributes:
        kind: its name in the specification's vectors, such as `truncated`; or `unsupported`, `limit`, `io`, `input`.
        fault: whose fault it is.
        offset: byte offset from the beginning of the stream, or None.
        frame, block, tensor: their numbers, the first is 0, or None.
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
        # Keyword arguments are not among `args`: they travel as attributes.
        return (type(self), (str(self),), self.__dict__)


class FormatError(GcodecError):
    """The bytes are not what the format allows."""


class UnsupportedError(GcodecError):
    """The bytes may be well formed, but need a reader that knows more than this one."""


class LimitError(GcodecError):
    """The bytes ask for more than the reader's limits allow."""


class InputError(GcodecError, ValueError):
    """An argument, an input tensor or a missing companion: base, index set, model."""


class DeviceError(GcodecError):
    """A CUDA device cannot do what was asked for. `kind` is one of `no-driver`, `old-driver`, `no-device` (none, or none of that
    number), `old-device`, `out-of-memory`, and `cuda` for a call of the driver that failed.

    What is wrong with a tensor that is said to be on a device is an InputError of the kind `wrong-device`, `misaligned`,
    `not-device-memory`, `device-dtype`, `strides` or `read-only`.
    """


class IoError(GcodecError, OSError):
    """Reading or writing failed."""

    def __init__(self, message: str = "", *, errno: int | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.errno = errno

    def __reduce__(self) -> Any:
        return (type(self), (str(self),), {**self.__dict__, "errno": self.errno})


def check_u64(owner: str, name: str, value: Any) -> None:
    """Raises InputError for what is not a whole number of 64 bits."""
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise InputError(f"{name} of {owner} is {value!r}: a whole number from 0 to 2^64 - 1")
