"""Random access to finished streams."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from typing import Any, overload

from gcodec import _native
from gcodec._native import Tensor
from gcodec._tensors.dlpack import Framework, convert, given
from gcodec._tensors.trees import named_tensors
from gcodec.errors import InputError
from gcodec.header import UpdateHeader
from gcodec.limits import Limits


class _Items(ItemsView[str, Tensor]):
    """Names and tensors of an update, decoded one after another."""

    def __init__(self, update: FileUpdate) -> None:
        super().__init__(update)
        self._update = update

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._update._walk()


class FileUpdate(Mapping[str, Tensor]):
    """An update in a file. `update[name]` reads and checks only the blocks of that tensor.

    `for name, tensor in update.items()` decodes one tensor after another: an update that is larger than the
    memory can be read.

    Attributes:
        header: the `UpdateHeader`.
        dtypes, shapes: element types and dimensions by tensor name.
        bytes: size of the update's frames, in bytes.
    """

    def __init__(self, file: _native.File, number: int, base: Any = None) -> None:
        header, tensors, self.bytes = file.update(number)
        self.header = UpdateHeader(**header)
        self.dtypes = {name: dtype for name, dtype, _ in tensors}
        self.shapes = {name: tuple(shape) for name, _, shape in tensors}
        self._file, self._number, self._base = file, number, base

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read({name})[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def items(self) -> ItemsView[str, Tensor]:
        return _Items(self)

    def tensors(self, names: set[str] | None = None, *, framework: Framework | None = None) -> dict[str, Any]:
        """Returns the tensors of these names, or all, as tensors of `framework`."""
        return {name: convert(tensor, framework) for name, tensor in self._read(names).items()}

    def on(self, base: Any) -> FileUpdate:
        """Returns this update with `base`, the tree of tensors that a delta changes."""
        return FileUpdate(self._file, self._number, base)

    def _walk(self) -> Iterator[tuple[str, Tensor]]:
        return self._file.walk(self._number, given(named_tensors(self._base)))

    def _read(self, names: set[str] | None) -> dict[str, Tensor]:
        return dict(self._file.tensors(self._number, names, given(named_tensors(self._base))))

    def __repr__(self) -> str:
        return f"FileUpdate(step={self.header.step}, sender={self.header.sender}, {len(self)} tensors, {self.bytes} bytes)"


class File(Sequence[FileUpdate]):
    """A finished stream as a sequence of its updates.

    Opening reads the end of the stream, its index, and the definitions that updates refer to. Do not change a
    file while it is open here.

    Args:
        source: a path, which is mapped into memory, or an object with the buffer protocol.
        limits: limits on the stream. Default: `Limits()`.
    """

    def __init__(self, source: Any, *, limits: Limits | None = None) -> None:
        is_path = isinstance(source, (str, os.PathLike))
        bytes_or_path = os.fspath(source) if is_path else memoryview(source).cast("B")
        self._native = _native.File(bytes_or_path, is_path, limits or Limits())

    def __len__(self) -> int:
        return self._native.count()

    @overload
    def __getitem__(self, number: int) -> FileUpdate: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[FileUpdate]: ...
    def __getitem__(self, number: int | slice) -> FileUpdate | Sequence[FileUpdate]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        at = number + len(self) if number < 0 else number
        if not 0 <= at < len(self):
            raise IndexError(f"update {number} of a file with {len(self)} updates")
        return FileUpdate(self._native, at)

    def step(self, step: int) -> FileUpdate:
        """Returns the last update of a step. A step that the file does not have is an InputError."""
        number = self._native.find(step)
        if number is None:
            raise InputError(f"the file has no update of step {step}")
        return FileUpdate(self._native, number)

    def __repr__(self) -> str:
        return f"File({len(self)} updates)"
