"""Names with a prefix on one side: `module.`, `_orig_mod.`, `model.`, or any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gcodec
from gcodec import sync
from gcodec.store import Follower, Store

Weights = dict[str, torch.Tensor]

PREFIXES = ["module.", "_orig_mod.", "model.", "_orig_mod.module.", "base_model.model."]


def weights(step: int, prefix: str = "") -> Weights:
    return {prefix + "a": torch.full((4,), float(step)), prefix + "model.b": torch.ones(3), prefix + "c": torch.zeros(2)}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("published", [True, False])
def test_a_follower_compares_names_without_a_prefix(tmp_path: Any, prefix: str, published: bool) -> None:
    of_store, of_engine = (prefix, "") if published else ("", prefix)
    store = Store(tmp_path / "s")
    store.publish(weights(0, of_store))
    held = weights(0, of_engine)
    with pytest.raises(gcodec.InputError, match=f"all names match without `{prefix}`"):
        Follower(store, held, version=1)
    follower = Follower(store, held, version=1, strip_prefix=prefix)
    store.publish(weights(1, of_store))
    update = follower.stage()
    assert update is not None and update.touched == [of_engine + "a"]
    assert {n: t.tolist() for n, t in update.tensors(framework="torch").items()} == {of_engine + "a": [1.0] * 4}
    assert list(update.tensors({of_engine + "c"})) == [of_engine + "c"]
    update.commit(lambda patches: patches.apply_(held))
    assert not follower.poisoned and all(torch.equal(held[n], t) for n, t in weights(1, of_engine).items())
    # From nothing, with the prefix, and with the next version.
    fresh, engine = Follower(store, strip_prefix=prefix), weights(7, of_engine)
    update = fresh.stage()
    assert update is not None
    update.commit(lambda patches: patches.apply_(engine))
    assert all(torch.equal(engine[n], t) for n, t in weights(1, of_engine).items())


@pytest.mark.parametrize("prefix", PREFIXES)
def test_patches_that_do_not_fit_poison_nothing(tmp_path: Any, prefix: str) -> None:
    store = Store(tmp_path / "s")
    store.publish(weights(0))
    follower = Follower(store, weights(0), version=1)
    store.publish(weights(1))
    update, wrapped = follower.stage(), weights(0, prefix)
    assert update is not None
    with pytest.raises(gcodec.InputError, match=f"all names match without `{prefix}`; give strip_prefix='{prefix}'"):
        update.commit(lambda patches: patches.apply_(wrapped))
    assert not follower.poisoned and follower.version == 1
    with pytest.raises(gcodec.InputError, match="'a' has shape"):
        update.commit(lambda patches: patches.apply_({"a": torch.zeros(5)}))
    update.commit(lambda patches: patches.apply_(wrapped, strip_prefix=prefix))
    assert follower.version == 2 and torch.equal(wrapped[prefix + "a"], torch.ones(4))


def test_what_may_have_been_written_poisons(tmp_path: Any) -> None:
    store = Store(tmp_path / "s")
    store.publish(weights(0))

    def loads(load: Any) -> Follower:
        follower = Follower(store, weights(0), version=1)
        update = follower.stage()
        assert update is not None
        with pytest.raises(gcodec.store.PoisonedError):
            update.commit(load)
        return follower

    store.publish(weights(1))
    good, bad = weights(0), {"a": torch.zeros(1)}
    # One set of weights was written, a patch was taken out, or the error is not that of the patches.
    assert loads(lambda patches: [patches.apply_(w) for w in (good, bad)]).poisoned
    assert loads(lambda patches: (good["a"].copy_(patches["a"].torch()[1]), patches.apply_(bad))).poisoned
    assert loads(lambda patches: bad["b"]).poisoned


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_receiver_compares_names_without_a_prefix(prefix: str) -> None:
    for of_sender, of_receiver in ((prefix, ""), ("", prefix)):
        sender = sync.Sender(weights(0, of_sender))
        delta, anchor = sender.delta(weights(1, of_sender)), sender.anchor()
        for data in (delta, anchor):
            held = weights(0, of_receiver)
            wrong = sync.Receiver(held)
            with pytest.raises(gcodec.InputError, match=f"all names match without `{prefix}`"):
                wrong.stage(data)
            assert not wrong.poisoned
            receiver, engine = sync.Receiver(held, strip_prefix=prefix), weights(0, of_receiver)
            staged = receiver.stage(data)
            with pytest.raises(gcodec.InputError, match="not among"):
                staged.commit(lambda patches: patches.apply_({}))
            assert not receiver.poisoned
            assert staged.commit(lambda patches: patches.apply_(engine, strip_prefix=prefix)) == 1
            for tensors in (held, engine):
                assert all(torch.equal(tensors[n], t) for n, t in weights(1, of_receiver).items())
    with pytest.raises(gcodec.InputError, match=f"missing: 'a'.*all names match without `{prefix}`"):
        sync.Sender(weights(0)).delta(weights(1, prefix))


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."])
def test_wrappers_of_inner_modules_are_left_out_within_names(tmp_path: Any, wrapper: str) -> None:
    plain = {"embed.weight": torch.zeros(2), "layers.0.mlp.w": torch.ones(3), "layers.1.w": torch.ones(3)}
    names = ["embed.weight", f"{wrapper}layers.0.{wrapper}mlp.w", f"layers.{wrapper}1.w"]
    wrapped = {name: tensor.clone() for name, tensor in zip(names, plain.values(), strict=True)}
    store = Store(tmp_path / "s")
    store.publish(plain)
    with pytest.raises(gcodec.InputError, match=f"all names match without `{wrapper}`"):
        Follower(store, wrapped, version=1)
    follower = Follower(store, wrapped, version=1, strip_prefix=wrapper)
    store.publish({name: tensor + 1 for name, tensor in plain.items()})
    update = follower.stage()
    assert update is not None and update.touched == names
    update.commit(lambda patches: patches.apply_(wrapped))
    assert all(torch.equal(a, b + 1) for a, b in zip(wrapped.values(), plain.values(), strict=True))


def test_names_that_are_the_same_without_the_prefix_are_refused(tmp_path: Any) -> None:
    store = Store(tmp_path / "s")
    store.publish(weights(0))
    both = {**weights(0), "module.a": torch.ones(1)}
    with pytest.raises(gcodec.InputError, match="two tensors have the name 'a'"):
        Follower(store, both, version=1, strip_prefix="module.")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w | {"head.weight": w["w"]}, "not in the version: \"head.weight\""),
        (lambda w: {n: t for n, t in w.items() if n != "b"}, "missing: \"b\""),
        (lambda w: w | {"b": w["b"].astype(np.float16)}, r'"b" is f16 \[3\], in the version f32 \[3\]'),
        (lambda w: w | {"b": w["b"].reshape(1, 3)}, r'"b" is f32 \[1, 3\], in the version f32 \[3\]'),
        (lambda w: w | {"b": w["b"] + 1}, '"b"'),
        (lambda w: w | {"w": w["w"] * 2, "b": w["b"] + 1}, '"w", "b"'),
    ],
)
def test_a_follower_names_what_differs(tmp_path: Any, edit: Any, message: str) -> None:
    store = Store(tmp_path / "s", anchor_every=2)
    rng = np.random.default_rng(1)
    w = {"w": rng.standard_normal(50).astype(np.float32), "b": np.zeros(3, np.float32)}
    store.publish({n: t - 1 for n, t in w.items()})
    store.publish(w)
    store.publish({**w, "new": w["b"]})
    assert Follower(store, dict(reversed(w.items())), version=2).version == 2
    with pytest.raises(gcodec.InputError, match=message) as raised:
        Follower(store, edit(w), version=2)
    assert "version 2" in str(raised.value) and str(raised.value).count('"w"') == message.count('"w"')
