"""Random access to finished streams."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from gcodec import _native
from gcodec._native import Tensor
from gcodec.errors import InputError
from gcodec.limits import Limits
from gcodec.stream import UpdateHeader
from gcodec.tensors import Framework, convert, given
from gcodec.trees import named_tensors


class FileUpdate(Mapping[str, Tensor]):
    """An update of a file; `update[name]` reads and checks the blocks of that tensor and no others.

    Attributes:
        header: who says it, when, and for whom.
        dtypes, shapes: of the tensors, by name.
        bytes: of its frames.
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

    def tensors(self, names: set[str] | None = None, *, framework: Framework | None = None) -> dict[str, Any]:
        """The tensors of these names, or all, as `framework`'s."""
        return {name: convert(tensor, framework) for name, tensor in self._read(names).items()}

    def on(self, base: Any) -> FileUpdate:
        """The same update with the tensors that it changes, if it is a delta."""
        return FileUpdate(self._file, self._number, base)

    def _read(self, names: set[str] | None) -> dict[str, Tensor]:
        return dict(self._file.tensors(self._number, names, given(named_tensors(self._base))))

    def __repr__(self) -> str:
        return f"FileUpdate(step={self.header.step}, sender={self.header.sender}, {len(self)} tensors, {self.bytes} bytes)"


class File(Sequence[FileUpdate]):
    """A finished stream: a path, which is mapped into memory, or bytes. A sequence of its updates.

    Only its end, its index and what updates refer to are read at first. Do not change a file while it is open here.
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
            raise IndexError(f"update {number} of a file of {len(self)}")
        return FileUpdate(self._native, at)

    def step(self, step: int) -> FileUpdate:
        """The update of this step, the last of several."""
        number = self._native.find(step)
        if number is None:
            raise InputError(f"no update has step {step}")
        return FileUpdate(self._native, number)

    def __repr__(self) -> str:
        return f"File({len(self)} updates)"
