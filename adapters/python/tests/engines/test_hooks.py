"""The hooks of slime, by a stand-in with its documented calls, and ModelExpress's own receiver."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gcodec
import gcodec.engines.modelexpress
from gcodec.store import Store

pytest.importorskip("safetensors", reason="safetensors is not installed: `cargo xtask engines` installs it")
from safetensors.torch import load_file, save_file  # noqa: E402

import gcodec.engines.slime  # noqa: E402


def write(folder: Path, weights: dict[str, torch.Tensor]) -> str:
    """Writes a checkpoint of two files, as slime does."""
    folder.mkdir(parents=True)
    for number, (name, tensor) in enumerate(weights.items()):
        save_file({name: tensor}, folder / f"model-{number:05}-of-00002.safetensors")
    return str(folder)


def test_slime_publishes_and_pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gcodec.engines.slime.STORE, raising=False)
    with pytest.raises(gcodec.InputError, match="GCODEC_STORE"):
        gcodec.engines.slime.pull(str(tmp_path), 1)
    monkeypatch.setenv(gcodec.engines.slime.STORE, str(tmp_path / "store"))
    weights = {"w": torch.randn(30, 40).bfloat16(), "b": torch.zeros(40)}
    # Before the first version, slime calls the hook for the folder of all versions.
    gcodec.engines.slime.publish(None, str(tmp_path), [])
    engine = tmp_path / "engine"
    gcodec.engines.slime.pull(str(engine), 0)
    assert not engine.exists()
    for version in (1, 2, 3):
        weights["w"].view(-1)[version::11] += 1
        gcodec.engines.slime.publish(None, write(tmp_path / f"trainer/weight_v{version:06}", weights), [])
        if version != 2:
            for _ in range(2):
                gcodec.engines.slime.pull(str(engine), version)
            read = load_file(engine / f"weight_v{version:06}" / "model.safetensors")
            assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())
    assert Store(tmp_path / "store").log(1)[0].anchor_bytes is None
    with pytest.raises(gcodec.InputError, match="no version 9"):
        gcodec.engines.slime.pull(str(engine), 9)
    with pytest.raises(gcodec.InputError, match="is no folder"):
        gcodec.engines.slime.publish(None, str(tmp_path / "trainer/weight_v000009"), [])
    assert sorted(os.listdir(engine)) == ["weight_v000001", "weight_v000003"]


@pytest.mark.parametrize("size", [0, 1, 7, 4096])
def test_the_reader_for_model_express(size: int) -> None:
    xor = np.zeros(size, np.uint8)
    xor[::13] = 3
    data = gcodec.engines.modelexpress.compress(xor)
    reader = gcodec.engines.modelexpress.decompressor(memoryview(data))
    assert b"".join(iter(lambda: reader.read(1000), b"")) == xor.tobytes()
    with pytest.raises(gcodec.FormatError):
        gcodec.engines.modelexpress.decompressor(memoryview(data)[:-5])
    with pytest.raises(gcodec.FormatError, match="one tensor"):
        gcodec.engines.modelexpress.decompressor(memoryview(gcodec.encode({"w": xor}, "lossless")))


def test_model_express_applies_a_delta(tmp_path: Path) -> None:
    receiver = pytest.importorskip("modelexpress_rl.inference.receiver", reason="modelexpress is not installed: `cargo xtask engines` installs it")
    from modelexpress_rl.utils import checksum_factory

    gcodec.engines.modelexpress.register()
    old = np.random.default_rng(1).integers(0, 256, 6000, np.uint8)
    new = old.copy()
    new[::31] ^= 1
    path = tmp_path / "weights"
    path.write_bytes(b"head" + old.tobytes())
    checksum = checksum_factory("adler32")
    checksum.update(new)
    compressed = np.frombuffer(gcodec.engines.modelexpress.compress(old ^ new), np.uint8)
    save_file({"w": torch.from_numpy(compressed.copy())}, tmp_path / "delta.safetensors", metadata={"w": checksum.hexdigest()})
    here = SimpleNamespace(locations={"w": (path, 4, old.size)})
    shards = {"delta.safetensors": ((tmp_path / "delta.safetensors").read_bytes(), ["w"])}
    index = {"compression_format": gcodec.engines.modelexpress.FORMAT, "checksum_format": "adler32"}
    receiver._LocalCheckpoint._apply_shards(here, shards, index_metadata=index)
    assert path.read_bytes() == b"head" + new.tobytes()
