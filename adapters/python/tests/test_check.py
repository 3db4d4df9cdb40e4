"""Digests of weights where they are, against those of files, and faults that they find by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import gcodec
from gcodec import check
from gcodec._tensors import sums

ROWS = 64
HIDDEN = 40
SIZES = {"q": 32, "k": 16, "v": 16}


def checkpoint(seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).bfloat16()

    weights = {name: tensor(size, HIDDEN) for name, size in SIZES.items()}
    weights |= {f"experts.{e}.{part}": tensor(24, HIDDEN) for e in range(3) for part in ("gate", "up")}
    return weights | {"embed": tensor(ROWS, HIDDEN), "lm_head": tensor(ROWS, HIDDEN), "norm": tensor(HIDDEN)}


def engine(weights: dict[str, torch.Tensor], rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """The parameters of a rank: q, k and v fused by rows, experts stacked and transposed, embeddings."""
    part = {name: x.chunk(world)[rank] for name, x in weights.items()}
    experts = [torch.cat([weights[f"experts.{e}.gate"], weights[f"experts.{e}.up"]]).t() for e in range(3)]
    return {
        "qkv": torch.cat([part[name] for name in SIZES]),
        "experts": torch.stack(experts).contiguous(),
        "embed": part["embed"].clone(),
        "lm_head": part["lm_head"].clone(),
        "norm": weights["norm"].clone(),
    }


def layout(rank: int = 0, world: int = 1) -> check.Layout:
    rows = (ROWS // world * rank, 0)
    experts = [
        check.Part(f"experts.{e}.{name}", (e, slice(None), slice(24 * i, 24 * (i + 1))), axes=(1, 0))
        for e in range(3)
        for i, name in enumerate(("gate", "up"))
    ]
    return {
        "qkv": check.fused((64 // world, HIDDEN), SIZES, rank=rank, world=world),
        "experts": experts,
        "embed": [check.Part("embed", shape=(ROWS, HIDDEN), offsets=rows)],
        "lm_head": [check.Part("lm_head", shape=(ROWS, HIDDEN), offsets=rows)],
    }


def found(engines: list[dict[str, torch.Tensor]]) -> check.Digests:
    world = len(engines)
    return check.merge(check.digest(own, layout(rank, world)) for rank, own in enumerate(engines))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_fused_stacked_and_sharded_weights_have_the_checkpoints_digests(world: int) -> None:
    weights = checkpoint()
    expected = check.digest(weights)
    here = found([engine(weights, rank, world) for rank in range(world)])
    assert expected.differences(here) == [] and here.sum == expected.sum
    assert here.tensor("k") == expected.tensor("k") and json.loads(here.json()) == json.loads(expected.json())
    assert check.Digests.from_json(here.json()).differences(expected) == []


def test_digests_are_those_of_the_command_and_of_streams(tmp_path: Path) -> None:
    weights = checkpoint() | {"half": torch.randn(3, 5).half(), "ids": torch.arange(7), "flag": torch.tensor([True, False])}
    gcodec.save_file(weights, tmp_path / "weights.safetensors")
    command = [sys.executable, "-m", "gcodec", "digest", str(tmp_path / "weights.safetensors"), "--json"]
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    digests = check.digest(weights)
    assert json.loads(printed) == json.loads(digests.json())
    assert check.digest({name: x.float().numpy() for name, x in weights.items()}).differences(digests) != []
    arrays = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(5, ml_dtypes.bfloat16)}
    tensors = {name: torch.tensor(x.astype(np.float32)) for name, x in arrays.items()}
    assert check.digest(arrays).tensor("w") == check.digest(tensors).tensor("w")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.bool, torch.uint8])
def test_a_devices_sums_are_those_of_the_host(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    for shape in [(5, 37), (4, 5, 6), (1,), (300_000,), (), (0, 3), (2, 3, 4, 5)]:
        x = (torch.randn(shape, generator=draw) * 100).to(dtype)
        offsets = [65_530 + at for at in range(len(shape))]
        whole = [offset + size for offset, size in zip(offsets, shape, strict=True)]
        [(name, expected)] = sums.shares([sums.Piece(x, "w", whole, offsets)])
        weight = gcodec._native.sum_weight("w", name, whole)
        for same in (x, x.mT.contiguous().mT if x.dim() > 1 else x):
            own = sums.of_torch(same, offsets)
            assert tuple(a * b % sums.P for a, b in zip(own, weight, strict=True)) == expected, (shape, dtype)


def test_a_row_of_more_units_than_a_product_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 1000, generator=torch.Generator().manual_seed(2))
    expected = sums.of_torch(x, (7, 9))
    for columns, units in [(64, 64), (130, 2**22), (2**22, 300)]:
        monkeypatch.setattr(sums, "_COLUMNS", columns)
        monkeypatch.setattr(sums, "_UNITS", units)
        assert sums.of_torch(x, (7, 9)) == expected


def damaged(kind: str) -> tuple[list[dict[str, torch.Tensor]], list[str]]:
    """The parameters of two ranks with a fault, and the lines that name it."""
    weights, old = checkpoint(), checkpoint(1)
    ranks = [engine(weights, rank, 2) for rank in range(2)]
    if kind == "a bit of a shard":
        ranks[1]["qkv"].view(torch.int16)[20, 3] ^= 1
        return ranks, ["k: other elements"]
    if kind == "a stale tensor":
        for rank in range(2):
            ranks[rank]["norm"] = old["norm"]
        return ranks, ["norm: other elements"]
    if kind == "a shard of another version":
        ranks[1]["embed"] = engine(old, 1, 2)["embed"]
        return ranks, ["embed: other elements"]
    if kind == "lm_head tied":
        for rank in range(2):
            ranks[rank]["lm_head"] = ranks[rank]["embed"]
        return ranks, ["lm_head: other elements"]
    if kind == "lm_head left out":
        ranks = [{name: x for name, x in own.items() if name != "lm_head"} for own in ranks]
        return ranks, ["lm_head: missing"]
    if kind == "swapped experts":
        for own in ranks:
            own["experts"] = own["experts"][[1, 0, 2]]
        return ranks, [f"experts.{e}.{part}: other elements" for e in (0, 1) for part in ("gate", "up")]
    if kind == "ranks exchanged":
        return ranks[::-1], [f"{name}: other elements" for name in ("q", "k", "v", "embed", "lm_head")]
    if kind == "one rank's copy":
        ranks[1]["norm"] = old["norm"]
        return ranks, ["norm: ranks hold different elements in the same place"]
    if kind == "zeros":
        ranks[0]["embed"].zero_()
        return ranks, ["embed: other elements"]
    assert kind == "another type"
    for own in ranks:
        own["norm"] = own["norm"].half()
    return ranks, ["norm: f16 [40] in place of bf16 [40]"]


KINDS = [
    "a bit of a shard", "a stale tensor", "a shard of another version", "lm_head tied", "lm_head left out", "swapped experts",
    "ranks exchanged", "one rank's copy", "zeros", "another type",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_named(kind: str) -> None:
    ranks, lines = damaged(kind)
    present = [{name: parts for name, parts in layout(rank, 2).items() if name in ranks[rank]} for rank in range(2)]
    here = check.merge(check.digest(own, present[rank]) for rank, own in enumerate(ranks))
    assert sorted(check.digest(checkpoint()).differences(here)) == sorted(lines)


def test_a_missing_shard_is_missing() -> None:
    weights = checkpoint()
    here = check.digest(engine(weights, 0, 2), layout(0, 2))
    lines = check.digest(weights).differences(here)
    assert "embed: 1280 of 2560 elements are missing" in lines
    with pytest.raises(gcodec.InputError, match="are missing"):
        here.json()


def test_rows_that_differ_are_found_by_halves() -> None:
    weights = checkpoint()
    for wrong in ([], [0], [63], [5, 6, 7, 40], list(range(64))):
        ranks = [engine(weights, rank, 2) for rank in range(2)]
        for row in wrong:
            ranks[row // 32]["embed"].view(torch.int16)[row % 32, 11] ^= 4
        asked: list[tuple[int, int]] = []

        def ask(first: int, end: int, ranks: list[Any] = ranks, asked: list[Any] = asked) -> str:
            asked.append((first, end))
            return check.add(check.rows(own, "embed", first, end, layout(rank, 2)) for rank, own in enumerate(ranks))

        found = check.bisect(ROWS, lambda first, end: check.rows(weights, "embed", first, end), ask, most=100)
        assert [row for first, end in found for row in range(first, end)] == wrong
        assert len(asked) <= 1 + 6 * len(wrong)
    some = check.bisect(ROWS, lambda first, end: check.rows(weights, "embed", first, end), ask, most=2)
    assert some == [(0, 64)]


def test_what_does_not_fit_is_refused() -> None:
    weights = checkpoint()
    wrong: list[check.Layout] = [
        {"nothing": []},
        {"norm": [check.Part("norm", (slice(0, 4), 0, 0))]},
        {"norm": [check.Part("norm", shape=(30,))]},
        {"norm": [check.Part("norm", shape=(50,), offsets=(20,))]},
        {"norm": [check.Part("norm", offsets=(0, 0))]},
        {"embed": [check.Part("embed", axes=(0, 5))]},
    ]
    for one in wrong:
        with pytest.raises(gcodec.InputError):
            check.digest(weights, one)
    with pytest.raises(gcodec.InputError, match="do not fill"):
        check.fused((64, 8), {"q": 32, "k": 16})
    for text in ("{}", "[]", "x", '{"format": "gcodec-digests 9"}'):
        with pytest.raises(gcodec.InputError):
            check.Digests.from_json(text)
    lost = json.loads(check.digest(weights).json())
    del lost["tensors"]["norm"]
    with pytest.raises(gcodec.InputError, match="the sum is not"):
        check.Digests.from_json(json.dumps(lost))
