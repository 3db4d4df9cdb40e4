"""Files of tensors with the interface of safetensors: both kinds of file give what safetensors gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
import safetensors  # noqa: E402

import gcodec  # noqa: E402

INDICES: list[Any] = [
    ...,
    0,
    -1,
    slice(1, 3),
    slice(5, 2),
    slice(-2, None),
    slice(None, None, 3),
    (2, slice(1, 4)),
    (slice(0, 4), slice(None), 2),
    (slice(None), 1),
    (..., 0),
    (0, ..., slice(1, 2)),
    None,
    ([0, 2],),
    (slice(None), [0, 1]),
    (3, 1, 0),
]


def tensors() -> dict[str, Any]:
    """Tensors of several blocks, of shared blocks, and of all types."""
    generator = torch.Generator().manual_seed(3)
    normal = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    out = {
        "z.large": normal(37, 180_000),
        "b.half": normal(301, 77).to(torch.bfloat16),
        "a.cube": normal(5, 6, 4),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "complex": torch.complex(normal(3, 4), normal(3, 4)),
        "bool": normal(9, 2) > 0,
    }
    for dtype in ("float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        out[dtype] = (normal(6, 3) * 9).abs().to(getattr(torch, dtype))
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        out[dtype] = normal(6, 3).to(getattr(torch, dtype))
    return out


def bits(x: Any) -> tuple[Any, ...]:
    return x.dtype, tuple(x.shape), x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(bits(one[name]) == bits(other[name]) for name in one)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tensors in a plain file, in its stream of `gcodec compress`, and in one of `save_file`."""
    folder = tmp_path_factory.mktemp("files")
    plain, saved = folder / "model.safetensors", folder / "saved.gcu"
    safetensors_torch.save_file(tensors(), plain, {"format": "pt", "ü": "ß"})
    subprocess.run([sys.executable, "-m", "gcodec", "compress", plain], check=True, env=os.environ)
    gcodec.save_file(tensors(), saved, {"format": "pt", "ü": "ß"})
    return {"plain": plain, "compressed": folder / "model.safetensors.gcu", "saved": saved}


