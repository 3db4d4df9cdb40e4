"""Reports on streams, as data and as a table. The names are those of `gcodec inspect --json`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from gcodec import _native
from gcodec.errors import GcodecError
from gcodec.limits import Limits


@dataclass(frozen=True)
class FrameReport:
    """A frame: number, kind, offset in the stream and size, both in bytes."""

    number: int
    kind: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class ManifestReport:
    """A manifest: number of its frame, id, number of tensors and of elements."""

    frame: int
    id: str
    tensors: int
    elements: int


@dataclass(frozen=True)
class TensorReport:
    """A tensor in an update.

    The bits of a block that spans several tensors are divided in proportion to their kept values. `kept` and
    `density` are None if they depend on the base of a delta; such bits are divided by elements.

    `norm` to `zeros` are those of the finite elements of the dense tensor; None for a delta and for values
    that need another tensor or a model. `nan` and `infinite` are None for integers, too. `first_nan` and
    `first_infinite` are indices in the flattened tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    support: str
    values: str
    blocks: int
    kept: int | None
    position_bits: float
    value_bits: float
    overhead_bits: float
    norm: float | None
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    zeros: int | None
    nan: int | None
    infinite: int | None
    first_nan: int | None
    first_infinite: int | None

    @property
    def density(self) -> float | None:
        """Kept values divided by elements."""
        return None if self.kept is None else self.kept / max(self.elements, 1)

    @property
    def bits_per_parameter(self) -> float:
        """All bits divided by elements."""
        return (self.position_bits + self.value_bits + self.overhead_bits) / max(self.elements, 1)


@dataclass(frozen=True, repr=False)
class UpdateReport:
    """An update with all its parts. `tensors` lists the tensors that a block covers.

    `norm` is the L2 norm of the finite elements; None if the update alone does not determine them.
    """

    step: int
    round: int
    sender: int
    world: int
    contributors: int
    inner_steps: int
    reduction: str
    label: str
    delta: bool
    frames: list[int]
    blocks: int
    bytes: int
    header_bytes: int
    elements: int
    source_bytes: int
    kept: int
    norm: float | None
    zeros: int
    nan: int
    infinite: int
    tensors: list[TensorReport]

    @property
    def density(self) -> float:
        """Kept values divided by elements."""
        return self.kept / max(self.elements, 1)

    @property
    def bits_per_parameter(self) -> float:
        """All bits, including headers, divided by elements."""
        return self.bytes * 8 / max(self.elements, 1)

    @property
    def ratio(self) -> float:
        """Bytes of the tensors divided by bytes of the update."""
        return self.source_bytes / self.bytes

    def __repr__(self) -> str:
        label = f" [{self.label}]" if self.label else ""
        head = (
            f"step {self.step} sender {self.sender}{label}: {self.elements:,} elements, {self.bytes:,} bytes, "
            f"ratio {self.ratio:.4g}, {self.bits_per_parameter:.4g} bits per parameter"
        )
        rows = [("tensor", "type", "shape", "support", "values", "kept", "density", "bits/par")]
        for t in self.tensors[:20]:
            shape = "x".join(map(str, t.shape)) or "-"
            kept = ("?", "?") if t.kept is None else (f"{t.kept:,}", f"{t.density:.4g}")
            amounts = (*kept, f"{t.bits_per_parameter:.4g}")
            rows.append((t.name, t.dtype, shape, t.support, t.values, *amounts))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        if len(self.tensors) > 20:
            lines.append(f"... {len(self.tensors) - 20} more")
        return "\n  ".join([head, *lines])


@dataclass(frozen=True, repr=False)
class Report:
    """A stream.

    `error`: the first error, in the stream or in a block, or None. The other fields hold what could be read.
    `beyond_core`: the first thing found that the core profile of the format does not have, or None.
    """

    bytes: int
    version: tuple[int, int] | None
    segments: int
    has_index: bool
    beyond_core: str | None
    error: GcodecError | None
    frames: list[FrameReport]
    metadata: dict[str, str]
    manifests: list[ManifestReport]
    updates: list[UpdateReport]

    @property
    def ok(self) -> bool:
        """Whether the whole stream was read without an error."""
        return self.error is None

    @property
    def profile(self) -> Literal["full", "core"] | None:
        """The profile of the format that the stream has, or None if it has an error."""
        if self.error is not None:
            return None
        return "core" if self.beyond_core is None else "full"

    def __repr__(self) -> str:
        version = "?" if self.version is None else ".".join(map(str, self.version))
        index = "with" if self.has_index else "without"
        lines = [
            f"gcodec {version}: {self.bytes:,} bytes, {len(self.frames)} frames, {len(self.updates)} updates, {index} an index"
        ]
        lines += [f"{key} = {value}" for key, value in self.metadata.items()]
        lines += [repr(update) for update in self.updates[:10]]
        if len(self.updates) > 10:
            lines.append(f"... {len(self.updates) - 10} more updates")
        if self.error is not None:
            lines.append(f"error: {self.error}")
        return "\n".join(lines)


def inspect(source: Any, *, limits: Limits | None = None) -> Report:
    """Reads and checks a whole stream, and returns a report.

    Args:
        source: a path, or an object with the buffer protocol.
        limits: limits on the stream. Default: `Limits()`.

    Raises:
        OSError: the path cannot be read. Errors in the stream are not raised: see `Report.error`.
    """
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            source = file.read()
    data, error = _native.inspect(memoryview(source).cast("B"), limits or Limits())
    updates = [
        UpdateReport(**{**update, "tensors": [TensorReport(**tensor) for tensor in update["tensors"]]})
        for update in data.pop("updates")
    ]
    frames = [FrameReport(**frame) for frame in data.pop("frames")]
    manifests = [ManifestReport(**manifest) for manifest in data.pop("manifests")]
    return Report(**data, error=error, frames=frames, manifests=manifests, updates=updates)
