"""Streams with codes of the learned codec, read in Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import gcodec


@pytest.fixture(scope="module")
def folder(command: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an update with its codes, the same with the model in the stream, and what the command line
    decodes."""
    place = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(1)
    names = []
    for step in range(3):
        common = rng.standard_normal(5000) ** 3
        for worker in range(2):
            values = (common + 0.3 * rng.standard_normal(5000) ** 3).astype("f4")
            names.append(f"run_step{step}_worker{worker}.npz")
            np.savez(place / names[-1], a=values[:4000].reshape(40, 100), b=values[4000:])
    train = ["model", "train", "-o", "model.lgc", "--width=4", "--iterations=50", "--density=0.05"]
    codec = "--codec=lgc:model=model.lgc,density=0.05"
    for args in (
        [*train, *names],
        ["encode", names[-1], "-o", "update.gcu", codec, "--sender=1"],
        ["encode", names[-1], "-o", "inline.gcu", codec + ",inline=yes", "--sender=1"],
        ["decode", "update.gcu", "-o", "decoded.npz", "--model", "model.lgc"],
    ):
        subprocess.run([command, *args], cwd=place, check=True, capture_output=True)
    return place


@pytest.mark.parametrize("stream", ["update.gcu", "inline.gcu"])
def test_codes_are_decoded_by_their_model(folder: Path, stream: str) -> None:
    models = [(folder / "model.lgc").read_bytes()] if stream == "update.gcu" else []
    data = (folder / stream).read_bytes()
    found = gcodec.decode(data, framework="numpy", models=models)
    with np.load(folder / "decoded.npz") as expected:
        assert set(found) == set(expected) == {"a", "b"}
        assert all(np.array_equal(found[name], expected[name]) for name in found)
    assert np.count_nonzero(found["a"]) > 100
    like = {"a": np.zeros((40, 100), "f4")}
    assert np.array_equal(gcodec.decode(data, like=like, names={"a"}, models=models)["a"], found["a"])


def test_a_missing_model_is_named(folder: Path) -> None:
    data = (folder / "update.gcu").read_bytes()
    with pytest.raises(gcodec.InputError, match="missing model [0-9a-f]{8}.*: give its bytes in models"):
        gcodec.decode(data)
    with pytest.raises(gcodec.GcodecError, match="not a model"):
        gcodec.decode(data, models=[b"nothing"])


def test_a_missing_base_is_still_a_missing_base() -> None:
    data = gcodec.encode({"w": np.ones(9, "f4")}, "delta", base={"w": np.zeros(9, "f4")})
    with pytest.raises(gcodec.InputError, match="base"):
        gcodec.decode(data)