KINDS = ["plain", "compressed", "saved"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_as_safetensors_opens_it(files: dict[str, Path], kind: str) -> None:
    theirs = safetensors.safe_open(files["plain"], "pt")
    with gcodec.safe_open(files[kind], framework="pt") as ours:
        assert ours.keys() == theirs.keys() and ours.metadata() == theirs.metadata()
        if kind != "saved":
            assert ours.offset_keys() == theirs.offset_keys()
        for name in ours.keys():  # noqa: SIM118
            assert bits(ours.get_tensor(name)) == bits(theirs.get_tensor(name)), name
            one, other = ours.get_slice(name), theirs.get_slice(name)
            assert (one.get_shape(), one.get_dtype()) == (other.get_shape(), other.get_dtype())
        assert list(ours.get_tensors()) == ours.offset_keys()
        assert same(dict(ours.items()), tensors()) and same(ours.get_tensors(), tensors())
        assert [name for name, _ in ours.items(["scalar", "a.cube"])] == ["scalar", "a.cube"]
    assert same(gcodec.load_file(files[kind]), safetensors_torch.load_file(files["plain"]))
    with pytest.raises(Exception, match="closed"):
        ours.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a.cube", "z.large", "b.half", "complex", "float8_e5m2"])
def test_a_slice_is_the_tensors(files: dict[str, Path], kind: str, name: str) -> None:
    whole = tensors()[name]
    with gcodec.safe_open(files[kind]) as file:
        part = file.get_slice(name)
        for index in INDICES:
            try:
                expected = whole[index]
            except IndexError:
                with pytest.raises(IndexError):
                    part[index]
                continue
            assert bits(part[index]) == bits(expected), index


def test_a_slice_reads_only_its_blocks(files: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(files["saved"].read_bytes())
    # In the middle of the second block of the largest tensor, which comes first.
    data[len(data) * 3 // 4] ^= 1
    path = tmp_path / "damaged.gcu"
    path.write_bytes(data)
    with gcodec.safe_open(path) as file:
        large = tensors()["z.large"]
        assert bits(file.get_slice("z.large")[:2]) == bits(large[:2])
        with pytest.raises(gcodec.FormatError, match="z.large"):
            file.get_tensor("z.large")


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_go_into_given_memory(files: dict[str, Path], kind: str) -> None:
    with gcodec.safe_open(files[kind]) as file:
        for name, whole in tensors().items():
            out = torch.empty_like(whole)
            assert file.get_tensor(name, out=out) is out and bits(out) == bits(whole), name
        all_of_it = {name: torch.empty_like(whole) for name, whole in tensors().items()}
        assert file.get_tensors(out=all_of_it).keys() == all_of_it.keys() and same(all_of_it, tensors())
        out = torch.zeros(6, 5, 4).permute(1, 0, 2)
        assert bits(file.get_tensor("a.cube", out=out)) == bits(tensors()["a.cube"])
        for wrong in (torch.zeros(5, 6), torch.zeros(5, 6, 4, dtype=torch.float64), np.zeros((5, 6, 4), np.float32)):
            with pytest.raises(gcodec.InputError, match="out is"):
                file.get_tensor("a.cube", out=wrong)


def test_given_memory_is_checked(files: dict[str, Path]) -> None:
    native = gcodec._native.File(str(files["saved"]), True, gcodec.Limits())
    memory = torch.zeros(120)
    native.fill(0, [("a.cube", 0, memory)])
    assert bits(memory.reshape(5, 6, 4)) == bits(tensors()["a.cube"])
    with pytest.raises(gcodec.InputError, match="memory in common"):
        native.fill(0, [("a.cube", 0, memory[:60]), ("a.cube", 60, memory[59:119])])
    with pytest.raises(BufferError, match="row-major"):
        native.fill(0, [("a.cube", 0, torch.zeros(60, 2).t())])
    frozen = np.zeros(120, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        native.fill(0, [("a.cube", 0, frozen)])
    for start, size in ((1, 120), (0, 121), (1 << 60, 1)):
        with pytest.raises(gcodec.InputError):
            native.fill(0, [("a.cube", start, torch.zeros(size))])


@pytest.mark.parametrize("kind", KINDS)
def test_files_for_numpy_and_jax(files: dict[str, Path], kind: str) -> None:
    with gcodec.safe_open(files[kind], framework="np") as file:
        assert np.array_equal(file.get_tensor("a.cube"), tensors()["a.cube"].numpy())
        assert np.array_equal(file.get_slice("a.cube")[1:3, 2], tensors()["a.cube"][1:3, 2].numpy())
        assert file.get_tensor("empty").shape == (0, 3)
    jax = pytest.importorskip("jax")
    if kind != "plain":
        with gcodec.safe_open(files[kind], framework="jax") as file:
            assert isinstance(file.get_tensor("a.cube"), jax.Array)
    arrays = {"w": np.arange(12.0).reshape(3, 4), "b": np.ones(3, np.int8)}
    path = files["plain"].with_name("numpy.gcu")
    gcodec.save_file(arrays, path)
    assert all(np.array_equal(array, arrays[name]) for name, array in gcodec.load_file(path, framework="np").items())
    assert gcodec.safe_open(path).metadata() is None


def test_types_without_a_name_in_streams(tmp_path: Path) -> None:
    made = {"c128": torch.randn(3, 2, dtype=torch.complex128), "c64": torch.randn(4, dtype=torch.complex64)}
    scales = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    made["e8m0"] = scales.view(torch.float8_e8m0fnu)
    made["f4"] = scales.clone().view(torch.float4_e2m1fn_x2)
    gcodec.save_file(made, tmp_path / "made.gcu")
    with gcodec.safe_open(tmp_path / "made.gcu") as file:
        assert same(file.get_tensors(), made) and file.metadata() is None
        assert bits(file.get_slice("e8m0")[1:, 2]) == bits(made["e8m0"].view(torch.uint8)[1:, 2].view(torch.float8_e8m0fnu))
        assert file.get_slice("f4").get_shape() == [3, 8]
    # The command knows them, too.
    subprocess.run([sys.executable, "-m", "gcodec", "decode", tmp_path / "made.gcu", "-o", tmp_path / "x.safetensors"], check=True)
    assert bits(safetensors_torch.load_file(tmp_path / "x.safetensors")["c64"]) == bits(made["c64"])


def test_save_file_refuses_what_safetensors_refuses(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    path = tmp_path / "kept.gcu"
    gcodec.save_file({"w": whole}, path)
    before = path.read_bytes()
    refused: list[tuple[Any, type[Exception], str]] = [
        ({"w": whole.t()}, ValueError, "row-major"),
        ({"w": whole.to_sparse()}, ValueError, "sparse"),
        ({"w": whole, "v": torch.zeros(1), "u": whole[1:]}, RuntimeError, "memory in common"),
        ({"w": 3}, ValueError, "int"),
        ([whole], ValueError, "list"),
        ({1: whole}, TypeError, "no text"),
    ]
    for wrong, error, text in refused:
        for target in (path, tmp_path / "kept.safetensors"):
            with pytest.raises(error, match=text):
                gcodec.save_file(wrong, target)
    with pytest.raises(TypeError, match="metadata"):
        gcodec.save_file({"w": whole}, path, {"epoch": 3})  # type: ignore[dict-item]
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["kept.gcu"]
    # Parts of one memory that do not overlap are saved, as by safetensors.
    gcodec.save_file({"a": whole[0], "b": whole[1:]}, path)
    assert same(gcodec.load_file(path), {"a": whole[0], "b": whole[1:]})
    gcodec.save_file({"w": whole}, tmp_path / "plain.safetensors", {"k": "v"})
    assert safetensors.safe_open(tmp_path / "plain.safetensors", "pt").metadata() == {"k": "v"}


def test_errors_name_the_file_and_the_tensor(files: dict[str, Path], tmp_path: Path) -> None:
    with gcodec.safe_open(files["saved"]) as file, pytest.raises(gcodec.InputError, match="no tensor 'zz'"):
        file.get_slice("zz")
    with pytest.raises(gcodec.InputError, match="use pt, np or jax"):
        gcodec.safe_open(files["saved"], "keras")
    with pytest.raises(gcodec.InputError, match="device"):
        gcodec.safe_open(files["saved"], "np", "cuda")
    with pytest.raises(FileNotFoundError):
        gcodec.safe_open(tmp_path / "none.gcu")
    (tmp_path / "text.gcu").write_bytes(b"this is no stream of tensors")
    with pytest.raises(gcodec.FormatError):
        gcodec.safe_open(tmp_path / "text.gcu")
    gcodec.Writer(tmp_path / "empty.gcu").close()
    with pytest.raises(gcodec.InputError, match="no tensors"):
        gcodec.safe_open(tmp_path / "empty.gcu")
    with pytest.raises(gcodec.LimitError):
        gcodec.load_file(files["saved"], limits=gcodec.Limits(max_alloc_bytes=1 << 20))


def test_files_larger_than_the_limit_are_decoded_in_batches(files: dict[str, Path]) -> None:
    largest = tensors()["z.large"].nbytes
    with gcodec.safe_open(files["saved"], limits=gcodec.Limits(max_alloc_bytes=largest)) as file:
        assert same(file.get_tensors(), tensors())


def test_memory_is_used_again_unless_somebody_keeps_it(tmp_path: Path) -> None:
    made = {f"w{number}": torch.full((3_000_000 + number,), float(number)) for number in range(12)}
    made["large"] = torch.arange(12_000_000.0)
    gcodec.save_file(made, tmp_path / "made.gcu")
    with gcodec.safe_open(tmp_path / "made.gcu") as file:
        places = []
        for name, tensor in file.items():
            assert torch.equal(tensor, made[name]), name
            places.append(tensor.data_ptr())
            del tensor
        # One that is in use, one that is decoded meanwhile, and one of another size.
        assert len(set(places)) <= 4
        # Whoever keeps a tensor, or a part of it, keeps its elements.
        kept = [(name, tensor[5:9].view(2, 2)) for name, tensor in file.items()]
    assert all(torch.equal(part.flatten(), made[name][5:9]) for name, part in kept)
