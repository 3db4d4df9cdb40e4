"""Parameters that are frozen or unfrozen, early trainers, and states that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_ranks import ranks  # noqa: E402


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "freeze_ranks:frozen")
    assert one == two and len(one) == 18
    for case, (seen, _) in one.items():
        assert seen == [[True, True], [False, True], [True, True]], (case, seen)


def test_parameters_that_become_trainable_join(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "freeze_ranks:unfrozen")
    assert len(one) == 14
    for case in one:
        (still, moved, said, bits), (_, _, said_too, other_bits) = one[case], two[case]
        if case.endswith("lgc"):
            assert "make a new trainer with Lgc" in said and "make a new trainer with Lgc" in said_too, (said, said_too)
        else:
            assert still and moved and said == said_too == "" and bits == other_bits, (case, still, moved, said)


def test_what_no_rank_has_stays_none(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "freeze_ranks:none")
    assert one == two
    for codec, gradients in one.items():
        assert {name.partition(".")[0] for name, gradient in gradients.items() if gradient is None} == {"never"}
        # The first rank chooses for all in the first step of ScaleCom, and keeps back what it does not use.
        assert any(map(any, gradients["alone.weight"])) or codec == "scalecom"


def test_parameters_that_cannot_join_are_named(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "freeze_ranks:messages")
    assert one["one rank"] == two["one rank"] and "only on rank 1 is there '0.bias'" in one["one rank"], one
    for what in ("outer", "outer again"):
        assert "the outer optimizer lacks the trainable '0.weight', '0.bias'" in one[what], one
    assert "make State again after parameters of the model are added or replaced" in one["replaced"], one


def test_trainers_made_before_the_process_group(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "freeze_ranks:before", str(tmp_path / "second"))
    assert one["gradients"] == two["gradients"] and one["bits"] == two["bits"]
    for what in ("saved", "called"):
        assert "call torch.distributed.init_process_group before the first step" in one[what], one
    assert "Dgc clips for 7 workers, and the group has 2" in one["workers"]


def test_states_of_other_models_and_numbers_of_ranks(tmp_path: Path) -> None:
    ranks(tmp_path / "two", 2, "freeze_ranks:save", str(tmp_path))
    results = ranks(tmp_path / "three", 3, "freeze_ranks:resume", str(tmp_path))
    for case, (refused, begins, gradients, names) in results[0].items():
        assert "rank 0 of 2, and this is rank 0 of 3" in refused and "strict=False" in refused
        # The training of the learned codec begins again: its model has two decoders.
        assert begins == (1 if case.startswith("lgc") else int(case[-1])), case
        assert {name.partition("#")[0] for name in names} == {"2.weight", "2.bias"}, names
        assert all(other[case][1:3] == (begins, gradients) for other in results), case
    # With fewer ranks, the model goes on.
    [alone] = ranks(tmp_path / "one", 1, "freeze_ranks:resume", str(tmp_path))
    assert {case: begins for case, (_, begins, _, _) in alone.items() if case.startswith("lgc")} == {"lgc, 3": 1, "lgc, 7": 7}
