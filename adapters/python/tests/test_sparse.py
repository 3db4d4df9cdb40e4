"""Patches in the coordinates of a checkpoint, between gcodec and vLLM's classes, on a real step of a
transformer. Where vLLM is installed, with its own classes and loader; else with classes of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gcodec  # noqa: E402
from gcodec.engines.sparse import stream, weight_patches  # noqa: E402

PAIR = Path(__file__).resolve().parents[4] / "shared/gradients/weight_sync"


@dataclass
class SparseWeightPatch:
    name: str
    indices: torch.Tensor
    values: torch.Tensor
    full_shape: tuple[int, ...]


def classes() -> list[Any]:
    try:
        from vllm.distributed.weight_transfer.sparse_nccl_engine import SparseWeightPatch as TheirPatch
    except ImportError:
        return [SparseWeightPatch]
    return [SparseWeightPatch, TheirPatch]


@pytest.fixture(scope="module")
def pair() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    safetensors = pytest.importorskip("safetensors.torch")
    if not PAIR.exists():
        pytest.skip(f"needs the public gradient set: {PAIR}")
    return tuple(safetensors.load_file(PAIR / f"gpt_bf16_sync{step}.safetensors") for step in ("020", "021"))


def differences(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor], make: Any) -> list[Any]:
    """Returns patches as a trainer makes them for vLLM."""
    made = []
    for name, tensor in new.items():
        at = (tensor.view(-1).view(torch.int16) != old[name].view(-1).view(torch.int16)).nonzero().view(-1)
        if len(at):
            made.append(make(name=name, indices=at.int(), values=tensor.view(-1)[at], full_shape=tuple(tensor.shape)))
    return made


@pytest.mark.parametrize("make", classes(), ids=lambda make: make.__module__)
def test_patches_go_both_ways(pair: Any, make: Any) -> None:
    old, new = pair
    theirs = differences(old, new, make)
    data = stream(theirs, old, header=gcodec.UpdateHeader(step=21))
    # Values replace, so a delta from a stream holds the new weights of every tensor that changes.
    decoded = gcodec.decode(data, base=old, framework="torch")
    assert set(decoded) == {patch.name for patch in theirs}
    assert all(torch.equal(tensor.view(torch.int16), new[name].view(torch.int16)) for name, tensor in decoded.items())
    assert 8 * len(data) < 10 * sum(len(patch.indices) for patch in theirs)
    # And back, as the trainer made them.
    ours = weight_patches(gcodec.patches(data, base=old), make)
    assert [patch.name for patch in ours] == [patch.name for patch in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is make and one.full_shape == other.full_shape and one.indices.dtype == torch.int32
        assert torch.equal(one.indices, other.indices) and torch.equal(one.values, other.values)


def test_what_vllm_does_not_take_is_refused() -> None:
    old = {"w": torch.zeros(4, 2), "i": torch.zeros(3, dtype=torch.int32)}
    cases = [
        ({"w": torch.full((4, 2), float("nan"))}, "NaN"),
        ({"i": torch.ones(3, dtype=torch.int32)}, "are floats"),
    ]
    for new, text in cases:
        base = {name: old[name] for name in new}
        with pytest.raises(gcodec.InputError, match=text):
            weight_patches(gcodec.patches(gcodec.encode(new, "delta", base=base), base=base), SparseWeightPatch)
    # Whole tensors have every index.
    whole = weight_patches(gcodec.patches(gcodec.encode({"w": torch.ones(4, 2)}, "lossless")), SparseWeightPatch)
    assert whole[0].indices.tolist() == list(range(8)) and whole[0].full_shape == (4, 2)


def test_patches_that_do_not_fit_are_refused() -> None:
    base = {"w": torch.zeros(4, 2)}

    def patch(name: str = "w", at: list[int] | None = None, dtype: Any = torch.float32, shape: Any = (4, 2)) -> Any:
        indices = torch.tensor([1, 5] if at is None else at)
        return SparseWeightPatch(name, indices, torch.ones(2, dtype=dtype), shape)

    later = SparseWeightPatch("w", torch.tensor([5]), torch.tensor([2.0]), (4, 2))
    whole = gcodec.decode(stream([patch(), later], base), base=base, framework="torch")["w"]
    assert whole.view(-1).tolist() == [0, 1, 0, 0, 0, 2, 0, 0]
    for wrong, text in [
        (patch("v"), "no tensor 'v'"),
        (patch(at=[1, 8]), "outside"),
        (patch(at=[-1, 1]), "outside"),
        (patch(at=[1, 1]), "repeats"),
        (patch(at=[1]), "1 indices for 2 values"),
        (patch(dtype=torch.float16), "float16"),
        (patch(shape=(8,)), "shape"),
    ]:
        with pytest.raises(gcodec.InputError, match=text):
            stream([wrong], base)


def test_a_base_of_any_strides_is_changed() -> None:
    base = {"w": torch.arange(48.0).reshape(2, 2, 3, 4).to(memory_format=torch.channels_last)}
    patch = SparseWeightPatch("w", torch.tensor([5, 47]), torch.tensor([-1.0, -2.0]), (2, 2, 3, 4))
    expected = base["w"].contiguous()
    expected.view(-1)[torch.tensor([5, 47])] = torch.tensor([-1.0, -2.0])
    assert torch.equal(gcodec.decode(stream([patch], base), base=base, framework="torch")["w"], expected)


def test_vllm_loads_them(pair: Any) -> None:
    loader = pytest.importorskip("vllm.model_executor.model_loader.checkpoint_weight_patch", reason="vLLM is not installed")
    engine = pytest.importorskip("vllm.distributed.weight_transfer.sparse_nccl_engine")
    old, new = pair

    class Model(torch.nn.Module):
        """Its weights are the checkpoint's, one after another in one parameter, as fused ones are."""

        def __init__(self) -> None:
            super().__init__()
            self.ends: dict[str, tuple[int, int]] = {}
            for name, tensor in old.items():
                begin = max((end for _, end in self.ends.values()), default=0)
                self.ends[name] = (begin, begin + tensor.numel())
            self.fused = torch.nn.Parameter(torch.cat([tensor.view(-1) for tensor in old.values()]), False)

        def load_weights(self, weights: Any) -> set[str]:
            for name, tensor in weights:
                self.fused.data[slice(*self.ends[name])].view(tensor.shape).copy_(tensor)
            return {"fused"}

    model = Model()
    data = stream(differences(old, new, engine.SparseWeightPatch), old)
    sent = weight_patches(gcodec.patches(data, base=old))
    for patch in sent:
        engine.SparseNCCLTrainerWeightTransferEngine._validate_patch(patch)
    # As the worker makes them of what it received.
    received = [
        loader.CheckpointWeightPatch(patch.name, tuple(patch.full_shape), patch.values.dtype, patch.values, patch.indices)
        for patch in sent
    ]
    assert loader.load_checkpoint_weight_patches(model, received) == {"fused"}
    expected = torch.cat([tensor.view(-1) for tensor in new.values()])
    assert torch.equal(model.fused.view(torch.int16), expected.view(torch.int16))
    # The loader's own patches make the same stream, also whole.
    assert stream(received, old) == data
    dense = [loader.CheckpointWeightPatch(name, tuple(t.shape), t.dtype, t.view(-1)) for name, t in new.items()]
    decoded = gcodec.decode(stream(dense, old), base=old, framework="torch")
    assert all(torch.equal(decoded[name].view(torch.int16), tensor.view(torch.int16)) for name, tensor in new.items())
