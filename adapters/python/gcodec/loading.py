"""Files of tensors, with the interface of the library safetensors: streams (`.gcu`), which `gcodec compress`
and `save_file` write, and `.safetensors` files alike."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gcodec import _native
from gcodec._tensors.contents import OPAQUE, Entry, entries_of
from gcodec._tensors.elements import (
    bits_of,
    bytes_of_torch,
    code_of_torch,
    empty,
    framework_of_name,
    of_bytes,
    torch_dtype,
    torch_shape,
)
from gcodec._tensors.dlpack import convert
from gcodec._tensors.libraries import framework_of
from gcodec._tensors.refusals import refusal
from gcodec._tensors.saving import check_rows, written
from gcodec._tensors.slots import Slots
from gcodec.errors import InputError
from gcodec.limits import Limits
from gcodec.stream import Writer

_BATCH = 8 << 20
"""Bytes of tensors that are decoded at a time, for each thread, as in the Rust library."""
_SAFETENSORS = ("C64", "F8_E8M0")
"""Element types of safetensors files that streams do not have."""


class safe_open:  # noqa: N801
    """Opens a file of tensors, as `safetensors.safe_open` does, and decodes those that are requested.

        with gcodec.safe_open("model.safetensors.gcu", framework="pt") as file:
            weight = file.get_tensor("lm_head.weight")
            rows = file.get_slice("model.embed_tokens.weight")[1000:2000]  # decodes only blocks of these rows

    The file is a stream or a `.safetensors` file, by its content; of a stream, the last update. Tensors are
    decoded by all threads of the package (`set_num_threads`). Do not change a file while it is open here.

    Args:
        filename: the path.
        framework: library of the resulting tensors: `pt`, `np` or `jax`.
        device: where they are, in PyTorch. Default: `cpu`.
        backend: how `.safetensors` files are read; see safetensors.
        pin_memory: whether tensors of PyTorch are decoded into pinned memory. Default: False.
        limits: limits on a stream. Default: `Limits()`.

    Raises:
        InputError: the stream has no update, or no tensor of a requested name.
        FormatError, UnsupportedError, LimitError: the bytes are not a whole stream within the limits.
        ImportError: the file is a `.safetensors` file, and safetensors is not installed.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str = "pt",
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        pin_memory: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._framework = framework_of_name(framework)
        if self._framework != "torch" and (pin_memory or str(device) != "cpu"):
            raise InputError(f"device and pin_memory are for framework='pt', not {framework!r}")
        self._path, self._device, self._pin = os.fspath(filename), device, pin_memory
        self._most = (limits or Limits()).max_alloc_bytes
        self._other: Any = None
        self._file: _native.File | None = None
        if _is_safetensors(self._path):
            import safetensors

            chosen = {} if backend == "mmap" else {"backend": backend}
            self._other = safetensors.safe_open(self._path, framework, "cpu" if pin_memory else device, **chosen)
            return
        self._file = _native.File(self._path, True, limits or Limits())
        self._number = self._file.count() - 1
        if self._number < 0:
            raise InputError(f"{self._path} has no tensors: it is a stream without updates")
        self._entries, self._metadata = entries_of(self._file, self._number)

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""
        return sorted(self._opened()) if self._other is None else list(self._other.keys())

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors in the order of the file."""
        return list(self._opened()) if self._other is None else list(self._other.offset_keys())

    def metadata(self) -> dict[str, str] | None:
        """Returns the texts that were saved with the tensors; None if there are none."""
        if self._other is not None:
            found: dict[str, str] | None = self._other.metadata()
            return found
        self._opened()
        return dict(self._metadata) or None

    def get_tensor(self, name: str, *, out: Any = None) -> Any:
        """Returns a tensor.

        Args:
            out: a row-major tensor of PyTorch with the element type and shape of the file's, which gets the
                elements and is returned.
        """
        if out is not None:
            self._fill({name: out})
            return out
        if self._other is not None:
            return self._placed(self._other.get_tensor(name))
        return self._decoded([name])[0]

    def get_tensors(self, *, out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns all tensors by name, in the order of the file.

        Args:
            out: tensors of PyTorch, such as those of a `state_dict`, which get the elements of the tensors of
                these names; as for `get_tensor`. Only they are returned.
        """
        if out is not None:
            self._fill(out)
            return dict(out)
        if self._other is not None:
            return {name: self.get_tensor(name) for name in self._other.offset_keys()}
        found: dict[str, Any] = {}
        for names in self._batches(list(self._opened()), self._most):
            found.update(zip(names, self._decoded(names), strict=True))
        return found

    def items(self, names: list[str] | None = None) -> Iterator[tuple[str, Any]]:
        """Yields names and tensors one after another, in the order of the file or of `names`: for models that
        copy them. The next ones are decoded meanwhile, within the memory of the largest tensor or 32 MiB for
        each thread. The memory of tensors to which nothing refers any more is used again."""
        if self._other is not None:
            for name in names or self._other.offset_keys():
                yield name, self.get_tensor(name)
            return
        entries = self._opened()
        chosen = list(entries) if names is None else names
        largest = max((self._entry(name).nbytes for name in chosen), default=0)
        batch_bytes = _BATCH * _native.num_threads()
        most = max(largest, 4 * batch_bytes)
        batches = list(self._batches(chosen, batch_bytes))
        sizes = [sum(entries[name].nbytes for name in batch) for batch in batches]
        slots = Slots(most) if self._framework == "torch" and not self._pin else None
        with ThreadPoolExecutor(1, "gcodec-decode") as thread:
            ahead: Future[list[Any]] | None = None
            for number, batch in enumerate(batches):
                tensors = self._decoded(batch, slots) if ahead is None else ahead.result()
                fits = number + 1 < len(batches) and sizes[number] + sizes[number + 1] <= most
                ahead = thread.submit(self._decoded, batches[number + 1], slots) if fits else None
                tensors.reverse()
                for name in batch:
                    # The generator keeps no tensor while its caller has it.
                    yield name, tensors.pop()

    def get_slice(self, name: str) -> Any:
        """Returns a `Slice`: `get_slice(name)[2:4]` decodes only the blocks that have these elements."""
        if self._other is not None:
            return self._other.get_slice(name)
        return Slice(self, name, self._entry(name))

    def close(self) -> None:
        """Closes the file."""
        if self._other is not None:
            self._other.__exit__(None, None, None)
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"safe_open({self._path!r})"

    def _opened(self) -> dict[str, Entry]:
        if self._file is None:
            raise InputError(f"{self._path} is closed")
        return self._entries

    def _entry(self, name: str) -> Entry:
        if (entry := self._opened().get(name)) is None:
            raise InputError(f"{self._path} has no tensor {name!r}")
        return entry

    def _batches(self, names: list[str], most: int) -> Iterator[list[str]]:
        """Yields names of tensors with `most` bytes together, or of one larger tensor."""
        batch: list[str] = []
        size = 0
        for name in names:
            more = self._entry(name).nbytes
            if batch and size + more > most:
                yield batch
                batch, size = [], 0
            batch.append(name)
            size += more
        if batch:
            yield batch

    def _decoded(self, names: list[str], slots: Slots | None = None) -> list[Any]:
        """Returns whole tensors, in the memory of slots if there are some."""
        entries = [self._entry(name) for name in names]
        assert self._file is not None
        if self._pin:
            made = [empty(entry.code, entry.shape, "torch", pin_memory=True) for entry in entries]
            memory = zip(names, entries, made, strict=True)
            self._file.fill(self._number, [(name, 0, bytes_of_torch(x)) for name, entry, x in memory if entry.is_stored])
            return [self._moved(x) for x in made]
        if slots is not None:
            rows = slots.take([entry.nbytes for entry in entries])
            memory = zip(names, entries, rows, strict=True)
            self._file.fill(self._number, [(name, 0, row) for name, entry, row in memory if entry.is_stored])
            return [
                self._moved(row.view(torch_dtype(entry.code)).reshape(torch_shape(entry.code, entry.shape)))
                for entry, row in zip(entries, rows, strict=True)
            ]
        decoded = self._file.elements(
            self._number, [(name, None) for name, entry in zip(names, entries, strict=True) if entry.is_stored]
        )
        decoded.reverse()
        return [
            self._converted(decoded.pop(), entry, entry.shape) if entry.is_stored else empty(entry.code, entry.shape, self._framework)
            for entry in entries
        ]

    def _range(self, name: str, entry: Entry, start: int, shape: tuple[int, ...]) -> Any:
        """Returns consecutive elements from `start` on, in this shape."""
        if not entry.is_stored:
            return empty(entry.code, shape, self._framework)
        bits, count = bits_of(entry.code), math.prod(shape)
        wanted = (start, list(shape))
        if entry.as_bytes:
            wanted = (start * bits // 8, [count * bits // 8])
        self._opened()
        assert self._file is not None
        return self._converted(self._file.elements(self._number, [(name, wanted)])[0], entry, shape)

    def _converted(self, tensor: _native.Tensor, entry: Entry, shape: tuple[int, ...]) -> Any:
        if entry.as_bytes or (entry.code == "F4" and self._framework == "torch"):
            made = of_bytes(tensor if entry.as_bytes else tensor.bits(), entry.code, shape, self._framework)
        else:
            made = convert(tensor, self._framework)
        return self._moved(made)

    def _moved(self, x: Any) -> Any:
        return x if self._framework != "torch" or str(self._device) == "cpu" else x.to(self._device)

    def _placed(self, x: Any) -> Any:
        """Returns a tensor of a `.safetensors` file, in pinned memory if that is wanted."""
        return self._moved(x.pin_memory()) if self._pin else x

    def _fill(self, out: Mapping[str, Any]) -> None:
        """Writes tensors into given ones. All are compared with the file before the first is written."""
        straight = []
        for name, x in out.items():
            if framework_of(x) != "torch":
                raise InputError(f"out is a {type(x).__name__}: give a tensor of PyTorch")
            code, shape = self._type(name)
            of = (torch_dtype(code), torch_shape(code, shape))
            if (x.dtype, tuple(x.shape)) != of:
                raise InputError(f"out is {x.dtype} {tuple(x.shape)}, and {name!r} is {of[0]} {of[1]}")
            if self._other is None and x.is_contiguous() and x.device.type == "cpu":
                straight.append(name)
        if self._file is not None:
            stored = [name for name in straight if self._entries[name].is_stored]
            self._file.fill(self._number, [(name, 0, bytes_of_torch(out[name])) for name in stored])
        for name in out.keys() - set(straight):
            out[name].detach().copy_(self.get_tensor(name))

    def _type(self, name: str) -> tuple[str, tuple[int, ...]]:
        if self._other is None:
            entry = self._entry(name)
            return entry.code, entry.shape
        part = self._other.get_slice(name)
        return part.get_dtype(), tuple(part.get_shape())


class Slice:
    """A tensor of a file of which parts can be read: `slice[2:4]`, `slice[:, 8]`, as of a tensor."""

    def __init__(self, file: safe_open, name: str, entry: Entry) -> None:
        self._file, self._name, self._entry = file, name, entry

    def get_shape(self) -> list[int]:
        """Returns the dimensions."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Returns the element type, by its name in safetensors files."""
        return self._entry.code

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self._entry.shape

    @property
    def dtype(self) -> Any:
        """The element type in PyTorch."""
        return torch_dtype(self._entry.code)

    def is_floating_point(self) -> bool:
        """Whether the elements are floats."""
        return self._entry.code.startswith(("F", "BF"))

    def __getitem__(self, index: Any) -> Any:
        """Returns the elements of an index. Only the range from the first to the last of the first dimensions
        is decoded: of `slice[3:5, :, 7]`, the rows 3 and 4."""
        start, shape, rest = _leading(self._entry, index)
        part = self._file._range(self._name, self._entry, start, shape)
        return part if rest is None else part[rest]

    def __repr__(self) -> str:
        return f"Slice({self._name!r}, {self._entry.code}, {list(self._entry.shape)})"


def _leading(entry: Entry, index: Any) -> tuple[int, tuple[int, ...], Any]:
    """Returns the first element of the range that an index needs, the shape of the range, and the index in
    it; None for all of it."""
    shape = entry.shape
    items = index if isinstance(index, tuple) else (index,)
    if any(item is Ellipsis for item in items[:1]) and len(items) == 1:
        return 0, shape, None
    start, at, dims = 0, 0, list(shape)
    is_packed = bits_of(entry.code) % 8 != 0
    while at < len(items) and dims and not is_packed:
        item, size, row = items[at], dims[0], math.prod(dims[1:])
        if isinstance(item, int) and not isinstance(item, bool):
            if not -size <= item < size:
                raise IndexError(f"index {item} is out of bounds for dimension {at} with size {size}")
            start += (item % size) * row
            dims.pop(0)
            at += 1
            continue
        if isinstance(item, slice):
            first, end, step = item.indices(size)
            if step < 1:
                raise ValueError("step must be greater than zero")
            end = max(first, end)
            start += first * row
            rest = (slice(None, None, step), *items[at + 1 :])
            is_all = step == 1 and not items[at + 1 :]
            return start, (end - first, *dims[1:]), None if is_all else rest
        break
    rest = items[at:]
    return start, tuple(dims), rest or None


def load_file(
    filename: str | os.PathLike[str],
    device: Any = "cpu",
    *,
    framework: str = "pt",
    backend: str = "mmap",
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Returns all tensors of a stream or a `.safetensors` file, as `safetensors.torch.load_file` does.

    Args and errors: see `safe_open`.
    """
    with safe_open(filename, framework, device, backend=backend, limits=limits) as file:
        return file.get_tensors()


def save_file(
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors to a file, as `safetensors.torch.save_file` does: to a stream with the codec `lossless`,
    or, if its name ends in `.safetensors`, to a file of that format.

    The file gets its name once it is whole.

    Args:
        tensors: the tensors of PyTorch, NumPy or JAX, by name. They must be row-major, and those of PyTorch
            must not have memory in common.
        filename: the path.
        metadata: texts to save with them.

    Raises:
        ValueError: a tensor is not row-major, or is no tensor.
        RuntimeError: tensors of PyTorch have memory in common.
    """
    texts = {} if metadata is None else dict(metadata)
    if not isinstance(tensors, Mapping):
        raise ValueError(f"tensors is a {type(tensors).__name__}, not a dict of tensors by name")
    if not all(isinstance(text, str) for entry in texts.items() for text in entry):
        raise TypeError("metadata has keys or values that are no texts")
    frameworks = check_rows(tensors)
    if os.fspath(filename).endswith(".safetensors"):
        _save_safetensors(dict(tensors), filename, None if metadata is None else texts, frameworks)
        return
    stored, labels = _storable(tensors)
    if labels:
        texts[OPAQUE] = json.dumps(labels)
    with written(Path(filename)) as path, Writer(path) as writer:
        if texts:
            writer.metadata(texts)
        writer.write(stored, "lossless")


def _storable(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns tensors of the types that streams have, with the bytes of others, and labels of these."""
    stored: dict[str, Any] = {}
    labels: dict[str, dict[str, Any]] = {}
    for name, x in tensors.items():
        stored[name] = x
        if framework_of(x) != "torch" or refusal(x) is None:
            continue
        code, shape = code_of_torch(x.dtype), list(x.shape)
        if code == "F4":
            shape[-1] *= 2
        stored[name] = bytes_of_torch(x.cpu())
        labels[name] = {"dtype": code, "shape": shape, **({"form": "safetensors"} if code in _SAFETENSORS else {})}
    return stored, labels


def _save_safetensors(
    tensors: dict[str, Any], filename: Any, metadata: dict[str, str] | None, frameworks: set[str | None]
) -> None:
    if frameworks <= {"torch"}:
        from safetensors.torch import save_file as save
    elif frameworks == {"numpy"}:
        from safetensors.numpy import save_file as save
    else:
        from safetensors.flax import save_file as save
    save(tensors, filename, metadata)


def _is_safetensors(path: str) -> bool:
    """Whether a file begins as a `.safetensors` file does: with a length, and an object of JSON."""
    with Path(path).open("rb") as file:
        return file.read(9)[8:] == b"{"

