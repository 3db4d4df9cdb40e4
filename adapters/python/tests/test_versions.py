"""Versions that slime and miles write and SGLang reads, by stand-ins for them and by the command line, on six
real steps of a transformer: the same bytes, both ways."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zstandard = pytest.importorskip("zstandard")
pytest.importorskip("xxhash")
pytest.importorskip("blake3")
pytest.importorskip("safetensors")

import gcodec  # noqa: E402
from gcodec.engines.checkpoints import checkpoint  # noqa: E402
from gcodec.engines.versions import ENCODING, Versions, apply, difference  # noqa: E402
from gcodec.store import Follower, Store  # noqa: E402
from weight_versions import (  # noqa: E402
    CHECKSUMS,
    ENCODINGS,
    INDEX,
    STATE,
    bytes_of,
    folder_of,
    publish,
    pull,
    weights_of,
)

ROOT = Path(__file__).resolve().parents[3]
CHAIN = ROOT.parent / "shared/gradients/weight_sync/chain"
STEPS = 6
# Each encoding with each checksum.
HOW = [(encoding, checksum) for checksum in ("xxh3-128", "blake3", "adler32") for encoding in ("xor", "overwrite")]

Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Weights]]:
    """A model folder, and the bytes of its tensors in version 0, which it has, and in the ones after."""
    if not (CHAIN / "chain.npz").exists():
        pytest.skip(f"needs the public gradient set: {CHAIN}")
    folder = tmp_path_factory.mktemp("hf")
    shutil.copyfile(CHAIN / "base.safetensors", folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    chain = np.load(CHAIN / "chain.npz")
    base = weights_of(folder)
    names = [str(name) for name in chain["names"]]
    ends = np.cumsum([len(base[name]) // 2 for name in names])
    flat = np.concatenate([base[name] for name in names]).view("<u2").copy()
    found = [base]
    for step in range(1, STEPS + 1):
        flat[chain[f"idx{step}"]] = chain[f"new{step}"]
        parts = np.split(flat, ends[:-1])
        found.append({name: part.copy().view(np.uint8) for name, part in zip(names, parts, strict=True)})
    return folder, found


@pytest.fixture
def run(command: str, tmp_path: Path) -> Any:
    """Runs the command line in a folder of its own; returns its output."""

    def run(line: str, code: int = 0) -> str:
        done = subprocess.run([command, *line.split()], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, f"{line}: {done.stderr}"
        return done.stdout + done.stderr

    return run


def loaded(variable: str) -> Any:
    """Returns the module of the file that an environment variable names, or None without one."""
    if not (file := os.environ.get(variable)):
        return None
    spec = importlib.util.spec_from_file_location(variable, file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def receivers() -> dict[str, Any]:
    """Returns functions as `pull` by name: the stand-in, and SGLang's own if there is its file."""
    found: dict[str, Any] = {"stand-in": pull}
    if module := loaded("SGLANG_LOCAL_CHECKPOINT"):
        found["sglang"] = lambda local, base, run, target: module.pull(str(local), str(base), str(run), target)
    return found


def written(place: Path, versions: tuple[Path, list[Weights]]) -> Path:
    """Writes all versions as trainers do, and version 0 as a link."""
    base, weights = versions
    for version, (encoding, checksum) in zip(range(1, STEPS + 1), HOW, strict=True):
        publish(place, version, weights[version - 1], weights[version], encoding, checksum)
    folder_of(place, 0).symlink_to(base)
    return place


def tensors_of(folder: Path) -> dict[str, gcodec.Tensor]:
    """Returns the tensors of a checkpoint of bf16 weights in one file."""
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: gcodec.Tensor("bf16", tuple(header[name]["shape"]), part.tobytes()) for name, part in weights_of(folder).items()}


