"""Python and Rust produce the same bytes, and each library decodes them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import gcodec
from gcodec import _native
from gcodec._tensors import dlpack

SPECS = [codec.name for codec in gcodec.CODECS if codec is not gcodec.Delta] + [
    "topk:density=0.02,values=pow2,seed=5",
    "topk:k=99,values=q4,scope=global,positions=bitmap",
    "sbc:density=0.01,positions=rice",
    "sidco:density=0.01,fit=exp,stages=2",
    "randk:k=300,seed=11",
    "qsgd:bits=6,norm=max,seed=3",
    "sign:group=64",
]


def dump(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tensors that cover many paths of the encoder. The names ascend, as the command-line tool reads them."""
    cube = lambda *shape: (rng.standard_normal(shape) ** 3).astype(np.float32)  # noqa: E731
    return {
        "a.bias": cube(37),
        "b.constant": np.full(3000, 0.25, np.float32),
        "c.empty": np.zeros((0, 4), np.float32),
        "d.half": cube(20_001).astype(ml_dtypes.bfloat16),
        "e.matrix": cube(700, 301) * np.exp2(np.arange(301) % 9).astype(np.float32),
        "f.scalar": np.asarray(cube()),
        "g.zero": np.zeros(5000, np.float32),
    }


def safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    names = {"float32": "F32", "bfloat16": "BF16"}
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": names[array.dtype.name], "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))


@pytest.mark.parametrize("spec", SPECS)
def test_python_encodes_as_the_library(spec: str, rng: np.random.Generator) -> None:
    arrays = dump(rng)
    data = gcodec.encode(arrays, spec)
    assert data == _native.library_encode(dlpack.given(arrays), spec, True)[0]
    writer_bytes = bytearray()

    class Sink:
        def write(self, piece: memoryview) -> int:
            writer_bytes.extend(piece)
            return len(piece)

    with gcodec.Writer(Sink()) as writer:
        writer.write(arrays, spec)
    assert writer_bytes == data


