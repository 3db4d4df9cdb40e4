"""The native module. Programs use the names that `gcodec` exports; the others are for this package only."""

from typing import Any, Literal, Protocol, final

__all__ = [
    "Decoder",
    "Dgc",
    "Encoded",
    "Encoder",
    "Feedback",
    "File",
    "Lent",
    "ScaleCom",
    "Tensor",
    "_load_driver",
    "canonical",
    "cuda_apply",
    "cuda_device_of",
    "cuda_open",
    "cuda_release",
    "cuda_takes",
    "decode",
    "default_dgc",
    "default_limits",
    "head_bytes",
    "inspect",
    "is_lossy",
    "lend",
    "library_encode",
    "num_threads",
    "patches",
    "reduce",
    "set_num_threads",
    "shards",
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
    """A decoded tensor on the host, with little-endian elements in row-major order.

    It has no arithmetic. `numpy()`, `torch()`, `jax()` and the `from_dlpack` of each library convert it
    without a copy. The results share this tensor's memory: writing to one writes to all.
    """

    def __new__(cls, dtype: str, shape: tuple[int, ...] | list[int], data: bytes) -> Tensor: ...
    @property
    def dtype(self) -> str:
        """Name of the element type in the format: `f32`, `bf16`, `f8e4m3fn`, ..."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""

    @property
    def data_ptr(self) -> int:
        """Address of the elements, a multiple of 64 for tensors of 1024 bytes or more."""

    def bits(self) -> Tensor:
        """Returns the same memory as unsigned integers of the elements' width; 4-bit elements as bytes, in
        one dimension."""

    def numpy(self) -> Any:
        """Returns a NumPy array in the same memory. bf16 and 8-bit floats need ml_dtypes."""

    def torch(self) -> Any:
        """Returns a PyTorch tensor on the CPU in the same memory."""

    def jax(self) -> Any:
        """Returns a JAX array on the CPU, in the same memory for tensors of 1024 bytes or more."""

    def tobytes(self) -> bytes:
        """Returns a copy of the bytes."""

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

_Update = tuple[_Given, list[str], Any, Any, _Given, Feedback | None, Dgc | None, bool]
"""Tensors (those on devices as `Lent`), codecs (one for each tensor or one for all), `UpdateHeader`,
`EncodeSettings`, bases of deltas, sender state, and whether a `Feedback` holds residuals or only lends its
device memory."""

@final
class Encoded:
    """Encoded frames with the buffer protocol."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that compressing took, and that coding the blocks took."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Encoder:
    def __new__(cls, part_bytes: int, index: bool, compress: bool) -> Encoder: ...
    @property
    def offset(self) -> int: ...
    def update(self, update: _Update, finish: bool = False) -> Encoded: ...
    def whole(self, update: _Update) -> bytes:
        """Encodes an update and the end of the stream."""

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
    def commit(self) -> None: ...
    def undo(self) -> None: ...
    def save(self) -> _Tensors: ...
    def load(self, tensors: _Given) -> None: ...

@final
class Dgc:
    def __new__(cls, settings: Any) -> Dgc: ...
    def codec(self) -> str: ...
    def steps(self) -> int: ...
    def norm(self) -> float: ...
    def commit(self) -> None: ...
    def undo(self) -> None: ...
    def save(self) -> _Tensors: ...
    def load(self, settings: Any, steps: int, tensors: _Given) -> None: ...

@final
class ScaleCom:
    def __new__(
        cls,
        tensors: list[tuple[str, tuple[int, ...]]],
        rank: int,
        world: int,
        codec: str,
        beta: float,
        chunk: int | None = None,
    ) -> ScaleCom: ...
    def leader(self, step: int) -> int: ...
    def begin(self, step: int, gradients: _Given, used: list[bool]) -> Encoded | None: ...
    def take_set(self, data: memoryview | bytes | bytearray, limits: _Limits) -> Tensor: ...
    def finish(self, values: _Given) -> _Tensors: ...
    def abort(self) -> None: ...
    def norm(self) -> float: ...
    def save(self) -> _Tensors: ...
    def load(self, tensors: _Given) -> None: ...

@final
class Lent:
    """A tensor on a CUDA device, borrowed for work in a stream while this object lives."""

    @property
    def device(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def contiguous(self) -> bool: ...
    @property
    def read_only(self) -> bool: ...

def canonical(spec: str) -> str: ...
def is_lossy(spec: str) -> bool: ...
def default_limits() -> dict[str, int]: ...
def default_dgc() -> dict[str, Any]: ...
def patches(
    data: memoryview, limits: _Limits, names: set[str] | None, base: _Given
) -> tuple[dict[str, Any], list[tuple[str, list[int], str, Tensor | None, Tensor]]]:
    """Returns the header of the last update, and for each tensor that changes: name, shape, element type,
    positions (None: all) and values."""

def shards(data: memoryview | bytes, limits: _Limits) -> list[tuple[str, list[int], list[int]]]:
    """Returns the last update's tensors that are parts of larger ones: name, dimensions of the larger tensor,
    and first indices."""

def decode(data: memoryview | bytes, limits: _Limits, names: set[str] | None, base: _Given) -> _Tensors: ...
def head_bytes(data: memoryview | bytes | Encoded) -> int: ...
def inspect(data: memoryview | bytes, limits: _Limits) -> tuple[dict[str, Any], Any]: ...
def reduce(
    streams: list[Any], weights: list[float], settings: Any, limits: _Limits
) -> tuple[dict[str, Any], _Tensors]: ...
def library_encode(tensors: _Given, codec: str, keep: bool) -> tuple[bytes | None, float]: ...
def num_threads() -> int:
    """Returns the number of threads. Default: RAYON_NUM_THREADS, or one for each core."""

def set_num_threads(threads: int) -> None:
    """Sets the number of threads; 0 is the default. The bytes are the same for any number."""

def lend(object: Any, number: int, device: int, dtype: str | None) -> Lent: ...
def cuda_apply(
    data: memoryview | bytes, limits: _Limits, tensors: list[tuple[str, Lent]], add: bool, wait: bool
) -> dict[str, Any]: ...
def cuda_takes(spec: str) -> bool: ...
def cuda_device_of(address: int) -> int: ...
def cuda_open(ordinal: int | None = None) -> None: ...
def cuda_release() -> None: ...
def _load_driver(path: Any) -> None:
    """Replaces CUDA's driver by the library in a file, for tests with a mock driver. None: the system's
    driver."""