def same(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, data in expected.items():
        assert np.array_equal(found[name], data), name


def test_the_stand_ins_agree(tmp_path: Path, versions: tuple[Path, list[Weights]]) -> None:
    base, weights = versions
    place = written(tmp_path / "updates", versions)
    for version in (0, 1, 4, STEPS):
        pull(tmp_path / "local", base, place, version)
        same(weights_of(tmp_path / "local"), weights[version])


def test_the_stand_in_writes_what_slime_does(versions: tuple[Path, list[Weights]]) -> None:
    slime = loaded("SLIME_DISK_DELTA")
    if slime is None:
        pytest.skip("SLIME_DISK_DELTA names no file: slime/utils/disk_delta.py of a clone of slime")
    _, weights = versions
    for name, new in weights[1].items():
        old = weights[0][name]
        assert slime.overwrite_encode(new, new != old).tobytes() == bytes_of("overwrite", old, new)
        for checksum in ("xxh3-128", "blake3", "adler32"):
            assert slime.checksum(checksum, new) == CHECKSUMS[checksum](new)


def test_folders_of_trainers_are_read(tmp_path: Path, versions: tuple[Path, list[Weights]], run: Any) -> None:
    base, weights = versions
    written(tmp_path / "updates", versions)
    (tmp_path / "got").mkdir()
    for version in (1, 2, STEPS):
        folder = f"updates/weight_v{version:06d}"
        run(f"encode {folder} -o v.gcu --codec lossless")
        run("decode v.gcu -o got/model.safetensors")
        same(weights_of(tmp_path / "got"), weights[version])
        run(f"diff {folder} got/model.safetensors")
    shown = run("inspect updates/weight_v000003")
    assert "xor differences" in shown and "step 3" in shown
    assert f"ok: {STEPS + 1} versions of {len(weights[0])} tensors" in run("verify updates")
    assert "ok: 1 version" in run("verify updates/weight_v000003")
    # Each is compared with the one before, whether the run is given or its folders.
    audit = json.loads(run("audit updates --json"))
    folders = " ".join(f"updates/weight_v{v:06d}" for v in range(STEPS + 1))
    assert [step["tensors"] for step in json.loads(run(f"audit {folders} --json"))["steps"]] == [
        step["tensors"] for step in audit["steps"]
    ]
    changed = [
        sum(int(np.count_nonzero(new[name].view("<u2") != old[name].view("<u2"))) for name in new)
        for old, new in zip(weights, weights[1:], strict=False)
    ]
    assert [step["changed"] for step in audit["steps"]] == changed
    # Differences become deltas, whole versions and digests.
    run(f"convert {' '.join(f'updates/weight_v{v:06d}' for v in range(1, STEPS + 1))} -o all.gcu --layout slime --base {base}")
    run(f"decode all.gcu -o got/model.safetensors --base {base}")
    same(weights_of(tmp_path / "got"), weights[STEPS])
    run(f"diff all.gcu updates/weight_v{STEPS:06d} --base {base}")
    assert run("digest updates/weight_v000002").splitlines() != run("digest updates/weight_v000003").splitlines()


@pytest.mark.parametrize("form", ["xor", "overwrite"])
@pytest.mark.parametrize("receiver", receivers())
def test_sglang_reads_what_is_written(
    tmp_path: Path, versions: tuple[Path, list[Weights]], run: Any, form: str, receiver: str
) -> None:
    base, weights = versions
    pull = receivers()[receiver]
    written(tmp_path / "updates", versions)
    inputs = " ".join(f"updates/weight_v{v:06d}" for v in range(1, STEPS + 1))
    run(f"convert {inputs} -o chain.gcu --layout slime --base {base}")
    # Each update of a stream becomes a version; then files do.
    run(f"convert chain.gcu -o out --to {form} --base {base}")
    for version in (1, 3, STEPS):
        pull(tmp_path / "local", base, tmp_path / "out", version)
        same(weights_of(tmp_path / "local"), weights[version])
    run(f"convert updates/weight_v000001 -o out --to {form} --base {base} --checksum blake3")
    run(f"convert updates/weight_v000001 -o out --to {form} --base {base} --checksum adler32")
    index = json.loads((folder_of(tmp_path / "out", STEPS + 2) / INDEX).read_text())
    assert index["weight_map"] == {} and index["metadata"]["checksum_format"] == "adler32"
    run(f"convert updates/weight_v000002 -o out --to whole --base {base}")
    assert (folder_of(tmp_path / "out", STEPS + 3) / "config.json").exists()
    run(f"convert updates/weight_v000003 -o out --to {form}")
    for version, same_as in [(STEPS + 2, 1), (STEPS + 3, 2), (STEPS + 4, 3)]:
        pull(tmp_path / "local", base, tmp_path / "out", version)
        same(weights_of(tmp_path / "local"), weights[same_as])
    # A host that begins late takes the whole version.
    pull(tmp_path / "late", base, tmp_path / "out", STEPS + 4)
    same(weights_of(tmp_path / "late"), weights[3])
    assert (tmp_path / "late/config.json").exists()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"weight_v{v:06d}" for v in range(1, STEPS + 5)]


