"""The native module. What a program uses of it is in `gcodec`; the rest is for the files of this package."""

from typing import Any, Literal, Protocol, final

__all__ = [
    "Decoder",
    "Dgc",
    "Encoded",
    "Encoder",
    "Feedback",
    "File",
    "Tensor",
    "canonical",
    "decode",
    "default_dgc",
    "default_limits",
    "inspect",
    "is_lossy",
    "library_encode",
    "num_threads",
    "set_num_threads",
]

class _Limits(Protocol):
    @property
    def max_frame_bytes(self) -> int: ...
    @property
    def max_tensors(self) -> int: ...
    @property
    def max_rank(self) -> int: ...
    @property
    def max_name_bytes(self) -> int: ...
    @property
    def max_elements(self) -> int: ...
    @property
    def max_alloc_bytes(self) -> int: ...
    @property
    def max_blocks(self) -> int: ...
    @property
    def max_inflated_bytes(self) -> int: ...
    @property
    def max_definitions(self) -> int: ...

type _Given = list[tuple[str, Any, str | None]]
type _Tensors = list[tuple[str, Tensor]]

@final
class Tensor:
    """A tensor on the host: what decoding gives. Elements are little-endian, row-major.

    It has no arithmetic. `numpy()`, `torch()` and `jax()` give it to those libraries without a copy, and so does each
    library's own `from_dlpack`. What they give shares this tensor's memory: writing to one writes to all.
    """

    def __new__(cls, dtype: str, shape: tuple[int, ...] | list[int], data: bytes) -> Tensor: ...
    @property
    def dtype(self) -> str:
        """The element type's name in the format: `f32`, `bf16`, `f8e4m3fn`, ..."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def data_ptr(self) -> int:
        """The address of the elements: a multiple of 64, if they are 1024 bytes or more."""

    def bits(self) -> Tensor:
        """The same memory as unsigned integers of the elements' width; elements of 4 bits as bytes, in one dimension."""

    def numpy(self) -> Any:
        """A NumPy array in the same memory; bf16 and 8-bit floats by ml_dtypes."""

    def torch(self) -> Any:
        """A PyTorch tensor on the CPU in the same memory."""

    def jax(self) -> Any:
        """A JAX array on the CPU, in the same memory if there are 1024 bytes or more."""

    def tobytes(self) -> bytes:
        """A copy of the bytes."""

    def __len__(self) -> int: ...
    def __reduce__(self) -> Any: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Encoded:
    """Frames that were encoded, with the buffer protocol."""

    def tobytes(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Encoder:
    def __new__(cls, part_bytes: int, index: bool, compress: bool) -> Encoder: ...
    @property
    def offset(self) -> int: ...
    def update(
        self,
        tensors: _Given,
        codecs: list[str],
        header: Any,
        settings: Any,
        base: _Given,
        feedback: Feedback | None = None,
        dgc: Dgc | None = None,
        finish: bool = False,
    ) -> Encoded: ...
    def metadata(self, entries: dict[str, str]) -> Encoded: ...
    def finish(self) -> Encoded: ...

@final
class Decoder:
    def __new__(cls, limits: _Limits, names: set[str] | None) -> Decoder: ...
    def set_base(self, base: _Given) -> None: ...
    def feed(self, data: memoryview | bytes) -> None: ...
    def needed(self) -> int: ...
    def next(self) -> tuple[Literal["update", "metadata", "end"], Any] | None: ...
    def finish(self) -> None: ...

@final
class File:
    def __new__(cls, source: Any, is_path: bool, limits: _Limits) -> File: ...
    def count(self) -> int: ...
    def update(self, number: int) -> tuple[dict[str, Any], list[tuple[str, str, list[int]]], int]: ...
    def find(self, step: int | None) -> int | None: ...
    def tensors(self, number: int, names: set[str] | None, base: _Given) -> _Tensors: ...

@final
class Feedback:
    def __new__(cls) -> Feedback: ...
    def norm(self) -> float: ...
    def reset(self) -> None: ...
    def save(self) -> _Tensors: ...
    def load(self, tensors: _Given) -> None: ...

@final
class Dgc:
    def __new__(cls, settings: Any) -> Dgc: ...
    def codec(self) -> str: ...
    def steps(self) -> int: ...
    def norm(self) -> float: ...
    def save(self) -> _Tensors: ...
    def load(self, settings: Any, steps: int, tensors: _Given) -> None: ...

def canonical(spec: str) -> str: ...
def is_lossy(spec: str) -> bool: ...
def default_limits() -> dict[str, int]: ...
def default_dgc() -> dict[str, Any]: ...
def decode(data: memoryview | bytes, limits: _Limits, names: set[str] | None, base: _Given) -> _Tensors: ...
def inspect(data: memoryview | bytes, limits: _Limits) -> tuple[dict[str, Any], Any]: ...
def library_encode(tensors: _Given, codec: str, keep: bool) -> tuple[bytes | None, float]: ...
def num_threads() -> int:
    """How many threads code: those of RAYON_NUM_THREADS, or one for each core."""

def set_num_threads(threads: int) -> None:
    """Codes with so many threads from now on; 0: as many as at first. The bytes are the same for any number."""
