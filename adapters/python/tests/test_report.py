"""`inspect` reports the contents of a stream, as the command line does."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import gcodec


def stream(gradient: np.ndarray) -> bytes:
    out = io.BytesIO()
    with gcodec.Writer(out) as writer:
        writer.metadata({"model": "test"})
        tensors = {"w": gradient, "b": gradient[0], "c": gradient[1, :9]}
        writer.write(tensors, "topk:density=0.02", header=gcodec.UpdateHeader(step=3, world=4))
        writer.write(tensors, "natural", rules={"c": "raw"}, header=gcodec.UpdateHeader(step=4))
    return out.getvalue()


def test_it_says_what_the_command_line_says(gradient: np.ndarray, command: str, tmp_path: Path) -> None:
    path = tmp_path / "run.gcu"
    path.write_bytes(stream(gradient))
    said = subprocess.run([command, "inspect", "--json", str(path)], check=True, capture_output=True)
    expected = json.loads(said.stdout)
    report = gcodec.inspect(path)
    for name in ("bytes", "segments", "has_index", "profile", "beyond_core", "ok", "metadata"):
        assert getattr(report, name) == expected[name], name
    assert report.version == (expected["version"]["major"], expected["version"]["minor"])
    for mine, theirs in zip(report.frames, expected["frames"], strict=True):
        assert vars(mine) == theirs
    for mine, theirs in zip(report.manifests, expected["manifests"], strict=True):
        assert vars(mine) == theirs
    for update, theirs in zip(report.updates, expected["updates"], strict=True):
        for name in [*vars(update), "density", "bits_per_parameter", "ratio"]:
            if name != "tensors":
                assert getattr(update, name) == pytest.approx(theirs[name]), name
        for tensor, its in zip(update.tensors, theirs["tensors"], strict=True):
            for name in [*vars(tensor), "density", "bits_per_parameter"]:
                value = getattr(tensor, name)
                if name == "shape":
                    assert list(value) == its[name]
                elif name == "values":
                    # The command line also names the variant of a kind, such as raw for plain floats.
                    assert value == its[name] or (value, its[name]) in {("floats", "raw"), ("floats", "f32")}
                else:
                    assert value == pytest.approx(its[name]), name


@pytest.mark.parametrize("codec", ["lossless", "natural", "randk", "chunked", "topk:density=0.05"])
def test_the_core_profile_has_the_same_elements(gradient: np.ndarray, codec: str) -> None:
    full, core = gcodec.encode({"w": gradient}, codec), gcodec.encode({"w": gradient}, codec, profile="core")
    assert gcodec.inspect(core).profile == "core"
    # Random numbers have no rows or columns to predict anything from.
    same = codec in ("natural", "topk:density=0.05")
    assert (gcodec.inspect(full).profile == "core") == same == (full == core)
    assert bytes(gcodec.decode(full)["w"].numpy().tobytes()) == gcodec.decode(core)["w"].numpy().tobytes()
    out = io.BytesIO()
    with gcodec.Writer(out, profile="core") as writer:
        writer.write({"w": gradient}, codec)
    assert out.getvalue() == core


def test_what_the_core_profile_lacks_is_refused(gradient: np.ndarray) -> None:
    for codec in ("demo", "powersgd"):
        with pytest.raises(gcodec.InputError, match="not in the core profile of the format"):
            gcodec.encode({"w": gradient}, codec, profile="core")
    with pytest.raises(gcodec.InputError, match="a delta"):
        gcodec.encode({"w": gradient}, "delta", base={"w": gradient * 2}, profile="core")
    with pytest.raises(gcodec.InputError, match="unknown profile"):
        gcodec.encode({"w": gradient}, "raw", profile="cor")  # type: ignore[arg-type]


def test_it_can_be_read(gradient: np.ndarray) -> None:
    text = repr(gcodec.inspect(stream(gradient)))
    lines = text.splitlines()
    assert lines[0].startswith("gcodec 1.0: ") and "2 updates, with an index" in lines[0]
    assert lines[1] == "model = test"
    assert lines[2].startswith("step 3 sender 0 [topk:density=0.02,values=f32]: 120,710 elements")
    assert lines[3].split() == ["tensor", "type", "shape", "support", "values", "kept", "density", "bits/par"]
    assert lines[4].split()[:6] == ["w", "f32", "300x401", "gaps-rice", "floats", "2,406"]
    assert max(map(len, lines)) < 160


def test_what_is_wrong_stands_in_the_report(gradient: np.ndarray) -> None:
    data = stream(gradient)
    whole = gcodec.inspect(data)
    cut = gcodec.inspect(data[:-10])
    assert whole.ok and not cut.ok and isinstance(cut.error, gcodec.FormatError)
    assert cut.error.kind == "truncated" and len(cut.updates) == 2 and "error: " in repr(cut)
    assert not gcodec.inspect(b"").ok
    with pytest.raises(FileNotFoundError):
        gcodec.inspect("/no/such/file")


def test_statistics_are_those_of_numpy(gradient: np.ndarray) -> None:
    odd = gradient.astype(np.float64)[:7].copy()
    odd[0, 3], odd[2, 5], odd[3] = np.nan, -np.inf, 0.0
    for tensor in (gradient, gradient.T, gradient.astype(np.float16), odd, np.arange(-5, 9, dtype=np.int16)):
        found = gcodec.stats({"t": tensor})["t"]
        values = tensor.astype(np.float64).ravel()
        finite = values[np.isfinite(values)]
        assert (found.elements, found.nan) == (values.size, np.isnan(values).sum())
        assert (found.infinite, found.zeros) == (np.isinf(values).sum(), (values == 0).sum())
        assert (found.min, found.max) == (finite.min(), finite.max())
        for name, expected in [("norm", np.linalg.norm(finite)), ("mean", finite.mean()), ("std", finite.std())]:
            assert getattr(found, name) == pytest.approx(expected, rel=1e-9), name
        _, powers = np.frexp(finite[finite != 0])
        signs = finite[finite != 0] < 0
        expected = {}
        for negative, power in zip(signs.tolist(), (powers - 1).tolist(), strict=True):
            expected[negative, power] = expected.get((negative, power), 0) + 1
        assert found.exponents == expected
    assert (gcodec.stats(odd)["tensor"].first_nan, gcodec.stats(odd)["tensor"].first_infinite) == (3, 2 * odd.shape[1] + 5)
    assert gcodec.stats(np.zeros((0, 3), np.float32))["tensor"].min is None


def test_a_delta_alone_has_no_norm(gradient: np.ndarray) -> None:
    data = gcodec.encode({"w": gradient}, "delta", base={"w": gradient * 2})
    update = gcodec.inspect(data).updates[0]
    assert update.norm is None and update.tensors[0].norm is None and update.tensors[0].nan is None