def test_differences_fold_and_go_through_stores(tmp_path: Path, versions: tuple[Path, list[Weights]], run: Any) -> None:
    base, weights = versions
    written(tmp_path / "updates", versions)
    (tmp_path / "got").mkdir()
    # Several differences as one delta, as one difference, and as a whole version.
    run("encode updates/weight_v000002 updates/weight_v000006 -o folded.gcu --codec delta")
    run("decode folded.gcu -o got/model.safetensors --base updates/weight_v000002")
    same(weights_of(tmp_path / "got"), weights[6])
    run(f"convert updates/weight_v000006 -o folded --to xor --base {base}")
    pull(tmp_path / "local", base, tmp_path / "folded", 1)
    same(weights_of(tmp_path / "local"), weights[6])
    # A store takes versions, and gives them back.
    for version in (1, 2, 5):
        run(f"publish store updates/weight_v{version:06d}")
    for version, number in [(1, 1), (2, 2), (5, 3)]:
        run(f"pull store -o {version}.safetensors --version {number}")
    run(f"convert 1.safetensors 2.safetensors 5.safetensors -o out --to overwrite --base {base}")
    for number, version in [(1, 1), (3, 5)]:
        pull(tmp_path / "other", base, tmp_path / "out", number)
        same(weights_of(tmp_path / "other"), weights[version])
    # A checkpoint of streams stands for the same files.
    shutil.copytree(folder_of(tmp_path / "updates", 3), tmp_path / "copy")
    run("compress copy")
    for file in (tmp_path / "copy").glob("*.safetensors"):
        file.unlink()
    run("decompress copy")
    for file in folder_of(tmp_path / "updates", 3).iterdir():
        assert (tmp_path / "copy" / file.name).read_bytes() == file.read_bytes()


def test_what_is_wrong_is_named(tmp_path: Path, versions: tuple[Path, list[Weights]], run: Any) -> None:
    place = written(tmp_path / "updates", versions)
    last = f"updates/weight_v{STEPS:06d}"
    # Without version 0, a difference is shown as such.
    folder_of(place, 0).unlink()
    shown = run(f"inspect {last} --tensors", 2)
    assert "weight_v000000" in shown and "overwrite" in shown
    run(f"digest {last}", 2)
    folder_of(place, 0).symlink_to(versions[0])
    run(f"digest {last}")
    shard = folder_of(place, 3) / "model-00000-of-00002.safetensors"
    whole = shard.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in (start, start + 20, len(whole) - 1):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert shard.name in run(f"digest {last}", 3)
        assert shard.name in run("verify updates", 3)
        local = tmp_path / f"local{at}"
        with pytest.raises(Exception):  # noqa: B017, PT011 - zstandard's own errors, or the stand-in's
            pull(local, versions[0], place, STEPS)
        assert not (local / STATE).exists()
    shard.write_bytes(whole[:-1])
    assert "model-00000-of-00002" in run(f"digest {last}", 3)
    shard.unlink()
    assert "the file is missing" in run(f"digest {last}", 3)
    shard.write_bytes(whole)
    # The wrong base: a version is left out.
    index = folder_of(place, 4) / INDEX
    text = index.read_text()
    index.write_text(text.replace('"base_version": "000003"', '"base_version": "000002"'))
    assert "wrong checksum" in run(f"digest {last}", 3)
    for old, new, code, part in [
        ('"version": "000004"', '"version": "000005"', 3, "folder of version 4 has version 5"),
        ('"base_version": "000003"', '"base_version": "000004"', 3, "version 4 is said to change version 4"),
        ('"delta_encoding": "overwrite"', '"delta_encoding": "other"', 3, '"other" is unknown'),
        ('"compression_format": "zstd"', '"compression_format": "lz4"', 3, '"lz4" is unknown'),
        ('"checksum_format": "blake3"', '"checksum_format": "crc32"', 3, '"crc32" is unknown'),
        ('.safetensors"', '.other"', 3, "the file is missing"),
        ("model-00000-of", "../model-00000-of", 3, "no file name"),
    ]:
        assert old in text
        index.write_text(text.replace(old, new))
        assert part in run(f"digest {last}", code), new
    index.write_text(text)
    run(f"digest {last}")


