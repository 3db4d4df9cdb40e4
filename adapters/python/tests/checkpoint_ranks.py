"""The ranks of test_checkpoint.py. Spawned processes import this module."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from shard_ranks import backward, model
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from gcodec.torch.checkpoint import CheckpointReader, CheckpointWriter


def state_of(trained: bool) -> dict[str, Any]:
    """Returns a sharded model with the moments of AdamW, and tensors of other placements and types; zeros
    unless it was trained."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    made = model(mesh)
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.03)
    for step in range(3 if trained else 1):
        backward(made, step)
        optimizer.step()
    weights, moments = get_state_dict(made, optimizer)
    generator = torch.Generator().manual_seed(7)
    scale = 1.0 if trained else 0.0
    normal = lambda *shape: torch.randn(shape, generator=generator) * scale  # noqa: E731
    return {
        "model": weights,
        "optimizer": moments,
        "rows": distribute_tensor(normal(11, 5).to(torch.bfloat16), mesh, [Shard(0)]),
        "columns": distribute_tensor(normal(6, 11, 3), mesh, [Shard(1)]),
        "bits": distribute_tensor((normal(9, 4) > 0).to(torch.uint8) * (200 if trained else 0), mesh, [Shard(0)]),
        "complex": torch.complex(normal(3, 4), normal(3, 4)),
        "eighths": normal(3, 4).to(torch.float8_e4m3fn),
        "transposed": normal(5, 3).t(),
        "scalar": normal(),
        "empty": torch.zeros(0, 3),
        "epoch": 3 if trained else 0,
        "words": ["a" if trained else "", {"b": 1.5 if trained else 0}],
    }


def flat(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from flat(value, f"{name}.{key}")
    else:
        yield name, tree


def digests(state: dict[str, Any]) -> dict[str, str]:
    """Returns a digest of each whole value."""
    out = {}
    for name, value in flat(state):
        data: Any = repr(value).encode()
        if isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            data = whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            data += repr((tuple(whole.shape), whole.dtype)).encode()
        out[name] = hashlib.sha256(data).hexdigest()
    return out


def save(rank: int, world: int, folder: str) -> Any:
    """Saves with gcodec at once and later, and with PyTorch's writer."""
    del rank, world
    state, place = state_of(True), Path(folder)
    before = digests(state)
    dcp.save(state, storage_writer=CheckpointWriter(place / "ours"))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(place / "plain"))
    # The state changes while the checkpoint is written.
    pending = dcp.async_save(state, storage_writer=CheckpointWriter(place / "later"))
    for _, value in flat(state):
        if isinstance(value, torch.Tensor):
            value.detach().zero_()
    pending.result()
    # Over the checkpoint that is there.
    dcp.save(state_of(False), storage_writer=CheckpointWriter(place / "over"))
    dcp.save(state_of(True), storage_writer=CheckpointWriter(place / "over"))
    return before


def load(rank: int, world: int, folder: str) -> Any:
    """Loads each checkpoint into a state of this number of ranks."""
    del rank, world
    out = {}
    for name in ("ours", "plain", "later", "over"):
        state = state_of(False)
        dcp.load(state, storage_reader=CheckpointReader(Path(folder) / name))
        out[name] = digests(state)
    return out
