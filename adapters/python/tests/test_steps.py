"""Steps of DistributedDataParallel that go another way than usual: parts of a model that are not used, NaN,
a scale of the loss, ranks that do not fit together. step_ranks.py has the code of the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from step_ranks import PROPAGATE, SCHEDULES, SENDERS
from torch_ranks import ranks

# Of sums of 24 gradients in f32.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def lost_by_branches(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return ranks(tmp_path_factory.mktemp("branches"), 2, "step_ranks:branches")


@pytest.mark.parametrize("way", ["together", "apart"])
@pytest.mark.parametrize("sender", SENDERS)
def test_nothing_is_lost_of_parameters_that_a_step_does_not_use(
    lost_by_branches: list[dict[str, float]], sender: str, way: str
) -> None:
    one, two = lost_by_branches
    assert one[f"{sender} {way}"] == two[f"{sender} {way}"] < ROUNDING


def test_averages_on_request_lose_nothing(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "step_ranks:averaged")
    assert one == two and set(one) == set(SENDERS) and max(one.values()) < ROUNDING, one


def test_gradients_that_do_not_fit_are_refused_on_all_ranks(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "step_ranks:wrong_averages")
    for what, said in {"missing": "'0.bias' differ", "shape": "'0.bias' has the shape (3,)", "sparse": "'0.bias' is sparse"}.items():
        assert one[what].startswith("rank 1 could not compress") and said in one[what] and said in two[what], one
    assert one["then"] == two["then"] and float(one["then"]) > 0


@pytest.fixture(scope="module")
def not_finite(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks(tmp_path_factory.mktemp("not_finite"), 2, "step_ranks:not_finite")


@pytest.mark.parametrize("sender", PROPAGATE)
def test_all_ranks_get_nan_and_keep_their_residuals(not_finite: list[dict[str, Any]], sender: str) -> None:
    for result in not_finite:
        assert result[sender]["seen"] == [True, True] and result[sender]["skipped"] == 1
        assert result[sender]["lost"] < ROUNDING


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks(tmp_path_factory.mktemp("scheduled"), 2, "step_ranks:scheduled")


@pytest.mark.parametrize("name", SCHEDULES)
def test_residuals_go_on_from_codec_to_codec(scheduled: list[dict[str, Any]], name: str) -> None:
    for result in scheduled:
        assert result[name]["lost"] < ROUNDING and result[name]["kept"] == [True, True], result[name]
        assert result[name]["names"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
    if name == "dense first":
        # The first message also has the settings.
        _, raw, *middle = scheduled[0][name]["sent"]
        assert raw > 4 * 3610 and all(n < raw / 4 for n in middle) and middle[-1] < middle[0] / 4


def test_momentum_restarts_where_an_element_is_sent(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "step_ranks:masked")
    assert all(one["seen"]) and all(two["seen"]) and one["exchanges"] == 3
    assert one["bits"] == two["bits"]


def test_training_goes_on_after_an_error(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "step_ranks:rejected")
    # The bucket of the last weight is the first one; those after it were on their way.
    for said in one["said"]:
        assert said.startswith('rank 1 could not compress its tensors: tensor "2.weight": element 0 is NaN'), said
    for said in two["said"]:
        assert said.startswith('tensor "2.weight": element 0 is NaN or infinite'), said
    for result in (one, two):
        assert len(result["said"]) == 2 and result["exchanges"] == 4 and result["lost"] < ROUNDING


def test_training_in_f16_with_a_scale_of_the_loss(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "step_ranks:scaled", 300)
    plain, topk = one["plain"], one["topk"]
    assert topk["bits"] == two["topk"]["bits"]
    # The scale falls from 2^30 until f16 holds the gradients, and every growth that is too much falls again.
    assert topk["falls"] == topk["skipped"] > 5 and topk["scale"] < 2.0**25, topk
    print(f"loss {plain['loss']:.4f} plain, {topk['loss']:.4f} with top-k at 5 per cent")
    # Guessing has a loss of log 10 = 2.30.
    assert topk["loss"] < max(0.2, 1.5 * plain["loss"]), (plain, topk)
    assert max(one["lost by topk"], one["lost by scalecom"]) < ROUNDING


def test_ranks_that_do_not_fit_say_so(tmp_path: Path) -> None:
    said = ranks(tmp_path, 3, "step_ranks:meetings")
    assert said[0] == said[1] == said[2]
    odd = "rank 2 cannot train with rank 0: "
    assert said[0]["codec"].startswith(odd + "the codec is qsgd:") and " on rank 2 and topk:" in said[0]["codec"]
    assert said[0]["scalecom"].startswith(odd + "the codec is ScaleCom(")
    assert said[0]["rules"].startswith(odd + "the value of rules is [['*.bias', 'raw']] on rank 2")
    assert said[0]["non_finite"] == odd + "the value of non_finite is zero on rank 2 and reject on rank 0"
    assert said[0]["step"] == odd + "the step is 7 on rank 2 and 0 on rank 0"
    assert said[0]["names"] == odd + "tensor 2 is '3.weight' (float32, 10 x 48) on rank 2 and '2.weight' (float32, 10 x 48) on rank 0"
    odd = "rank 0 cannot train with rank 1: "
    assert said[0]["shape"] == odd + "tensor 0 is '0.weight' (float32, 32 x 64) on rank 0 and '0.weight' (float32, 48 x 64) on rank 1"
    assert said[0]["dtype"].startswith(odd + "tensor 0 is '0.weight' (float32, 48 x 64) on rank 0 and '0.weight' (bfloat16,")


def test_scalecom_takes_gradients_of_several_types_and_sparse_ones_are_refused(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "step_ranks:mixed")
    assert one["bits"] == two["bits"] and one["last"] < one["first"] - 0.5, (one["first"], one["last"])
    for result in (one, two):
        for said in result["sparse"]:
            assert "the gradient of '0.weight' is sparse: make its layer with sparse=False" in said, said