def test_a_version_is_pulled(tmp_path: Path, versions: tuple[Path, list[Weights]], run: Any) -> None:
    base, weights = versions
    written(tmp_path / "updates", versions)
    (tmp_path / "got").mkdir()
    assert "6 steps" in run("pull updates -o got/model.safetensors")
    same(weights_of(tmp_path / "got"), weights[STEPS])
    run("pull updates -o got/model.safetensors --version 2")
    same(weights_of(tmp_path / "got"), weights[2])
    (tmp_path / "got/model.safetensors").rename(tmp_path / "two.safetensors")
    # From what a host has, although the version before is gone.
    shutil.rmtree(folder_of(tmp_path / "updates", 1))
    run("pull updates -o got/model.safetensors", 2)
    assert "3 steps" in run("pull updates -o got/model.safetensors --base two.safetensors --version 5")
    same(weights_of(tmp_path / "got"), weights[5])
    run("pull updates -o one.safetensors --base two.safetensors --version 2")
    run("diff one.safetensors two.safetensors")
    # Differences that are still being written are not the newest version.
    index = folder_of(tmp_path / "updates", STEPS) / INDEX
    index.rename(tmp_path / "index")
    assert f"version {STEPS - 1}:" in run("pull updates -o got/model.safetensors --base two.safetensors")
    assert "not complete" in run(f"pull updates -o x.safetensors --base two.safetensors --version {STEPS}", 3)
    # It is no store, and does not become one.
    for line in ("publish updates one.safetensors", "log updates", "fold updates 2 3", "gc updates"):
        assert "convert --to" in run(line, 2)
    assert all(path.name.startswith("weight_v") for path in (tmp_path / "updates").iterdir())


def test_a_follower_follows_folders(tmp_path: Path, versions: tuple[Path, list[Weights]]) -> None:
    base, weights = versions
    served = {name: data.copy() for name, data in weights[0].items()}
    place = tmp_path / "updates"
    place.mkdir()
    source = Versions(place, base=base)
    # The engine has the checkpoint: the first update has differences only.
    follower = Follower(source, tensors_of(base), version=0)
    late = Follower(source)
    assert follower.stage() is None and source.latest() == 0
    for version in range(1, STEPS + 1):
        publish(place, version, weights[version - 1], weights[version], *HOW[version - 1])
        if version in (2, 3):
            continue
        update = follower.stage()
        assert update is not None and update.steps == (3 if version == 4 else 1)
        before = {name: data.copy() for name, data in served.items()}

        def load(patches: gcodec.Patches) -> None:
            for name, patch in patches.items():
                indices, values = patch.indices, patch.values.bits()
                assert indices is not None
                served[name].view("<u2")[indices.numpy()] = values.numpy()

        assert update.commit(load) == version
        same(served, weights[version])
        changed = {name for name in served if not np.array_equal(served[name], before[name])}
        assert set(update.touched) == changed
        assert update.meta == {"version": str(version)}
    update = late.stage()
    assert update is not None and set(update.touched) == set(weights[0])
    got = {}
    assert update.apply(lambda name, tensor: got.__setitem__(name, np.frombuffer(tensor.tobytes(), np.uint8)), framework=None)
    same(got, weights[STEPS])
    # Back to an earlier version, which no difference leads to.
    update = late.stage(3)
    assert update is not None
    update.apply(lambda name, tensor: got.__setitem__(name, np.frombuffer(tensor.tobytes(), np.uint8)), framework=None)
    same(got, weights[3])


