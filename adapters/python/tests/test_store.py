"""Stores of versions: what a publisher writes, followers get, or nothing."""

import numpy as np
import pytest

import gcodec
from gcodec.store import ConflictError, Follower, PoisonedError, Store


def weights(step):
    rng = np.random.default_rng(7)
    w = rng.standard_normal((200, 100)).astype(np.float32)
    changed = np.random.default_rng(step).random(w.shape) < 0.01
    return {"w": np.where(changed, w * 1.001, w).astype(np.float32), "b": np.arange(10, dtype=np.float32)}


def equal(engine, step):
    return all(np.array_equal(engine[name], tensor) for name, tensor in weights(step).items())


@pytest.fixture(params=["memory", "files"])
def store(tmp_path, request):
    return Store(tmp_path / "run", grace=0.0, scratch=None if request.param == "memory" else tmp_path)


def test_a_follower_gets_what_changed(store):
    follower, engine = Follower(store), {}
    assert follower.stage() is None and follower.poisoned
    for step in range(1, 5):
        published = store.publish(weights(step), meta={"step": str(step)})
        assert published.version == step and (published.anchor_bytes is None) == (step > 1)
        update = follower.stage()
        assert update.touched == (["w", "b"] if step == 1 else ["w"]) and update.meta == {"step": str(step)}
        update.apply(engine.__setitem__, framework="numpy")
        assert follower.version == step and not follower.poisoned and equal(engine, step)
    assert follower.stage() is None
    assert [v.version for v in store.log(3)] == [4, 3, 2]
    assert equal({name: t.numpy() for name, t in store.pull(2).items()}, 2)
    assert np.array_equal(store.tensor("w", 3).numpy(), weights(3)["w"])


def test_a_follower_that_fell_behind_takes_the_fold(store):
    follower, engine = Follower(store), {}
    for step in range(1, 9):
        store.publish(weights(step))
        if step == 1:
            follower.stage().apply(engine.__setitem__, framework="numpy")
    folded, replay = store.fold(1, 8)
    assert folded < replay
    update = follower.stage()
    assert (update.steps, update.bytes) == (1, folded)
    update.apply(engine.__setitem__, framework="numpy")
    assert equal(engine, 8)
    store.lease("reader", 8, 60)
    assert store.gc().deleted == 0
    store.release("reader")


def test_the_publisher_chooses_what_deltas_say(tmp_path, store):
    store.publish(weights(1))
    store.publish(weights(2))
    overwrite = Store(tmp_path / "run", codec=gcodec.Delta(values="overwrite"))
    overwrite.publish(weights(3))
    assert [v.codec for v in store.log()] == ["delta:values=overwrite", "delta", None]
    follower = Follower(store, weights(1), version=1)
    engine = {name: tensor.copy() for name, tensor in weights(1).items()}
    follower.stage().commit(lambda patches: patches.apply_(engine))
    assert equal(engine, 3)
    # The streams say it, too.
    (delta,) = (tmp_path / "run/data").glob("*3-d*")
    assert gcodec.inspect(delta).updates[0].label == "delta:values=overwrite"
    with pytest.raises(gcodec.InputError, match="topk.* does not encode deltas"):
        Store(tmp_path / "run", codec="topk").publish(weights(4))
    with pytest.raises(gcodec.InputError):
        Store(tmp_path / "run", codec="deltas")


def test_a_load_that_fails_poisons(store):
    follower, engine = Follower(store), {}
    store.publish(weights(1))
    follower.stage().apply(engine.__setitem__, framework="numpy")
    store.publish(weights(2))
    update = follower.stage()

    def fail(name, tensor):
        raise RuntimeError("the device is lost")

    with pytest.raises(PoisonedError, match="device is lost"):
        update.apply(fail, framework="numpy")
    assert follower.poisoned and follower.version is None
    with pytest.raises(gcodec.InputError):
        update.apply(engine.__setitem__, framework="numpy")
    again = follower.stage()
    assert again.touched == ["w", "b"]
    again.apply(engine.__setitem__, framework="numpy")
    assert equal(engine, 2) and not follower.poisoned


def test_patches_change_only_what_differs(store):
    store.publish(weights(1))
    store.publish(weights(2))
    store.publish(weights(2))
    engine = {name: tensor.copy() for name, tensor in weights(1).items()}
    follower = Follower(store, engine, version=1)
    update = follower.stage(2)
    (patch,) = update.patches.values()
    differs = np.flatnonzero(weights(1)["w"] != weights(2)["w"])
    assert patch.name == "w" and np.array_equal(patch.numpy()[0], differs) and not follower.poisoned
    assert (update.patches.header.step, update.patches.header.inner_steps) == (1, 1)
    assert update.commit(lambda patches: patches.apply_(engine)) == follower.version == 2 and equal(engine, 2)
    # Nothing changes, nothing is loaded.
    assert follower.stage(3).commit(lambda patches: 1 / 0) == follower.version == 3
    # Back, too; and a load that fails needs all tensors.
    stale, update = follower.stage(2), follower.stage(1)
    with pytest.raises(PoisonedError):
        update.commit(lambda patches: 1 / 0)
    with pytest.raises(gcodec.InputError, match="another version"):
        stale.commit(lambda patches: None)
    update = follower.stage()
    assert list(update.patches) == ["w", "b"] and update.patches["w"].indices is None
    update.commit(lambda patches: patches.apply_(engine))
    assert equal(engine, 3 - 1) and follower.version == 3


def test_weights_that_an_engine_has_are_compared(store):
    store.publish(weights(1))
    engine = weights(1)
    engine["w"][3, 4] += 1
    with pytest.raises(gcodec.InputError, match='1 of 2 tensors have other elements than in version 1: "w"'):
        Follower(store, engine, version=1)
    with pytest.raises(gcodec.InputError, match="their version"):
        Follower(store, engine)


def test_two_publishers_and_damage_are_typed(tmp_path, store):
    store.publish(weights(1))
    other = Store(tmp_path / "run")
    other.publish(weights(2))
    # The first publisher synchronises by itself: each publication begins from the latest version.
    assert store.publish(weights(3)).version == 3
    assert issubclass(ConflictError, gcodec.GcodecError)
    record = next((tmp_path / "run/versions").glob("*3.json"))
    record.write_bytes(record.read_bytes()[:-3])
    with pytest.raises(gcodec.FormatError, match="checksum"):
        Store(tmp_path / "run", attempts=1).pull()
    with pytest.raises(gcodec.InputError):
        store.pull(9)
    with pytest.raises(gcodec.InputError):
        Store("ftp://host/x")
