"""Quantised weights and their scales are a unit: they change together or not at all, and have one digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from quantisers import KINDS, ROWS, Tensors, quantise

import gcodec
from gcodec import check, sync, units
from gcodec.store import Follower, Store

FUSED = {"qkv": ("q.weight", "k.weight", "v.weight")}
SIZE = 128


def trained(count: int, seed: int = 0) -> list[Tensors]:
    """Versions of bf16 weights. A few elements change in each, and the largest, so that scales do, too."""
    draw = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(SIZE, SIZE, generator=draw).bfloat16() for name in (*FUSED["qkv"], "down.weight")}
    weights["norm.weight"] = torch.randn(SIZE, generator=draw).bfloat16()
    found = [weights]
    for _ in range(count - 1):
        weights = {name: tensor.clone() for name, tensor in weights.items()}
        for tensor in weights.values():
            flat = tensor.view(-1)
            flat[torch.randint(len(flat), (len(flat) // 100,), generator=draw)] *= 1.25
            flat[flat.abs().argmax()] *= 1.0625
        found.append(weights)
    return found


def engine(weights: Tensors, transposed: bool) -> tuple[Tensors, check.Layout]:
    """The parameters of an engine, q, k and v fused, matrices transposed or not, and its layout."""
    parameters, layout = {}, {}
    own = units.find(weights)
    groups = {"qkv": [own[name] for name in ("q", "k", "v")], "down": [own["down"]]}
    for place, members in groups.items():
        for names in zip(*members, strict=True):
            leaf = names[0].rpartition(".")[2]
            tensors = [weights[name] for name in names]
            if tensors[0].dim() == 2:
                dim = ROWS[leaf]
                parts = check.fused(torch.cat(tensors, dim).shape, {name: weights[name].shape[dim] for name in names}, dim=dim)
                parameter = torch.cat(tensors, dim)
            else:
                parameter, parts = torch.stack(tensors), [check.Part(name, (at,)) for at, name in enumerate(names)]
            if transposed and tensors[0].dim() == 2:
                parameter = parameter.t().contiguous()
                parts = [check.Part(part.name, (*[slice(None)] * (2 - len(part.index)), *part.index[::-1]), axes=(1, 0)) for part in parts]
            parameters[f"{place}.{leaf}"], layout[f"{place}.{leaf}"] = parameter.contiguous(), parts
    rest = {name: tensor.clone() for name, tensor in weights.items() if units.unit_of(name) not in own}
    return parameters | rest, layout


def bits(tensors: Any) -> dict[str, bytes]:
    return {name: x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for name, x in tensors.items()}


def test_units_are_found_by_names() -> None:
    names = [
        "a.weight", "a.weight_scale", "a.input_scale", "a.bias", "b.weight", "norm.weight", "g.qweight", "g.qzeros", "g.scales", "g.g_idx",
        "e.w13_weight", "e.w2_weight", "e.w13_weight_scale_2", "e.w13_weight_scale", "moe_blocks", "moe_scales", "moe_bias", "z.weight_scale",
        "p.weight_packed", "p.weight_shape", "p.weight_scale", "d.weight_scale_inv", "d.weight", "weight", "x_qweight_", "a.preweight",
    ]  # fmt: skip
    assert units.find(names) == {
        "a": ("a.weight", "a.weight_scale"),
        "g": ("g.qweight", "g.qzeros", "g.scales", "g.g_idx"),
        "e.w13": ("e.w13_weight", "e.w13_weight_scale_2", "e.w13_weight_scale"),
        "moe": ("moe_blocks", "moe_scales"),
        "p": ("p.weight_packed", "p.weight_shape", "p.weight_scale"),
        "d": ("d.weight_scale_inv", "d.weight"),
    }
    assert units.unit_of("b.weight") == "b" and units.unit_of("weight") == "" and units.unit_of("a.bias") is None


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bf16_trainer_publishes_what_its_quantiser_made(kind: str, transposed: bool) -> None:
    versions = [quantise(weights, kind) for weights in trained(4)]
    sender, (parameters, layout) = sync.Sender(versions[0]), engine(versions[0], transposed)
    receiver, together = sync.Receiver(check.views(parameters, layout)), 0
    for version, weights in enumerate(versions[1:], 1):
        staged = receiver.stage(sender.delta(weights))
        together += sum(len(set(names) & set(staged.touched)) > 1 for names in units.find(weights).values())
        assert staged.commit() == version
        found = check.digest(parameters, layout)
        assert check.digest(weights).differences(found) == []
        assert found.units() == check.digest(weights).units() and list(found.units()) == ["q", "k", "v", "down"]
        assert bits(engine(weights, transposed)[0]) == bits(parameters)
    assert together > 4, "elements and scales of a unit change in one version"


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_quantises_what_a_bf16_trainer_publishes(kind: str) -> None:
    versions = trained(3)
    sender, receiver = sync.Sender(versions[0]), sync.Receiver({name: x.clone() for name, x in versions[0].items()})
    held = quantise(versions[0], kind)
    for weights in versions[1:]:
        receiver.stage(sender.delta(weights)).commit()
        # Its own quantiser: whole units, of the tensors that changed.
        held = quantise(dict(receiver.weights), kind)
        assert check.digest(quantise(weights, kind)).units() == check.digest(held).units()


def test_a_store_has_versions_of_units(tmp_path: Path) -> None:
    versions = [quantise(weights, "nvfp4") for weights in trained(3)]
    store, (parameters, layout) = Store(str(tmp_path)), engine(versions[0], transposed=True)
    store.publish(versions[0])
    held = check.views(parameters, layout)
    follower = Follower(store, {name: x.clone() for name, x in held.items()}, version=1)
    for weights in versions[1:]:
        store.publish(weights)
        update = follower.stage()
        assert update is not None
        update.commit(lambda patches: patches.apply_(held))
        assert check.digest(parameters, layout).units() == check.digest(weights).units()


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_chain_of_quantised_weights(kind: str) -> None:
    folder = ROOT.parent / "shared" / "gradients" / "weight_sync"
    if not folder.exists():
        pytest.skip("the public gradient set is not beside the checkout")
    pair = [gcodec.load_file(folder / f"gpt_bf16_sync{at:03}.safetensors", framework="torch") for at in (20, 21)]
    old, new = [quantise({n: x for n, x in weights.items() if x.dim() < 2 or x.shape[1] % 32 == 0}, kind) for weights in pair]
    assert len(units.find(old)) > 10
    receiver = sync.Receiver({name: x.clone() for name, x in old.items()})
    assert check.digest(old).units() != check.digest(new).units()
    receiver.stage(sync.Sender(old).delta(new)).commit()
    assert bits(receiver.weights) == bits(new) and check.digest(receiver.weights).units() == check.digest(new).units()


def scale_of(parameters: Tensors) -> str:
    return next(name for name in parameters if name.startswith("down.") and name.endswith(("scale", "scales", "scale_inv")))


def elements_of(parameters: Tensors) -> str:
    return next(name for name in parameters if name.startswith("down.") and name.endswith(("weight", "weight_packed")))


def old_scale(parameters: Tensors, old: Tensors) -> str:
    name = scale_of(parameters)
    parameters[name].copy_(old[name])
    return name


def old_elements(parameters: Tensors, old: Tensors) -> str:
    name = elements_of(parameters)
    parameters[name].copy_(old[name])
    return name


def nibble(parameters: Tensors, old: Tensors) -> str:
    name = elements_of(parameters)
    parameters[name].view(torch.uint8)[7, 5] ^= 0xF0
    return name


def transposed_storage(parameters: Tensors, old: Tensors) -> str:
    # Of the same shape where the matrix is square, so that no shape tells.
    name = elements_of(parameters)
    parameters[name] = parameters[name].t().contiguous()
    return name


FAULTS = [old_scale, old_elements, nibble, transposed_storage]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_a_unit_is_named(kind: str, fault: Callable[[Tensors, Tensors], str]) -> None:
    old, new = [quantise(weights, kind) for weights in trained(2)]
    expected, parameters = check.digest(new), {name: x.clone() for name, x in new.items()}
    name = fault(parameters, old)
    found = check.digest(parameters)
    lines = expected.differences(found)
    assert len(lines) == 1 and lines[0].startswith(f"{name}: ")
    assert [unit for unit, sum in expected.units().items() if found.units()[unit] != sum] == ["down"]
    # The next version is not written over it.
    receiver, sender = sync.Receiver(parameters), sync.Sender(new)
    before = bits(parameters)
    with pytest.raises(gcodec.InputError):
        receiver.stage(sender.delta(quantise(trained(3)[2], kind)))
    assert bits(parameters) == before


def faulty(patch: pytest.MonkeyPatch, good: int, silent: bool) -> None:
    """Lets the write of a tensor after the first `good` ones fail, or write one wrong element."""
    place_of, writes = gcodec.patches.__globals__["_Place"], []

    def write(place: Any) -> None:
        writes.append(place)
        if len(writes) <= good or (silent and len(writes) > good + 1):
            place.put(place._values)
        elif silent:
            wrong = place._values.clone()
            wrong[0] ^= 1
            place.put(wrong)
        else:
            raise MemoryError("no memory for the values")

    patch.setattr(place_of, "write", write)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_fails_leaves_every_unit_as_it_was(kind: str, silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = [quantise(weights, kind) for weights in trained(2)]
    data = sync.Sender(old).delta(new)
    parameters, layout = engine(old, transposed=False)
    receiver, before = sync.Receiver(check.views(parameters, layout)), bits(parameters)
    touched = receiver.stage(data).touched
    for good in range(len(touched)):
        with monkeypatch.context() as patch:
            faulty(patch, good, silent)
            with pytest.raises(gcodec.InputError if silent else MemoryError):
                receiver.stage(data).commit()
        assert bits(parameters) == before and receiver.version == 0 and not receiver.poisoned
    assert receiver.stage(data).commit() == 1
    assert check.digest(new).differences(check.digest(parameters, layout)) == []


def test_a_part_of_a_unit_is_refused() -> None:
    old, new = [quantise(weights, "fp8-block") for weights in trained(2)]
    lost = "down.weight_scale_inv"

    def without(weights: Tensors, *names: str) -> Tensors:
        return {name: x.clone() for name, x in weights.items() if name not in names}

    whole, sender = sync.Receiver(without(old)), sync.Sender(old)
    with pytest.raises(gcodec.InputError, match="has 'down.weight' of the unit 'down', and the weights here 'down.weight', 'down.weight_scale_inv'"):
        whole.stage(sync.Sender(without(old, lost)).delta(without(new, lost)))
    sender.delta(new)
    # An anchor may have more tensors than an engine, but no scales of which it has none.
    with pytest.raises(gcodec.InputError, match="the weights here 'down.weight'"):
        sync.Receiver(without(old, lost)).stage(sender.anchor())
    other = sync.Receiver(without(old, lost, "down.weight"))
    assert other.stage(sender.anchor()).commit() == 1 and "down.weight" not in other.weights
    # The same where a wrapper has changed the names.
    named = {f"module.{name}": x for name, x in without(old, lost).items()}
    with pytest.raises(gcodec.InputError, match="of the unit 'down'"):
        sync.Receiver(named, strip_prefix="module.").stage(sender.anchor())
