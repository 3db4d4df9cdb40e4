"""Steps that fail or are skipped on one rank first: all ranks do the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_ranks import ranks  # noqa: E402


def test_an_error_after_the_exchange_is_one_of_all_ranks(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "failure_ranks:late")
    assert len(one) == 18
    for case in one:
        (seen, kept, bits), (others, others_kept, other_bits) = one[case], two[case]
        # Values on a shared set are made from another rank's set.
        doing = "compress its tensors" if case.startswith(("shared set", "lgc")) else "decode the updates of this step"
        assert f"rank 1 could not {doing}: " in seen[2] and others[2].startswith("LimitError: "), case
        assert [seen[i] + others[i] for i in (0, 1, 3, 4)] == [""] * 4, (case, seen, others)
        assert kept == others_kept == [True] and bits == other_bits, case


@pytest.mark.parametrize("replicas", [False, True])
def test_shards_keep_their_residuals_without_the_scale_of_the_loss(tmp_path: Path, replicas: bool) -> None:
    one, two = ranks(tmp_path, 2, "failure_ranks:scales", replicas)
    assert one < 1e-6 and two < 1e-6, (one, two)


def test_a_step_of_shards_fails_on_all_ranks(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "failure_ranks:one_shard")
    for out in (one, two):
        assert out["nan"] and out["kept"] and out["then"] and out["skipped"] == 1, (out["nan"], out["kept"], out["then"], out["skipped"], out["exchanges"])
    assert "rank 1 could not decode the updates of this step: " in one["late"] and two["late"].startswith("LimitError"), (one, two)


def test_complex_shards(tmp_path: Path) -> None:
    for out in ranks(tmp_path, 2, "failure_ranks:complex_shards"):
        assert max(out.values()) < 1e-6, out


def test_limits_and_scalers_are_compared_and_a_rank_that_does_not_exchange_is_named(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "failure_ranks:meetings")
    for way in ("Average", "Sharded"):
        assert one[way] == two[way] and "the value of limits (max_elements) is 1 on rank 1 and " in one[way], one
    for way in ("Average", "State", "Sharded"):
        scaled, plain = f"{way}, True", f"{way}, False"
        assert one[scaled] == two[scaled] and "the use of a scaler is True on rank 1 and False on rank 0" in one[scaled], (one, two)
        # One that is not enabled is none.
        assert one[plain] == two[plain] == "", (one, two)
    assert "its model has no hook or no Average" in one["alone"] and "GCODEC_FIRST_STEP_SECONDS" in one["alone"], one
