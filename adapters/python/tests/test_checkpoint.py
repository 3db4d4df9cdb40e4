"""Distributed checkpoints of PyTorch with gcodec inside: saved by some ranks, loaded by others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch_ranks import ranks  # noqa: E402

import gcodec  # noqa: E402
from gcodec.torch.checkpoint import CheckpointReader, CheckpointWriter, _run  # noqa: E402


def test_two_ranks_save_and_any_number_loads(tmp_path: Path, command: str) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir()
    expected, other = ranks(tmp_path / "save", 2, "checkpoint_ranks:save", str(place))
    assert expected == other
    for world in (1, 2, 3):
        for found in ranks(tmp_path / f"load{world}", world, "checkpoint_ranks:load", str(place)):
            assert found == dict.fromkeys(("ours", "plain", "later", "over"), expected), world
    files = sorted(path.name for path in (place / "ours").iterdir())
    assert files == [".metadata", "__0_0.gcu", "__1_0.gcu"]
    # Each file is a stream, which knows where its parts lie.
    data = (place / "ours" / "__1_0.gcu").read_bytes()
    shards = gcodec.shards(data)
    assert shards["rows[6,0]"] == gcodec.Shard((11, 5), (6, 0), (5, 5))
    assert shards["columns[0,6,0]"] == gcodec.Shard((6, 11, 3), (0, 6, 0), (6, 5, 3))
    # The command line has the tensors of both folders.
    found = subprocess.run([command, "diff", "--json", place / "plain", place / "ours"], stdout=subprocess.PIPE, check=True)
    report = json.loads(found.stdout)
    assert report["equal"] and {tensor["name"] for tensor in report["tensors"]} >= {"rows", "columns"}
    subprocess.run([command, "inspect", place / "ours"], stdout=subprocess.DEVNULL, check=True)


def state(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(300, 200, generator=generator), "b": torch.randn(70_000, generator=generator), "n": seed}


def save(values: dict[str, Any], place: Path) -> None:
    dcp.save(values, storage_writer=CheckpointWriter(place), no_dist=True)


def load(values: dict[str, Any], place: Path, **options: Any) -> None:
    dcp.load(values, storage_reader=CheckpointReader(place, **options), no_dist=True)


def test_only_what_is_loaded_is_read_and_it_is_checked(tmp_path: Path) -> None:
    save(state(), tmp_path)
    file = tmp_path / "__0_0.gcu"
    data = bytearray(file.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    file.write_bytes(data)
    into = {"a": torch.zeros(300, 200)}
    load(into, tmp_path)
    assert torch.equal(into["a"], state()["a"])
    with pytest.raises(dcp.CheckpointException, match='tensor "b"'):
        load({"b": torch.zeros(70_000)}, tmp_path)
    with pytest.raises(dcp.CheckpointException, match="max_alloc_bytes"):
        # Into another type, through memory of its own.
        load({"a": torch.zeros(300, 200, dtype=torch.float64)}, tmp_path, limits=gcodec.Limits(max_alloc_bytes=1000))


def test_elements_go_into_tensors_of_other_types_and_strides(tmp_path: Path) -> None:
    save(state(), tmp_path)
    into = {"a": torch.zeros(200, 300).t(), "b": torch.zeros(70_000, dtype=torch.float64)}
    load(into, tmp_path)
    assert torch.equal(into["a"], state()["a"]) and torch.equal(into["b"], state()["b"].double())


def test_a_save_that_fails_keeps_the_checkpoint(tmp_path: Path) -> None:
    save(state(1), tmp_path)
    with pytest.raises(dcp.CheckpointException, match="sparse"):
        save({**state(2), "c": torch.eye(3).to_sparse()}, tmp_path)
    into = state()
    load(into, tmp_path)
    assert into["n"] == 1 and torch.equal(into["a"], state(1)["a"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".metadata", "__0_0.gcu"]


def test_a_group_of_tensors_is_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcodec.torch.checkpoint._GROUP", 250_000)
    monkeypatch.setattr("gcodec.torch.checkpoint._BATCH", 100_000)
    save(state(), tmp_path)
    assert len(gcodec.File(tmp_path / "__0_0.gcu")) == 3
    into = state(5)
    load(into, tmp_path)
    assert into["n"] == 0 and all(torch.equal(into[name], state()[name]) for name in ("a", "b"))


def test_the_run_of_a_region() -> None:
    shape = (3, 4, 5)
    whole = torch.arange(60).reshape(shape)
    for offsets, lengths in [
        ((0, 0, 0), (3, 4, 5)),
        ((1, 0, 0), (2, 4, 5)),
        ((1, 2, 0), (1, 2, 5)),
        ((1, 2, 3), (1, 1, 2)),
        ((0, 1, 0), (3, 2, 5)),
        ((2, 0, 4), (1, 4, 1)),
        ((0, 0, 0), (0, 4, 5)),
        ((1, 2, 3), (1, 1, 1)),
    ]:
        start, run, inner = _run(shape, offsets, lengths)
        part = whole.flatten()[start : start + torch.Size(run).numel()].reshape(run)[inner].reshape(lengths)
        index = tuple(slice(first, first + length) for first, length in zip(offsets, lengths, strict=True))
        assert torch.equal(part, whole[index]), (offsets, lengths)
    assert _run((), (), ())[:2] == (0, ())
