"""Weight sync over a transport of the caller's: versions are sent, taken and refused."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import tracemalloc
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mock_driver
import numpy as np
import pytest
import torch
from conftest import ROOT
from mock_driver import Memory, MockDriver, Shared

import gcodec
from gcodec import check, sync

Weights = dict[str, torch.Tensor]

driver = pytest.fixture(scope="module")(mock_driver.loaded)


@dataclass
class Chain:
    """The weights of versions 0 to 6, and their streams. Version 5 equals version 4."""

    weights: list[Weights]
    deltas: dict[int, bytes]
    anchors: dict[int, bytes]


@pytest.fixture(scope="module")
def chain() -> Chain:
    generator = torch.Generator().manual_seed(0)
    weights = {"a": torch.randn(40, 30, generator=generator).bfloat16(), "b": torch.randn(9, generator=generator)}
    made, sender = Chain([weights], {}, {}), sync.Sender(weights)
    for version in range(1, 7):
        weights = copy(weights)
        if version != 5:
            # Versions change other tensors in turn, so that digests alone do not tell their order.
            weights["ab"[version % 2]].view(-1)[version :: 7] += 1
        made.deltas[version] = sender.delta(weights)
        made.anchors[version] = sender.anchor()
        made.weights.append(weights)
        assert sender.version == version
    return made


def copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def same(one: Any, other: Weights) -> bool:
    return all(torch.equal(one[name], tensor) for name, tensor in other.items())


class OnDevice(Shared):
    """A writable array on a CUDA device, as CuPy has it."""

    def copy(self) -> OnDevice:
        return OnDevice(Memory(self.memory.driver, self.memory.read()))


def test_a_sender_compares_on_the_device(driver: MockDriver) -> None:
    weights = {"a": np.ones((40, 300), np.float32), "b": np.arange(9, dtype=np.float32)}
    there = {name: OnDevice(Memory(driver, array)) for name, array in weights.items()}
    on_host, on_device = sync.Sender(weights), sync.Sender(there, on_device=True)
    whole = sum(array.nbytes for array in weights.values())
    for version in range(1, 4):
        for name, array in weights.items():
            array.reshape(-1)[version::70] += 1
            # In place, as an optimiser does: the sender has a copy.
            ctypes.memmove(there[name].memory.address, array.tobytes(), array.nbytes)
        launches, crossed = driver.count("cuLaunchKernel"), driver.count("bytes to the host")
        assert on_device.delta(there) == on_host.delta(weights)
        assert driver.count("cuLaunchKernel") > launches
        assert driver.count("bytes to the host") - crossed < whole / 2
        assert on_device.anchor() == on_host.anchor() and on_device.version == version
    for codec in ("delta", gcodec.Delta(digest="both")):
        on_host, on_device = (sync.Sender({"w": torch.ones(5)}, codec=codec, on_device=on) for on in (False, True))
        assert on_device.delta({"w": torch.zeros(5)}) == on_host.delta({"w": torch.zeros(5)})


def test_the_sender_chooses_what_deltas_say(chain: Chain) -> None:
    sender = sync.Sender(chain.weights[0], codec=gcodec.Delta(values="overwrite"))
    data = sender.delta(chain.weights[1])
    assert gcodec.inspect(data).updates[0].label == "delta:values=overwrite"
    receiver = sync.Receiver(copy(chain.weights[0]))
    assert receiver.stage(data).commit() == 1 and same(receiver.weights, chain.weights[1])
    with pytest.raises(gcodec.InputError, match="not topk"):
        sync.Sender(chain.weights[0], codec="topk")


def test_a_sender_keeps_the_digests_of_its_last_version(chain: Chain) -> None:
    sender = sync.Sender(chain.weights[0])
    for version in range(1, 7):
        header = gcodec.UpdateHeader(step=version - 1, inner_steps=1, world=1)
        old, new = chain.weights[version - 1 : version + 1]
        assert sender.delta(new) == gcodec.encode(new, "delta", base=old, header=header)
    # It computes them only once: a copy that something else changes does not get new ones.
    sender._last = {name: tensor + 1 for name, tensor in sender._last.items()}
    stale = sender.delta(chain.weights[0])
    with pytest.raises(gcodec.InputError):
        gcodec.decode(stale, base={name: tensor + 1 for name, tensor in chain.weights[6].items()})


def test_a_sender_that_failed_keeps_no_digests(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __init__(self, *arguments: Any) -> None:
            self.encoder = encoder(*arguments)

        def whole(self, update: Any) -> bytes:
            self.encoder.whole(update)
            raise MemoryError

    encoder, sender = gcodec._native.Encoder, sync.Sender(chain.weights[0])
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(gcodec._native, "Encoder", Failing)
        sender.delta(chain.weights[3])
    assert sender.version == 0
    assert sender.delta(chain.weights[1]) == chain.deltas[1]


def test_a_receiver_takes_versions_one_by_one(chain: Chain) -> None:
    receiver, loaded = sync.Receiver(copy(chain.weights[0])), []
    for version, data in chain.deltas.items():
        staged = receiver.stage(data)
        assert same(receiver.weights, chain.weights[version - 1]), "staging changes nothing"
        assert staged.commit(lambda patches: loaded.append("".join(patches))) == version
        assert same(receiver.weights, chain.weights[version])
    # Version 5 changes nothing: it is not loaded.
    assert loaded == ["b", "a", "b", "a", "a"]
    late = sync.Receiver(copy(chain.weights[0]))
    assert late.stage(chain.anchors[4]).commit() == 4 and same(late.weights, chain.weights[4])


def test_every_wrong_order_is_refused(chain: Chain) -> None:
    versions = chain.weights
    deltas = chain.deltas
    for have in range(1, 7):
        for version, data in deltas.items():
            receiver = sync.Receiver(copy(versions[have]), have)
            if version == have + 1:
                receiver.stage(data)
                continue
            with pytest.raises(gcodec.InputError) as raised:
                receiver.stage(data)
            assert raised.value.kind == "version" and same(receiver.weights, versions[have])
    receiver = sync.Receiver(copy(versions[2]), 5)
    with pytest.raises(gcodec.InputError) as raised:
        receiver.stage(deltas[6])
    assert raised.value.kind == "checksum_mismatch"
    anchor = chain.anchors[4]
    with pytest.raises(gcodec.InputError, match="version 4 is here"):
        sync.Receiver(copy(versions[4]), 4).stage(anchor)
    receiver = sync.Receiver(copy(versions[1]) | {"c": torch.zeros(3)}, 1)
    with pytest.raises(gcodec.InputError, match="not all elements of 'c'"):
        receiver.stage(anchor)


def test_every_flipped_or_missing_byte_is_refused(chain: Chain) -> None:
    versions = chain.weights
    data = chain.deltas[2]
    receiver = sync.Receiver(copy(versions[1]), 1)
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        for bad in (bytes(damaged), data[:at]):
            with pytest.raises(gcodec.GcodecError):
                receiver.stage(bad)
    assert receiver.version == 1 and same(receiver.weights, versions[1])


def test_a_failed_load_poisons_until_an_anchor(chain: Chain) -> None:
    versions = chain.weights
    receiver = sync.Receiver(copy(versions[1]), 1)
    delta = chain.deltas[2]
    staged, again = receiver.stage(delta), receiver.stage(delta)

    def fail(_: object) -> None:
        raise OSError(errno.EIO, "half")

    with pytest.raises(sync.PoisonedError, match="half"):
        staged.commit(fail)
    assert receiver.poisoned and receiver.version == 1 and same(receiver.weights, versions[1])
    with pytest.raises(sync.PoisonedError):
        receiver.stage(delta)
    with pytest.raises(gcodec.InputError, match="staged on another"):
        again.commit()
    # The anchor of the same version is enough.
    assert receiver.stage(chain.anchors[1]).commit() == 1
    assert not receiver.poisoned
    first, second = receiver.stage(delta), receiver.stage(delta)
    first.commit()
    with pytest.raises(gcodec.InputError, match="staged on another"):
        second.commit()
    assert same(receiver.weights, versions[2])


def test_a_sender_refuses_other_tensors() -> None:
    sender = sync.Sender({"a": torch.zeros(4)})
    for bad in ({"b": torch.ones(4)}, {"a": torch.ones(5)}, {"a": torch.ones(4).half()}):
        with pytest.raises(gcodec.InputError):
            sender.delta(bad)
    assert sender.version == 0


def test_weights_of_any_strides() -> None:
    old = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    new = old.clone()
    new[1, 2, 3] += 1
    sender = sync.Sender({"w": old.to(memory_format=torch.channels_last)})
    delta = sender.delta({"w": new.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)})
    for data in (delta, sender.anchor()):
        held = {"w": old.to(memory_format=torch.channels_last)}
        receiver = sync.Receiver(held)
        assert receiver.stage(data).commit() == 1
        assert torch.equal(held["w"], new) and not held["w"].is_contiguous()


def test_numpy_weights() -> None:
    weights = {"w": np.arange(100, dtype=np.float32)}
    sender, receiver = sync.Sender(weights, 3), sync.Receiver({"w": weights["w"].copy()}, 3)
    weights["w"][::9] = 5
    receiver.stage(sender.delta(weights)).commit()
    assert receiver.version == 4 and np.array_equal(receiver.weights["w"], weights["w"])


def fused(weights: Weights) -> tuple[dict[str, torch.Tensor], check.Layout]:
    """An engine's parameters: `a` transposed, and `b` as the second half of another."""
    parameters = {"t": weights["a"].t().contiguous(), "half": torch.cat([torch.zeros_like(weights["b"]), weights["b"]])}
    count = weights["b"].shape[0]
    return parameters, {"t": [check.Part("a", axes=(1, 0))], "half": [check.Part("b", (slice(count, None),))]}