def test_a_follower_refuses_what_is_wrong(tmp_path: Path, versions: tuple[Path, list[Weights]]) -> None:
    base, weights = versions
    place = written(tmp_path / "updates", versions)
    tensors = tensors_of(base)
    with pytest.raises(gcodec.InputError, match="not those of version 2: tensor"):
        Follower(Versions(place), tensors, version=2)
    follower = Follower(Versions(place), tensors, version=0)
    shard = folder_of(place, 2) / "model-00000-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(gcodec.FormatError, match=shard.name):
        follower.stage()
    assert follower.version == 0 and not follower.poisoned
    shard.write_bytes(whole)
    assert follower.stage() is not None
    with pytest.raises(gcodec.InputError, match="weight_v000009: there is no such version"):
        follower.stage(9)
    # What reads a checkpoint does not take differences for one.
    with pytest.raises(gcodec.InputError, match="differences"):
        checkpoint(str(folder_of(place, 2)))
    # The deltas of a store do not apply to what came from folders.
    update = follower.stage(1)
    assert update is not None
    update.commit(lambda patches: None)
    store = Store(str(tmp_path / "store"))
    store.publish({"other": np.zeros(4, np.float32)})
    store.publish({"other": np.ones(4, np.float32)})
    follower.store = store
    staged = follower.stage(2)
    assert staged is not None and staged.touched == ["other"]


def of_page(name: str, names: dict[str, Any]) -> Any:
    """Returns a function of docs/engines.md, among other names."""
    page = (ROOT / "docs/engines.md").read_text()
    [program] = re.findall(rf"```python\n(def {name}\(.*?)```", page, re.S)
    exec(program, names)
    return names[name]


def test_gcodec_is_one_more_encoding(tmp_path: Path, versions: tuple[Path, list[Weights]], run: Any) -> None:
    base, weights = versions
    place, known = tmp_path / "updates", {**ENCODINGS, ENCODING: lambda context: of_page("apply_gcodec", context)}
    encoded = of_page("gcodec_encode", {"np": np})

    def encode(name: str, old: np.ndarray, new: np.ndarray) -> bytes:
        return zstandard.ZstdCompressor(level=1).compress(encoded(name, new, old, "torch.bfloat16"))

    for version in range(1, STEPS + 1):
        publish(place, version, weights[version - 1], weights[version], ENCODING, encode=encode)
        pull(tmp_path / "local", base, place, version, known)
        same(weights_of(tmp_path / "local"), weights[version])
    # A receiver that was not taught refuses it.
    with pytest.raises(NotImplementedError):
        pull(tmp_path / "other", base, place, 1)
    # The command line reads and writes it, and it is the smallest.
    folder_of(place, 0).symlink_to(base)
    assert f"ok: {STEPS + 1} versions" in run("verify updates")
    assert "gcodec differences" in run("inspect updates/weight_v000002")
    inputs = " ".join(f"updates/weight_v{v:06d}" for v in range(1, STEPS + 1))
    sizes = {}
    for form in ("gcodec", "xor", "overwrite"):
        run(f"convert {inputs} -o {form} --to {form} --base {base}")
        pull(tmp_path / f"local-{form}", base, tmp_path / form, STEPS, known)
        same(weights_of(tmp_path / f"local-{form}"), weights[STEPS])
        sizes[form] = sum(path.stat().st_size for path in (tmp_path / form).glob("*/*.safetensors"))
    run(f"convert {inputs} -o chain.gcu --layout slime --base {base}")
    sizes["one stream"] = (tmp_path / "chain.gcu").stat().st_size
    print("bytes of differences:", sizes)
    assert sizes["one stream"] < sizes["gcodec"] < 0.6 * sizes["xor"] < sizes["xor"] < sizes["overwrite"]


def test_a_difference_changes_a_tensor_or_nothing() -> None:
    old = np.arange(4000, dtype=np.uint16).view(np.uint8)
    new = old.copy()
    new[::50] ^= 3
    for dtype in ("bf16", "u8", "i16", "complex64", "f32"):
        data = difference("w", old, new, dtype)
        region = old.copy()
        apply(region, data)
        assert np.array_equal(region, new)
        # Again, cut, damaged, or at another tensor: the bytes stay.
        for wrong in (data, data[:-1], data[:40] + b"x" + data[41:], b"", b"no stream"):
            with pytest.raises((gcodec.FormatError, gcodec.InputError)):
                apply(region, wrong)
            assert np.array_equal(region, new)
        with pytest.raises(gcodec.InputError):
            apply(old[:-8].copy(), data)
    with pytest.raises(gcodec.InputError, match="no elements"):
        difference("w", old[:3], new[:3], "bf16")
    two = gcodec.encode({"a": new, "b": new}, "lossless")
    with pytest.raises(gcodec.FormatError, match="one tensor"):
        apply(old.copy(), two)
