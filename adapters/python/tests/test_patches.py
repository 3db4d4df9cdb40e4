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
        (mine | {"float32": mine["float32"][:1].expand(mine["float32"].shape)}, "share memory"),
        (mine | {"float32": mine["float32"].to_sparse()}, "sparse"),
    ):
        with pytest.raises(gcodec.InputError, match=text):
            found.apply_(bad)
        assert all(torch.equal(bits(mine[n].reshape(-1)), bits(base[n].reshape(-1))) for n in base), "nothing is written"


def placements(old: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns copies of a tensor of four dimensions with other strides."""
    wide = torch.stack([torch.zeros_like(old), old], -1)
    return {
        "channels last": old.clone(memory_format=torch.channels_last),
        "transposed": old.transpose(0, 3).contiguous().transpose(0, 3),
        "permuted": old.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
        "every second": wide[..., 1],
        "part of a larger one": torch.nn.functional.pad(old.float(), (1, 1)).to(old.dtype)[..., 1:-1],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64, torch.bool, torch.float8_e5m2])
def test_patches_are_written_whatever_the_strides(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    old = torch.randint(0, 2, (3, 4, 2, 5), generator=generator).to(dtype)
    new = torch.where(torch.rand(old.shape, generator=generator) < 0.2, 1 - old.float(), old.float()).to(dtype)
    delta = gcodec.patches(gcodec.encode(new, "delta", base=old), base=old)
    assert 0 < delta.count < old.numel() // 2
    for found in (delta, gcodec.patches(gcodec.encode(new, "lossless"))):
        for name, place in placements(old).items():
            assert torch.equal(place.float(), old.float()) and not place.is_contiguous(), name
            strides = place.stride()
            found.apply_({"tensor": place})
            assert torch.equal(place.float(), new.float()) and place.stride() == strides, name
            if dtype == torch.float32:
                base = old.numpy().copy()
                for array in (np.asfortranarray(base), np.flip(np.flip(base, 1).copy(), 1), np.repeat(base, 2, 0)[::2]):
                    found.apply_({"tensor": array})
                    assert np.array_equal(array, new.numpy())
    # A parameter, in the format that convolutions prefer.
    parameter = torch.nn.Parameter(old.float().clone(memory_format=torch.channels_last))
    old, new = old.float(), new.float()
    gcodec.patches(gcodec.encode(new, "delta", base=old), base=parameter).apply_({"tensor": parameter})
    assert torch.equal(parameter.detach(), new)


def test_elements_that_share_memory_are_refused() -> None:
    found = gcodec.patches(gcodec.encode(torch.ones(2, 3), "lossless"))
    row, read_only = np.zeros(3, np.float32), np.zeros((2, 3), np.float32)
    read_only.flags.writeable = False
    for wrong, text in (
        (torch.zeros(3).expand(2, 3), "share memory"),
        (torch.zeros(4).as_strided((2, 3), (1, 1)), "share memory"),
        (np.lib.stride_tricks.as_strided(row, (2, 3), (0, 4)), "share memory"),
        (read_only, "read-only"),
        (torch.view_as_complex(torch.zeros(2, 3, 2)).conj().imag, "read-only"),
    ):
        with pytest.raises(gcodec.InputError, match=text):
            found.apply_({"tensor": wrong})
        assert not torch.as_tensor(wrong if isinstance(wrong, torch.Tensor) else wrong.copy()).any()