@pytest.mark.parametrize(
    ("dtype", "codec", "least"),
    [
        ("float32", "raw", 36 << 20),  # expected to be large
        ("float32", "topk:density=0.999,values=f32", 35 << 20),  # found to be large on the way
        ("float32", "topk:density=0.1,values=f32", 1),  # small after all
        ("float8_e4m3fn", "int8:group=16", 38 << 20),  # larger than the tensor, and than there is room for
    ],
)
def test_large_streams_are_those_of_the_library(dtype: str, codec: str, least: int, rng: np.random.Generator) -> None:
    of = np.dtype(dtype) if hasattr(np, dtype) else np.dtype(getattr(ml_dtypes, dtype))
    arrays = {"w": rng.standard_normal((36 << 20) // of.itemsize, dtype=np.float32).astype(of), "b": np.ones(3, of)}
    data = gcodec.encode(arrays, codec)
    assert len(data) >= least and data == _native.library_encode(dlpack.given(arrays), codec, True)[0]
    assert sys.getsizeof(data) == sys.getsizeof(b"") + len(data), "room that was not needed is given back"
    arrays["w"][-1] = np.nan
    if codec != "raw":
        with pytest.raises(gcodec.InputError):
            gcodec.encode(arrays, codec)


@pytest.mark.parametrize("spec", SPECS)
def test_python_encodes_as_the_command_line(spec: str, rng: np.random.Generator, command: str, tmp_path: Path) -> None:
    arrays = dump(rng)
    safetensors(tmp_path / "in.safetensors", arrays)
    rules = {"*.bias": "lossless", "b*": "raw"}
    out = tmp_path / "out.gcu"
    arguments = [command, "encode", str(tmp_path / "in.safetensors"), "-o", str(out), "--codec", spec]
    subprocess.run(arguments + [f"--rule={glob}={rule}" for glob, rule in rules.items()], check=True, capture_output=True)
    assert gcodec.encode(arrays, spec, rules=rules) == out.read_bytes()


def test_deltas_are_those_of_the_command_line(rng: np.random.Generator, command: str, tmp_path: Path) -> None:
    old = dump(rng)
    new = {name: array.copy() for name, array in old.items()}
    new["e.matrix"][::7, 3] *= np.float32(1.001)
    new["d.half"].view(np.uint16)[::50] += 1
    safetensors(tmp_path / "old.safetensors", old)
    safetensors(tmp_path / "new.safetensors", new)
    out = tmp_path / "out.gcu"
    files = ["--base", str(tmp_path / "old.safetensors"), str(tmp_path / "new.safetensors"), "-o", str(out)]
    subprocess.run([command, "encode", *files, "--codec", "delta"], check=True, capture_output=True)
    data = gcodec.encode(new, gcodec.Delta(), base=old)
    assert data == out.read_bytes()
    back = gcodec.decode(data, base=old, framework="numpy")
    assert all(back[name].tobytes() == array.tobytes() for name, array in new.items())


@pytest.mark.parametrize("spec", SPECS)
def test_the_libraries_understand_each_others_bytes(spec: str, rng: np.random.Generator) -> None:
    arrays = dump(rng)
    in_torch = {
        name: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == ml_dtypes.bfloat16
        else torch.from_numpy(array)
        for name, array in arrays.items()
    }
    in_jax = {name: jnp.asarray(array) for name, array in arrays.items()}
    data = gcodec.encode(arrays, spec)
    assert gcodec.encode(in_torch, spec) == data and gcodec.encode(in_jax, spec) == data
    by_numpy, by_torch, by_jax = (gcodec.decode(data, framework=f) for f in ("numpy", "torch", "jax"))
    for name, array in arrays.items():
        assert by_numpy[name].dtype == array.dtype and by_numpy[name].shape == array.shape
        expected = by_numpy[name].tobytes()
        assert np.asarray(by_jax[name]).tobytes() == expected
        assert by_torch[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes() == expected
        if not gcodec.decode(data)[name].nbytes or spec in ("raw", "lossless"):
            assert expected == array.tobytes()


def test_bytes_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    arrays = dump(rng)
    before = [gcodec.encode(arrays, spec) for spec in SPECS]
    try:
        for threads in (1, 3):
            gcodec.set_num_threads(threads)
            assert gcodec.num_threads() == threads
            assert [gcodec.encode(arrays, spec) for spec in SPECS] == before
    finally:
        gcodec.set_num_threads(0)


class Pair(NamedTuple):
    first: object
    second: object


def test_trees_come_back_as_they_were(gradient: np.ndarray) -> None:
    tree = {
        "layers": [{"w": gradient, "b": torch.from_numpy(gradient[0].copy())}, Pair(jnp.asarray(gradient[1]), None)],
        "more": (gradient[2:4],),
        "nothing": {},
        3: gradient[5],
    }
    data = gcodec.encode(tree, "lossless")
    assert list(gcodec.decode(data)) == ["layers.0.w", "layers.0.b", "layers.1.first", "more.0", "3"]
    back = gcodec.decode(data, like=tree)
    assert type(back["layers"][1]) is Pair and back["layers"][1].second is None and back["nothing"] == {}
    assert isinstance(back["layers"][0]["b"], torch.Tensor) and isinstance(back["layers"][1].first, jax.Array)
    assert np.array_equal(back[3], gradient[5]) and np.array_equal(back["more"][0], gradient[2:4])
    assert isinstance(gcodec.decode(data, like=tree, framework="torch")[3], torch.Tensor)
    assert np.array_equal(gcodec.decode(gcodec.encode(gradient, "raw"), like=gradient), gradient)


def test_state_dicts_and_other_mappings(gradient: np.ndarray) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    state = module.state_dict()
    back = gcodec.decode(gcodec.encode(state, "topk", rules={"*num_batches_tracked": "lossless"}), like=state)
    assert type(back) is OrderedDict and list(back) == list(state)
    module.load_state_dict(gcodec.decode(gcodec.encode(state, "lossless"), like=state))
    grouped = defaultdict(list, {"g": [gradient]})
    assert gcodec.decode(gcodec.encode(grouped, "raw"), like=grouped)["not there"] == []


def test_pytrees_of_jax(gradient: np.ndarray) -> None:
    @jax.tree_util.register_dataclass
    @__import__("dataclasses").dataclass
    class State:
        momentum: object
        nested: object

    tree = State(jnp.asarray(gradient), {"x": [jnp.ones(3)]})
    data = gcodec.encode(tree, "lossless")
    assert list(gcodec.decode(data)) == ["momentum", "nested.x.0"]
    back = gcodec.decode(data, like=tree)
    assert type(back) is State and jnp.array_equal(back.momentum, tree.momentum)
    assert jax.tree_util.tree_structure(back) == jax.tree_util.tree_structure(tree)


def test_trees_that_do_not_fit(gradient: np.ndarray) -> None:
    with pytest.raises(gcodec.InputError, match="two tensors"):
        gcodec.encode({"a.b": gradient, "a": {"b": gradient}}, "raw")
    data = gcodec.encode({"a": gradient}, "raw")
    with pytest.raises(gcodec.InputError, match="no tensor 'b'"):
        gcodec.decode(data, like={"b": gradient})
    with pytest.raises(gcodec.InputError, match="shape"):
        gcodec.decode(data, like={"a": gradient[0]})


def test_what_is_wanted_and_what_is_known(gradient: np.ndarray) -> None:
    arrays = {name: gradient * i for i, name in enumerate("abc")}
    data = gcodec.encode(arrays, gcodec.TopK(density=0.1, scope="global"))
    some = gcodec.decode(data, names={"b"})
    assert list(some) == ["b"] and some["b"].tobytes() == gcodec.decode(data)["b"].tobytes()
    new = {**arrays, "b": arrays["b"] + 1}
    delta = gcodec.encode(new, "delta", base=arrays)
    assert np.array_equal(gcodec.decode(delta, base=arrays, names={"b"}, framework="numpy")["b"], new["b"])
    with pytest.raises(gcodec.InputError) as error:
        gcodec.decode(delta)
    assert error.value.kind == "unknown_reference"
    with pytest.raises(gcodec.InputError) as error:
        gcodec.decode(delta, base={**arrays, "b": arrays["b"] + 2})
    # One digest for both small tensors.
    assert error.value.kind == "checksum_mismatch" and error.value.tensor == 0
