"""Deltas for ranks that hold shards of tensors: each applies and verifies its own part only."""

import re

import numpy as np
import pytest
import torch
from conftest import ROOT

import gcodec
from gcodec import Shard

SHAPE = (16, 24)


def weights(dtype, changed):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 15, SHAPE, dtype=np.int16)
    if changed:
        bits = np.where(np.random.default_rng(2).random(SHAPE) < 0.1, bits ^ 1, bits)
    tensor = torch.from_numpy(bits)
    return tensor.view(dtype) if dtype.itemsize == 2 else tensor.to(torch.uint8).view(dtype)


def cut(places, tensor):
    return {name: place.cut(tensor) for name, place in places.items()}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def apply(data, place, held):
    """Returns a copy of what a rank holds with the changes of its own part."""
    result = held.clone()
    shards = {name: shard.within(place) for name, shard in gcodec.shards(data).items()}
    own = {name: shard for name, shard in shards.items() if shard is not None}
    base = {name: shard.cut(held) for name, shard in own.items()}
    for name, part in gcodec.decode(data, names=set(own), base=base).items():
        own[name].paste(part, result)
    return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize(("dim", "codec"), [(0, "delta"), (1, "delta"), (1, "delta:values=overwrite")])
def test_a_rank_applies_and_verifies_its_own_part(dtype, dim, codec):
    old, new = weights(dtype, False), weights(dtype, True)
    parts = Shard.split("w", SHAPE, dim, 4)
    data = gcodec.encode(cut(parts, new), codec, base=cut(parts, old), shards=parts)
    for ranks in (1, 2, 4):
        for place in Shard.split("w", SHAPE, dim, ranks).values():
            held = place.cut(old).clone()
            found = apply(data, place, held)
            assert np.array_equal(bits(found), bits(place.cut(new))), (ranks, place)
            # A damaged part of its own is refused; it knows nothing of the others.
            held.view(torch.uint8)[1, 2] ^= 1
            with pytest.raises(gcodec.InputError) as raised:
                apply(data, place, held)
            assert raised.value.kind == "checksum_mismatch"
    if codec == "delta":
        # A patch of one shard counts positions in it.
        name, place = list(parts.items())[2]
        patch = gcodec.patches(data, base={name: place.cut(old)}, names={name})[name]
        part = place.cut(old).clone()
        patch.apply_(part)
        assert np.array_equal(bits(part), bits(place.cut(new)))


def test_shards_are_parts_of_their_tensor():
    whole = np.arange(16 * 24, dtype=np.float32).reshape(SHAPE)
    for dim, parts in ((0, 1), (0, 16), (1, 3), (1, 24)):
        pasted = np.zeros_like(whole)
        for shard in Shard.split("w", SHAPE, dim, parts).values():
            shard.paste(shard.cut(whole), pasted)
            assert shard.within(shard).cut(shard.cut(whole)).shape == shard.shape
        assert np.array_equal(pasted, whole)
    columns = Shard.split("w", SHAPE, 1, 3)
    assert list(columns) == ["w[:,0:8]", "w[:,8:16]", "w[:,16:24]"]
    row, column = Shard.split("w", SHAPE, 0, 4)["w[4:8]"], columns["w[:,8:16]"]
    assert row.within(column) is None and row.within(Shard.split("w", (16, 12), 0, 4)["w[4:8]"]) is None
    for dim, parts in ((0, 3), (0, 0), (2, 1), (-1, 1)):
        with pytest.raises(gcodec.InputError):
            Shard.split("w", SHAPE, dim, parts)
    assert list(Shard.split("w", (0, 3), 0, 1)) == ["w[0:0]"]
    with pytest.raises(gcodec.InputError):
        Shard.split("w", (0, 3), 0, 2)
    for part, onto in ((row.cut(whole), whole.T), (column.cut(whole), whole), (row.cut(whole).astype(np.float64), whole)):
        with pytest.raises(gcodec.InputError):
            row.paste(part, onto)
    for wrong in ({"v": row}, {"w": column}):
        with pytest.raises(gcodec.InputError, match="shards has"):
            gcodec.encode({"w": row.cut(whole)}, "raw", shards=wrong)


def test_the_program_of_the_page_runs():
    page = (ROOT / "docs/weight-sync.md").read_text()
    (program,) = re.findall(r"^```python\n(# shards.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(program, "shards.py", "exec"), {})
