"""Gradients between PyTorch's processes: gloo over loopback. torch_ranks.py has the code of the ranks."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_ranks import CODECS, ranks

from gcodec.torch.average import unused
from gcodec.torch.finite import are_finite

SEEDS, STEPS = 5, 200
PARAMETERS = 64 * 48 + 48 + 48 * 10 + 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks(tmp_path_factory.mktemp("trained"), 2, "every_codec", SEEDS, STEPS)


def test_ranks_end_with_the_same_bits(trained: list[dict[str, Any]]) -> None:
    one, two = trained
    assert set(one) == {"plain", "dgc", *CODECS}
    for name in one:
        assert [run["bits"] for run in one[name]] == [run["bits"] for run in two[name]], name
    assert len({run["bits"] for run in one["topk"]}) == SEEDS


def worse_by(trained: list[dict[str, Any]], name: str) -> float:
    """Returns by how many standard errors the mean loss exceeds that of plain DistributedDataParallel."""
    plain, other = ([run["loss"] for run in trained[0][runs]] for runs in ("plain", name))
    error = ((statistics.variance(plain) + statistics.variance(other)) / SEEDS) ** 0.5
    return (statistics.mean(other) - statistics.mean(plain)) / error


@pytest.mark.parametrize("name", ["topk", "scalecom"])
def test_training_reaches_the_loss_of_plain_ddp(trained: list[dict[str, Any]], name: str) -> None:
    # Welch's t for five seeds each: with at least 4 degrees of freedom it exceeds 7.17 in 1 of 1000 cases.
    by = worse_by(trained, name)
    print(f"{name}: {by:.2f} standard errors above plain")
    assert by < 7.17


def test_the_comparison_notices_a_worse_codec(trained: list[dict[str, Any]]) -> None:
    assert worse_by(trained, "no feedback") > 7.17


def test_bytes_are_counted(trained: list[dict[str, Any]]) -> None:
    for name in CODECS:
        one, two = (rank[name][0]["profile"] for rank in trained)
        assert one["exchanges"] == two["exchanges"] > 0
        if not name.startswith("scalecom"):
            # Padded frames of the other rank, and 8 bytes for their size.
            assert one["received"] >= two["sent"] + 8 * one["exchanges"], name
            assert two["received"] >= one["sent"] + 8 * two["exchanges"], name
        assert min(one["selection"], one["coding"], one["communication"]) > 0
    raw, topk = (trained[0][name][0]["profile"] for name in ("raw", "topk"))
    # 4 bytes for each parameter and less than 1 KB of framing; top-k at 5 per cent: 2 bytes and less than 2
    # of position.
    assert 4 * PARAMETERS < raw["sent"] / raw["exchanges"] < 4 * PARAMETERS + 1024
    assert topk["sent"] / topk["exchanges"] < 4 * 0.05 * PARAMETERS + 256


def test_bytes_of_scalecom_do_not_grow_with_ranks(tmp_path: Path) -> None:
    for world in (2, 4):
        results = ranks(tmp_path / str(world), world, "short", "scalecom", 8)
        assert len({result["bits"] for result in results}) == 1
        # ceil(0.05 n) values of each tensor.
        values = 4 * (154 + 3 + 24 + 1) * 8
        for result in results:
            own_sets = result["profile"]["sent"] - values
            # The rank led 8 / world steps. A set of 182 of 3610 elements takes less than 1 byte each, and a
            # manifest.
            assert 0 < own_sets < 8 / world * (182 + 512)


def test_the_phases_of_the_learned_codec(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "phases")
    assert one[1:] == two[1:], "both ranks have the model of the first, and the same weights"
    assert len(one[1]) > 1000
    # Each rank leads in every other step. Dense; then f32 values at a fifth of the positions; then codes of
    # one rank's values, and a tenth of each rank's own.
    pairs = [(one[0][i] + two[0][i]) for i in range(9)]
    full, top_k, learned = pairs[1], pairs[3], pairs[7]
    assert 2 * 4 * PARAMETERS < full < 2 * 4 * PARAMETERS + 1024
    assert 3 * top_k < full
    assert learned < 0.6 * top_k, pairs


def test_bytes_of_a_shared_set(trained: list[dict[str, Any]]) -> None:
    shared = sum(rank["shared set"][0]["profile"]["sent"] / 40 for rank in trained)
    values = 2 * (154 + 3 + 24 + 1)
    # Powers of two take at most a byte; the positions of one rank less than a byte each; headers.
    assert 0.5 * values < shared < 1.5 * values + 512, shared


def test_groups_of_ranks(tmp_path: Path) -> None:
    results = ranks(tmp_path, 4, "groups")
    for name in ("topk", "scalecom"):
        together, apart = zip(*(result[name] for result in results), strict=True)
        assert len(set(together)) == 1
        assert apart[0] == apart[1] != apart[2] == apart[3]
        assert not set(together) & set(apart)


def test_buckets_do_not_matter(tmp_path: Path) -> None:
    results = ranks(tmp_path, 2, "buckets")
    assert results[0] == results[1]
    one, small, views = results[0].values()
    assert one[1] == 1 and small[1] == views[1] > 1, "DistributedDataParallel did not make several buckets"
    assert one[0] == small[0] == views[0]


def test_frames_travel_while_the_backward_pass_goes_on(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "overlapped")
    # There is one bucket in the first step, and then one for each tensor.
    assert one == two and len(one) == 4 and min(one[1:]) >= 2, one


@pytest.mark.parametrize("name", ["topk", "scalecom", "dgc", "powersgd", "shared set global", "lgc", "lgc in training"])
def test_a_checkpoint_goes_on_as_if_nothing_had_been(tmp_path: Path, name: str) -> None:
    for whole, again in ranks(tmp_path / "run", 2, "checkpoint", name, str(tmp_path)):
        assert whole == again


@pytest.mark.parametrize("name", ["topk", "scalecom", "shared set", "lgc"])
def test_all_ranks_raise_if_one_cannot(tmp_path: Path, name: str) -> None:
    one, two = ranks(tmp_path, 2, "failures", name)
    assert one[0] == two[0] == "" and "rank 1 could not compress" in one[1], one
    assert "finite" in two[1], two


@pytest.mark.parametrize("codec", ["raw", "chunked:chunk=64,kept=8"])
def test_diloco(tmp_path: Path, codec: str) -> None:
    rounds, every = 6, 10
    one, two = ranks(tmp_path, 2, "diloco", codec, rounds, every)
    assert [step for step, _ in one["exchanged"]] == [every * (i + 1) - 1 for i in range(rounds)]
    assert one["exchanged"] == two["exchanged"]
    assert one["between"] != two["between"], "ranks train by themselves in between"
    assert one["bits"] == one["twin"] == two["twin"]
    assert one["profile"]["exchanges"] == rounds
    # Guessing has a loss of log 10 = 2.30.
    assert one["loss"] < 1.5


def test_profiles_are_printed_by_the_first_rank(tmp_path: Path) -> None:
    first, other = ranks(tmp_path, 2, "printed")
    lines = first.splitlines()
    assert len(lines) == 2 and "8 exchanges; each selection" in lines[1], lines
    assert other == ""


def test_states_are_checked(tmp_path: Path) -> None:
    assert ranks(tmp_path, 1, "refusals") == [6]


@pytest.mark.parametrize("name", ["topk", "scalecom", "dgc"])
def test_the_whole_is_saved_and_copied(tmp_path: Path, name: str) -> None:
    one, two = ranks(tmp_path / "run", 2, "saved_whole", name, str(tmp_path))
    assert one == two and len(set(one)) == 1, (one, two)


def test_unused_gradients_are_found_in_their_bucket() -> None:
    flat = torch.zeros(16)
    gradients = {"zero": flat[:4], "late": flat[4:8], "turned": flat[8:14].view(2, 3).t(), "none": flat[14:14]}
    flat[7], flat[13] = 1.0, -2.0
    for buffer in (None, flat):
        assert unused(gradients, buffer) == ["zero", "none"]
    flat[8] = flat[0] = 0.5
    assert unused(gradients, flat) == unused(gradients) == ["none"]
    # The buffer of complex gradients has pairs of real numbers.
    pairs = torch.view_as_complex(flat.view(-1, 2))
    assert unused({"complex": pairs[:2], "zero": pairs[1:2]}, flat) == ["zero"]


def test_large_sums_of_finite_numbers_are_finite() -> None:
    tensors = [torch.full((4,), 3e38), torch.ones(2, dtype=torch.bfloat16), torch.tensor([1]), torch.zeros(0)]
    tensors.append(torch.ones(1, dtype=torch.float64))
    assert are_finite(tensors) and are_finite([])
    for wrong in (torch.tensor([1.0, float("nan")]), torch.tensor([float("-inf")], dtype=torch.float16)):
        assert not are_finite([*tensors, wrong]) and not are_finite([wrong])