def test_an_engines_own_parameters_are_the_receivers(chain: Chain) -> None:
    parameters, layout = fused(chain.weights[0])
    where = {name: x.data_ptr() for name, x in parameters.items()}
    receiver = sync.Receiver(check.views(parameters, layout))
    for version, data in chain.deltas.items():
        assert receiver.stage(data).commit() == version
        assert same(check.views(parameters, layout), chain.weights[version])
    assert {name: x.data_ptr() for name, x in parameters.items()} == where and not parameters["half"][: len(chain.weights[0]["b"])].any()
    with pytest.raises(gcodec.InputError, match="only a part of 'a'"):
        check.views(parameters, layout | {"t": [check.Part("a", (slice(1, None),), axes=(1, 0), shape=tuple(chain.weights[0]["a"].shape), offsets=(0, 1))]})


class Faulty:
    """Lets the writes of patches after the first `good` ones fail, or change a further element."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, good: int, *, silent: bool = False) -> None:
        self.writes, place_of = 0, gcodec.patches.__globals__["_Place"]
        put = place_of.write

        def write(place: Any) -> None:
            self.writes += 1
            if self.writes <= good:
                put(place)
            elif silent:
                put(place)
                place._tensor.view(-1)[:3] ^= 1
            else:
                raise MemoryError("no memory for the values")

        monkeypatch.setattr(place_of, "write", write)


@pytest.mark.parametrize("good", [0, 1])
def test_a_write_that_fails_leaves_the_old_version(chain: Chain, monkeypatch: pytest.MonkeyPatch, good: int) -> None:
    first, last = chain.weights[0], chain.weights[6]
    data = gcodec.encode(last, "delta", base=first, header=gcodec.UpdateHeader(step=0, inner_steps=6, world=1))
    for strided in (False, True):
        weights = check.views(*fused(first)) if strided else copy(first)
        receiver = sync.Receiver(weights)
        staged = receiver.stage(data)
        with monkeypatch.context() as patch:
            Faulty(patch, good)
            with pytest.raises(MemoryError):
                staged.commit()
        assert same(weights, first) and not receiver.poisoned and receiver.version == 0
        assert staged.commit() == 6 and same(weights, last)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_result_of_another_digest_is_taken_back(chain: Chain, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    weights = {prefix + name: x for name, x in copy(chain.weights[0]).items()}
    receiver = sync.Receiver(weights, strip_prefix=prefix or None)
    staged = receiver.stage(chain.deltas[1])
    changed = torch.cat([patch.torch()[0] for patch in staged.patches.values()])
    with monkeypatch.context() as patch:
        Faulty(patch, 0, silent=True)
        with pytest.raises(gcodec.InputError, match="has the digest") as raised:
            staged.commit()
    assert raised.value.kind == "checksum_mismatch" and not receiver.poisoned and receiver.version == 0
    # What the patch did not change is not known to it.
    intact = {name: x for name, x in weights.items() if name not in staged.patches}
    before = {prefix + name: x for name, x in chain.weights[0].items()}
    assert same(intact, {name: before[name] for name in intact}) and len(changed)
    for name, patch in staged.patches.items():
        at = patch.torch()[0].long()
        assert torch.equal(weights[name].view(-1)[at], before[name].view(-1)[at])


def test_an_anchor_that_fails_poisons(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = sync.Receiver(copy(chain.weights[0]))
    staged = receiver.stage(chain.anchors[1])
    with monkeypatch.context() as patch:
        Faulty(patch, 1)
        with pytest.raises(sync.PoisonedError, match="not written completely"):
            staged.commit()
    assert receiver.poisoned
    assert receiver.stage(chain.anchors[4]).commit() == 4 and same(receiver.weights, chain.weights[4])


def test_a_load_by_apply_that_fails_leaves_both_as_they_were(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, engine = sync.Receiver(copy(chain.weights[0])), copy(chain.weights[0])
    staged = receiver.stage(chain.deltas[1])
    with monkeypatch.context() as patch:
        Faulty(patch, 0)
        with pytest.raises(MemoryError):
            staged.commit(lambda patches: patches.apply_(engine))
    assert same(engine, chain.weights[0]) and same(receiver.weights, chain.weights[0]) and not receiver.poisoned
    assert staged.commit(lambda patches: patches.apply_(engine)) == 1
    assert same(engine, chain.weights[1])


def test_bases_on_a_device_come_to_the_host_some_at_a_time(driver: MockDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {f"w{n}": np.arange(n, n + 300_000, dtype=np.float32) for n in range(24)}
    new = {name: x.copy() for name, x in old.items()}
    for x in new.values():
        x[::1000] += 1
    there = {name: OnDevice(Memory(driver, x)) for name, x in old.items()}
    data = gcodec.encode(new, "delta", base=old)
    expected = gcodec.patches(data, base=old)
    monkeypatch.setitem(gcodec.patches.__globals__, "_BATCH", 4 << 20)
    gcodec.patches(data, base=there)
    tracemalloc.start()
    found = gcodec.patches(data, base=there)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * (4 << 20) < sum(x.nbytes for x in old.values()) / 2, peak
    for name, patch in expected.items():
        assert [x.tobytes() for x in found[name].numpy()] == [x.tobytes() for x in patch.numpy()]
    for x in there.values():
        x.asked.clear()
    anchor = gcodec.encode(new, "lossless")
    assert gcodec.patches(anchor, base=there).keys() == new.keys() and not any(x.asked for x in there.values()), "only deltas read bases"
    some = gcodec.patches(data, base=there, names={"w3", "w20"})
    assert set(some) == {"w3", "w20"}
    with pytest.raises(gcodec.InputError):
        gcodec.patches(data, base=there | {"w5": there["w6"]})
    with pytest.raises(gcodec.InputError):
        gcodec.patches(data, base={name: x for name, x in there.items() if name != "w7"})


def test_the_page_on_weight_sync() -> None:
    page = (ROOT / "docs/weight-sync.md").read_text()
    [program] = [block for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "check.views" in block]
    weights = {"a": torch.ones(6, 5).bfloat16(), "b": torch.zeros(4)}
    parameters, layout = fused(weights)
    engine = types.SimpleNamespace(named_parameters=lambda: iter(parameters.items()))
    new = {name: x + 1 for name, x in weights.items()}
    exec(compile(program, "docs/weight-sync.md", "exec"), {"engine": engine, "layout": layout, "stream": sync.Sender(weights, 7).delta(new)})
    assert same(check.views(parameters, layout), new)


def test_the_last_version_can_be_in_a_file(chain: Chain, tmp_path: Path) -> None:
    shapes = {"none": torch.zeros(0, 3), "one": torch.tensor(2.0), "bytes": torch.arange(5, dtype=torch.uint8)}
    weights = [{**version, **shapes} for version in chain.weights]
    in_memory, in_file = sync.Sender(weights[0]), sync.Sender(weights[0], folder=tmp_path)
    assert os.listdir(tmp_path) == []
    for version in range(1, 4):
        new = {name: x.clone() for name, x in weights[version].items()}
        assert in_file.delta(new) == in_memory.delta(new)
        # What the trainer does to its weights later does not reach the copy.
        for x in new.values():
            x.zero_()
    assert in_file.anchor() == in_memory.anchor() and in_file.version == 3
    with pytest.raises(gcodec.InputError, match="one of on_device and folder"):
        sync.Sender(weights[0], on_device=True, folder=tmp_path)
    with pytest.raises(OSError):
        sync.Sender(weights[0], folder=tmp_path / "missing")


def test_an_interrupted_copy_poisons_the_sender(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = sync.Sender(chain.weights[0])

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sync, "copy_into", interrupted)
        sender.delta(chain.weights[1])
    for call in (sender.anchor, lambda: sender.delta(chain.weights[1])):
        with pytest.raises(sync.PoisonedError, match="new Sender"):
            call()
