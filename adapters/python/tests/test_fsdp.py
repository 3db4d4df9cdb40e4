"""FSDP2, HSDP, DTensors and distributed checkpoints, on ranks that are processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_ranks import ranks  # noqa: E402


def test_two_ranks(tmp_path: Path) -> None:
    results = ranks(tmp_path, 2, "shard_ranks:two", str(tmp_path))
    for rank, out in enumerate(results):
        assert out["exact"] and out["nothing is lost"] and out["nan"] and out["kept"] and out["restored"]
        first, last = out["losses"]
        assert last < 0.5 * first
        assert f"not of rank {rank} of 2" in out["refused"]
        assert "rank 1" in out["reject"] or "NaN" in out["reject"], out["reject"]
        assert "codec" in out["odd"] and "matches no tensor" in out["rule"] and "fully_shard" in out["plain"]
        placed = out["dtensor"]
        assert placed["places"] == {"rows": ((5, 7), (3 * rank, 0)), "columns": ((5, 7), (0, 4 * rank))}
        assert placed["back"] and placed["delta"]
        assert "the DTensor here" in placed["moved"] and "the DTensor here" in placed["other"] and "partial sum" in placed["partial"]
    assert results[0]["same"] == results[1]["same"]


def test_four_ranks_in_two_replicas(tmp_path: Path) -> None:
    results = ranks(tmp_path, 4, "shard_ranks:four")
    for mode in ("shards", "replicas"):
        assert len({out[mode]["same"] for out in results}) == 1
        for out in (result[mode] for result in results):
            assert out["exact"] < 1e-6 and out["losses"][1] < 0.8 * out["losses"][0] and out["nan"]
            assert out["residuals"] > 0 and out["sent"] > 0
        # All ranks take the step back together, and keep what they had.
        for rank in range(4):
            assert results[rank][mode]["kept"] == []
    # All ranks have the same weights, and two ranks with different parts cannot exchange.
    assert len({out["diloco"]["same"] for out in results}) == 1
    for out in (result["diloco"] for result in results):
        assert out["exact"] < 1e-6
        assert "rank 1 cannot train with rank 0" in out["refused"] and "at (7, 0) of (13, 10)" in out["refused"], out["refused"]
