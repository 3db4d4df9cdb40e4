"""Versions that slime and miles write and SGLang reads, by stand-ins for them and by the command line, on six
real steps of a transformer: the same bytes, both ways."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("zstandard")
pytest.importorskip("xxhash")
pytest.importorskip("blake3")
pytest.importorskip("safetensors")

from conftest import ROOT  # noqa: E402
from weight_versions import INDEX, STATE, folder_of, publish, pull, weights_of  # noqa: E402

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


def written(place: Path, versions: tuple[Path, list[Weights]]) -> Path:
    """Writes all versions as trainers do, and version 0 as a link."""
    base, weights = versions
    for version, (encoding, checksum) in zip(range(1, STEPS + 1), HOW, strict=True):
        publish(place, version, weights[version - 1], weights[version], encoding, checksum)
    folder_of(place, 0).symlink_to(base)
    return place


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
def test_sglang_reads_what_is_written(tmp_path: Path, versions: tuple[Path, list[Weights]], run: Any, form: str) -> None:
    base, weights = versions
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
