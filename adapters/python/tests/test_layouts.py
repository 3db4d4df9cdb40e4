"""Parameters that are complex or not row-major, on ranks that are processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_ranks import ranks  # noqa: E402


def test_means_and_residuals_do_not_depend_on_the_memory_format(tmp_path: Path) -> None:
    for result in ranks(tmp_path, 2, "layout_ranks:layouts"):
        assert len(result) == 12 and not any(result.values()), result


def test_a_matrix_codec_gets_the_real_matrix(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "layout_ranks:rank_one")
    assert one == two < 1e-5


def test_a_memory_format_that_changes_under_ddp_is_refused(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "layout_ranks:changed")
    for case in ("format after", "later"):
        assert "the memory format of 'w' was changed after DistributedDataParallel was made" in two[case], two
        assert "make DistributedDataParallel and its hook again" in one[case], one
    assert one["state first"] == two["state first"] == ""


def test_complex_parameters_are_averaged_whole(tmp_path: Path) -> None:
    one, two = ranks(tmp_path, 2, "layout_ranks:complexes")
    assert one == two and len(one) == 35
    # Sums of 4 gradients in f32.
    lost = {name: lost for name, (lost, _) in one.items()}
    assert max(lost.values()) < 1e-6, lost
