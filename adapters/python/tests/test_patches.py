"""Updates as patches: the elements that change, applied to the caller's buffers and cut for shards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gcodec

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.uint8)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def pair(rng: np.random.Generator) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors of each type, and the same with changed bits; one stays, one is large, one is empty."""
    base = {str(d).removeprefix("torch."): torch.from_numpy(rng.integers(0, 60, (13, 21), np.uint8)).to(d) for d in DTYPES}
    base |= {"same": torch.ones(50), "large": torch.zeros(3 << 20), "none": torch.zeros(0, 4), "scalar": torch.tensor(2.0)}
    new = {name: tensor.clone() for name, tensor in base.items()}
    for name, tensor in new.items():
        if name != "same" and tensor.numel():
            flat = bits(tensor.reshape(-1))
            flat[torch.from_numpy(rng.integers(0, len(flat), 1 + len(flat) // 50))] ^= 1
    return base, new


def test_patches_of_a_delta(rng: np.random.Generator) -> None:
    base, new = pair(rng)
    data = gcodec.encode(new, "delta", base=base, header=gcodec.UpdateHeader(step=7))
    found = gcodec.patches(data, base=base)
    changed = [n for n in base if not torch.equal(bits(base[n].reshape(-1)), bits(new[n].reshape(-1)))]
    assert found.touched == changed and found.header.step == 7 and found.header.delta
    for name, patch in found.items():
        indices, values = patch.torch()
        assert patch.shape == tuple(base[name].shape) and indices.dtype == torch.int32 and values.dtype == base[name].dtype
        differ = (bits(base[name].reshape(-1)).view(-1, base[name].element_size()) != bits(new[name].reshape(-1)).view(-1, base[name].element_size())).any(1)
        assert torch.equal(indices.long(), differ.nonzero().flatten())
        assert torch.equal(bits(values), bits(new[name].reshape(-1)[indices.long()]))
    mine = {name: tensor.clone() for name, tensor in base.items()}
    for _ in range(2):  # twice is once
        found.apply_(mine)
        assert all(torch.equal(bits(mine[n].reshape(-1)), bits(new[n].reshape(-1))) for n in base)
    arrays = {n: t.numpy().copy() for n, t in base.items() if t.dtype in (torch.float32, torch.float16, torch.int64)}
    gcodec.patches(data, base=base, names=set(arrays)).apply_(arrays)
    assert all(np.array_equal(a, new[n].numpy()) for n, a in arrays.items())


def test_nothing_changes(rng: np.random.Generator) -> None:
    base, _ = pair(rng)
    data = gcodec.encode(base, "delta", base=base)
    assert not gcodec.patches(data, base=base)


@pytest.mark.parametrize("shape", [(12, 10, 3), (1, 40), (30,)])
def test_shards(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    base = torch.from_numpy(rng.standard_normal(shape, np.float32)).bfloat16()
    new = torch.where(torch.from_numpy(rng.random(shape) < 0.2), base * 2, base)
    delta = gcodec.patches(gcodec.encode(new, "delta", base=base), base=base)["tensor"]
    whole = gcodec.patches(gcodec.encode(new, "lossless"))["tensor"]
    assert whole.indices is None
    for patch in (delta, whole):
        for dim, size in enumerate(shape):
            for start, stop in ((0, size), (size // 3, size // 2), (size - 1, size), (0, 0)):
                shard = base.narrow(dim, start, stop - start).clone()
                found = patch.shard(dim, start, stop)
                if found is not None:
                    found.apply_(shard)
                assert torch.equal(shard, new.narrow(dim, start, stop - start))
        with pytest.raises(gcodec.InputError, match="no range"):
            patch.shard(0, 3, shape[0] + 1)


def test_sparse_updates_without_a_base(gradient: np.ndarray) -> None:
    data = gcodec.encode({"w": gradient, "b": gradient[0]}, "topk:density=0.01", rules={"b": "lossless"})
    found = gcodec.patches(data)
    dense = gcodec.decode(data, framework="numpy")
    indices, values = found["w"].numpy()
    assert np.array_equal(indices, np.flatnonzero(dense["w"])) and np.array_equal(values, dense["w"].reshape(-1)[indices])
    assert found["b"].indices is None and np.array_equal(found["b"].numpy()[1], gradient[0])


def test_what_is_refused(rng: np.random.Generator) -> None:
    base, new = pair(rng)
    data = gcodec.encode(new, "delta", base=base)
    other = base | {"float16": base["float16"] + 1}
    for wrong, kind in ((other, "checksum_mismatch"), ({"float16": base["float16"]}, "unknown_reference")):
        with pytest.raises(gcodec.InputError) as raised:
            gcodec.patches(data, base=wrong)
        assert raised.value.kind == kind
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 4
    with pytest.raises(gcodec.FormatError):
        gcodec.patches(damaged, base=base)
    found = gcodec.patches(data, base=base)
    mine = {n: t.clone() for n, t in base.items()}
    last = found.touched[-1]
    for bad, text in (
        ({n: t for n, t in mine.items() if n != last}, "not among"),
        (mine | {last: mine[last].reshape(1)}, "shape"),
        (mine | {last: mine[last].double()}, "f64"),
        (mine | {"float32": mine["float32"].t().contiguous().t()}, "row-major"),
    ):
        with pytest.raises(gcodec.InputError, match=text):
            found.apply_(bad)
        assert all(torch.equal(bits(mine[n].reshape(-1)), bits(base[n].reshape(-1))) for n in base), "nothing is written"
