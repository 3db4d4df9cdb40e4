"""Checkpoints of `torch.distributed.checkpoint` (DCP) with gcodec inside.

    dcp.save(state, storage_writer=CheckpointWriter("checkpoint"))  # or dcp.async_save
    dcp.load(state, storage_reader=CheckpointReader("checkpoint"))  # on any number of ranks

DCP's own hook for compression (`StreamTransformExtension`) is private in PyTorch, and its streams of bytes
give no part of a tensor. Here each rank writes one stream (`__0_0.gcu`), coded by `lossless`, in which the
parts of tensors have their names and places: a rank that loads decodes only the blocks that it needs, and
checks them. Values that are no tensors are in the stream as bytes.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from gcodec import _native
from gcodec._tensors.contents import OPAQUE, Entry
from gcodec._tensors.dlpack import to_torch
from gcodec._tensors.elements import bits_of, bytes_of_torch, code_of_torch, of_bytes
from gcodec._tensors.refusals import refusal
from gcodec._tensors.saving import written
from gcodec.errors import InputError
from gcodec.limits import Limits
from gcodec.shards import Shard
from gcodec.stream import Writer

_GROUP = 1 << 30
"""Bytes of tensors that are copied from devices, and encoded, at a time: each such group is an update."""
_BATCH = 256 << 20
"""Bytes of tensors that are decoded into their places at a time."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """Where an item of a checkpoint is: what DCP keeps about it."""

    relative_path: str
    """File in the folder of the checkpoint."""
    update: int
    """Number of the update in the file."""
    name: str
    """Name of the tensor in the update."""
    code: str
    """Element type, by its name in safetensors files."""
    shape: tuple[int, ...]
    """Dimensions of this part of the tensor."""
    as_bytes: bool = False
    """Whether the stream has its bytes, because streams do not have its element type."""

    @property
    def entry(self) -> Entry:
        return Entry(self.code, self.shape, self.as_bytes)


class CheckpointWriter(FileSystemWriter):
    """Writes a checkpoint into a folder: for `dcp.save` and `dcp.async_save`.

    Each rank's file gets its name when it is whole, and the checkpoint its `.metadata` when all are.

    Args:
        path: the folder.
        sync_files: whether files are forced to the disk. Default: True.
        cache_staged_state_dict, overwrite: as for `FileSystemWriter` of PyTorch.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync_files: bool = True,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
    ) -> None:
        super().__init__(path, sync_files=sync_files, cache_staged_state_dict=cache_staged_state_dict, overwrite=overwrite)
        self._sync = sync_files

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Makes the folder."""
        prepared = super().prepare_local_plan(plan)
        # Without collectives there is no global plan, and the base class has marked the rank here.
        return prepared if prepared.storage_data is None else dataclasses.replace(prepared, storage_data=_file_of(self.rank or 0))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Gives each rank its file."""
        return [dataclasses.replace(plan, storage_data=_file_of(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's stream."""
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write(plan, planner) if plan.items else [])
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        file = plan.storage_data
        results = []
        with written(Path(self.path) / file, sync=self._sync) as path, Writer(path) as writer:
            for number, group in enumerate(_groups(plan.items)):
                tensors: dict[str, Any] = {}
                shards: dict[str, Shard] = {}
                labels: dict[str, Any] = {}
                for item in group:
                    name, tensor = _name(item), _resolved(planner, item)
                    if name in tensors:
                        raise InputError(f"the checkpoint has two parts of {name!r} with one place")
                    code, shape = code_of_torch(tensor.dtype), tuple(tensor.shape)
                    as_bytes = refusal(tensor) is not None
                    if as_bytes:
                        labels[name] = {"dtype": code, "shape": list(shape)}
                    elif item.tensor_data is not None and tuple(item.tensor_data.chunk.sizes) != tuple(item.tensor_data.size):
                        shards[name] = Shard(tuple(item.tensor_data.size), tuple(item.tensor_data.chunk.offsets), shape)
                    tensors[name] = bytes_of_torch(tensor.contiguous()) if as_bytes else tensor
                    stored = Stored(file, number, name, code, shape, as_bytes)
                    results.append(WriteResult(item.index, tensor.nbytes, stored))
                if labels:
                    writer.metadata({OPAQUE: json.dumps(labels)})
                writer.write(tensors, "lossless", shards=shards)
        return results


class CheckpointReader(FileSystemReader):
    """Reads a checkpoint of `CheckpointWriter`, or of PyTorch's `FileSystemWriter`: for `dcp.load`.

    Elements go straight into the tensors of the state, where these are row-major, on the host, and of the
    type of the checkpoint.

    Args:
        path: the folder.
        limits: limits on the streams. Default: `Limits()`.
    """

    def __init__(self, path: str | os.PathLike[str], *, limits: Limits | None = None) -> None:
        super().__init__(path)
        self._limits = limits or Limits()

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan lists.

        Raises:
            FormatError: a block is not as it was written.
        """
        plain = [item for item in plan.items if not isinstance(self.storage_data[item.storage_index], Stored)]
        if plain:
            super().read_data(dataclasses.replace(plan, items=plain), planner).wait()
        by_file: dict[str, list[tuple[ReadItem, Stored]]] = {}
        for item in plan.items:
            stored = self.storage_data[item.storage_index]
            if isinstance(stored, Stored):
                by_file.setdefault(stored.relative_path, []).append((item, stored))
        for name, items in by_file.items():
            file = _native.File(os.fspath(Path(self.path) / name), True, self._limits)
            _read_file(file, items, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _file_of(rank: int) -> str:
    return f"__{rank}_0.gcu"


def _name(item: Any) -> str:
    """Returns the name of an item in its stream: that of the tensor, with the first index of a part."""
    offset = item.index.offset
    if item.tensor_data is None or tuple(item.tensor_data.chunk.sizes) == tuple(item.tensor_data.size):
        return str(item.index.fqn)
    return f"{item.index.fqn}[{','.join(map(str, offset))}]"


def _groups(items: list[Any]) -> Iterator[list[Any]]:
    """Yields items with the bytes of a group together, or one larger item."""
    group: list[Any] = []
    size = 0
    for item in items:
        data = item.tensor_data
        more = 0 if data is None else math.prod(data.chunk.sizes) * data.properties.dtype.itemsize
        if group and size + more > _GROUP:
            yield group
            group, size = [], 0
        group.append(item)
        size += more
    yield group


def _resolved(planner: SavePlanner, item: Any) -> torch.Tensor:
    """Returns the tensor of an item on the host; bytes as a tensor of bytes."""
    data = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        return torch.frombuffer(bytearray(data.getbuffer()), dtype=torch.uint8)  # type: ignore[no-any-return]
    if str(data.layout) != "torch.strided":
        raise InputError(f"tensor {item.index.fqn!r} is sparse: save x.to_dense()")
    return data.detach().cpu()


def _read_file(file: _native.File, items: list[tuple[ReadItem, Stored]], planner: LoadPlanner) -> None:
    """Reads the items of one file."""
    batch: list[tuple[ReadItem, Any, Stored, int]] = []
    size = 0
    for item, stored in items:
        if item.type == LoadItemType.BYTE_IO:
            found = file.elements(stored.update, [(stored.name, None)])[0]
            planner.load_bytes(item, io.BytesIO(found.tobytes()))
            continue
        target = planner.resolve_tensor(item).detach()
        if tuple(target.shape) != tuple(item.lengths):
            raise InputError(f"{stored.name!r}: the state has {tuple(target.shape)}, and the checkpoint {tuple(item.lengths)}")
        start, shape, inner = _run(stored.shape, item.storage_offsets, item.lengths)
        if not inner and _takes(target, stored):
            batch.append((item, target, stored, start))
            size += target.nbytes
            if size >= _BATCH:
                _fill(file, batch, planner)
                batch, size = [], 0
            continue
        part = _part(file, stored, start, shape)
        target.copy_(part[inner].reshape(target.shape))
        planner.commit_tensor(item, target)
    _fill(file, batch, planner)


def _takes(target: torch.Tensor, stored: Stored) -> bool:
    """Whether elements can be decoded straight into a tensor."""
    is_same = code_of_torch(target.dtype) == stored.code and target.device.type == "cpu"
    return is_same and target.is_contiguous() and target.numel() > 0 and not target.is_conj() and not target.is_neg()


def _fill(file: _native.File, batch: list[tuple[ReadItem, Any, Stored, int]], planner: LoadPlanner) -> None:
    """Decodes elements into tensors."""
    for update in sorted({stored.update for _, _, stored, _ in batch}):
        of = [(stored, start, target) for _, target, stored, start in batch if stored.update == update]
        file.fill(update, [(stored.name, _first(stored, start), bytes_of_torch(target)) for stored, start, target in of])
    for item, target, _, _ in batch:
        planner.commit_tensor(item, target)


def _part(file: _native.File, stored: Stored, start: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns consecutive elements in this shape."""
    if stored.as_bytes:
        wanted = (_first(stored, start), [math.prod(shape) * bits_of(stored.code) // 8])
        found = file.elements(stored.update, [(stored.name, wanted)])[0]
        return of_bytes(found, stored.code, shape, "torch")  # type: ignore[no-any-return]
    return to_torch(file.elements(stored.update, [(stored.name, (start, list(shape)))])[0])  # type: ignore[no-any-return]


def _first(stored: Stored, start: int) -> int:
    """Returns the first element of the stream's tensor, which may have bytes."""
    return start * bits_of(stored.code) // 8 if stored.as_bytes else start


def _run(shape: tuple[int, ...], offsets: Any, lengths: Any) -> tuple[int, tuple[int, ...], tuple[slice, ...]]:
    """Returns the shortest run of elements that has a range of each dimension: its first element, its
    shape, and the ranges in that shape; none if they are all of it."""
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    dim = next((dim for dim, length in enumerate(lengths) if length != 1), max(len(shape) - 1, 0))
    start = sum(first * stride for first, stride in zip(offsets[: dim + 1], strides, strict=False))
    run = (*lengths[dim : dim + 1], *shape[dim + 1 :])
    rest = list(zip(offsets[dim + 1 :], lengths[dim + 1 :], strict=True))
    inner = tuple(slice(first, first + length) for first, length in rest)
    is_all = run[1:] == tuple(lengths[dim + 1 :])
    return start, run, () if is_all else (slice(None), *inner)
