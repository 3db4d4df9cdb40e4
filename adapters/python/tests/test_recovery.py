"""Recovery after a version that only some receivers loaded: what NeMo-RL's issue "Recover safely after
partial remote sparse refit failure" asks for, one by one, and its checkpoint engine.

1. A failure after a partial apply is recovered without restarting the training process.
2. A retry cannot apply a delta twice.
3. Versions of receivers and trainer are explicit, and compared before a commit.
4. Failures are injected into partial deliveries by S3 (here) and ZeroMQ (`engines/test_zeromq.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from refits import Generation, Synchronizer, Trainer, created, same
from test_store_s3 import Server, s3  # noqa: F401

import gcodec
from gcodec import sync
from gcodec.store import Store


def fleet(store: str, size: int = 3, **settings: Any) -> tuple[Trainer, Synchronizer]:
    trainer = Trainer()
    engines = [created(store, release_after_refit=True, **settings) for _ in range(2 + size)]
    return trainer, Synchronizer(engines[:2], [Generation(engine) for engine in engines[2:]], lambda: trainer.weights)


def test_a_refit_loads_what_changes(tmp_path: Path) -> None:
    trainer, fleet_ = fleet(str(tmp_path))
    for step in range(4):
        fleet_.sync_weights()
        for one in fleet_.generations:
            assert same(one.weights, trainer.weights)
            assert one.loaded == (list(trainer.weights) if step == 0 else ["layers.2.weight"][: step % 2])
        if step % 2 == 0:
            trainer.weights["layers.2.weight"][3, 4] += 1
    assert Store(str(tmp_path)).latest() == 4
    with pytest.raises(gcodec.InputError, match="release_after_refit: true"):
        created(str(tmp_path))


@pytest.mark.parametrize("first", [0, 1, 3])
def test_1_a_partial_apply_is_recovered_without_a_restart(tmp_path: Path, first: int) -> None:
    trainer, fleet_ = fleet(str(tmp_path))
    fleet_.sync_weights()
    old = trainer.copy()
    trainer.step()
    failing = fleet_.generations[1]
    failing.fails_after = first
    with pytest.raises(RuntimeError, match="weight transfer failed"):
        fleet_.sync_weights()
    # One has neither version, or the old one; the others have the new one.
    assert not same(failing.weights, trainer.weights) and same(failing.weights, old) == (first == 0)
    assert all(same(one.weights, trainer.weights) for one in fleet_.generations if one is not failing)
    # The same processes go on: first with a retry of the same weights, then with the next step.
    fleet_.sync_weights()
    assert all(same(one.weights, trainer.weights) for one in fleet_.generations)
    assert failing.loaded == list(trainer.weights)
    trainer.step()
    fleet_.sync_weights()
    assert all(same(one.weights, trainer.weights) for one in fleet_.generations)


@pytest.mark.parametrize("codec", ["delta", "delta:values=overwrite"])
def test_1_receivers_in_place_return_to_the_last_version(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    sender, receivers = sync.Sender(trainer.weights, codec=codec), [sync.Receiver(trainer.copy()) for _ in range(3)]
    old = trainer.copy()
    data = sender.delta(trainer.step())
    staged = [receiver.stage(data) for receiver in receivers]
    assert staged[0].commit() == 1
    with monkeypatch.context() as patch:
        place = gcodec.patches.__globals__["_Place"]
        write, calls = place.write, []

        def failing(self: Any) -> None:
            calls.append(self)
            if len(calls) == 3:
                raise MemoryError("no memory")
            write(self)

        patch.setattr(place, "write", failing)
        with pytest.raises(MemoryError):
            staged[1].commit()
    assert same(receivers[1].weights, old) and receivers[1].version == 0 and not receivers[1].poisoned
    # The stream of the version is good for those who do not have it, and for nobody else.
    assert receivers[1].stage(data).commit() == 1 and staged[2].commit() == 1
    assert all(same(receiver.weights, trainer.weights) for receiver in receivers)


def test_1_a_poisoned_engine_takes_a_common_baseline() -> None:
    trainer = Trainer()
    sender, receivers = sync.Sender(trainer.weights), [sync.Receiver(trainer.copy()) for _ in range(2)]
    engines = [trainer.copy() for _ in receivers]
    data = sender.delta(trainer.step())

    def half(patches: Any) -> None:
        next(iter(patches.values())).apply_(engines[1]["layers.0.weight"])
        raise MemoryError("no memory")

    receivers[0].stage(data).commit(lambda patches: patches.apply_(engines[0]))
    with pytest.raises(sync.PoisonedError):
        receivers[1].stage(data).commit(half)
    with pytest.raises(sync.PoisonedError, match="anchor"):
        receivers[1].stage(sender.delta(trainer.step()))
    receivers[1].stage(sender.anchor()).commit(lambda patches: patches.apply_(engines[1]))
    assert receivers[1].version == sender.version == 2 and same(engines[1], trainer.weights)


@pytest.mark.parametrize("codec", ["delta", "delta:values=overwrite"])
def test_2_a_retry_applies_nothing_twice(tmp_path: Path, codec: str) -> None:
    trainer = Trainer()
    sender, receiver = sync.Sender(trainer.weights, codec=codec), sync.Receiver(trainer.copy())
    data = sender.delta(trainer.step())
    again = receiver.stage(data)
    receiver.stage(data).commit()
    for retry in (lambda: receiver.stage(data), again.commit):
        with pytest.raises(gcodec.InputError) as raised:
            retry()
        assert raised.value.kind == "version" and same(receiver.weights, trainer.weights)
    # Also if the receiver has forgotten its version: its weights are not the base.
    with pytest.raises(gcodec.InputError) as raised:
        sync.Receiver(trainer.copy()).stage(data)
    assert raised.value.kind == "checksum_mismatch"
    # A refit that is repeated loads nothing where it has succeeded.
    _, fleet_ = fleet(str(tmp_path), timeout=30)
    fleet_.sync_weights()
    fleet_.generations[0].fails_after = 0
    fleet_.weights()["layers.1.weight"][5, 5] += 1
    for loaded in (["layers.1.weight"], []):
        if loaded:
            with pytest.raises(RuntimeError):
                fleet_.sync_weights()
        else:
            fleet_.sync_weights()
        assert [one.loaded for one in fleet_.generations[1:]] == [loaded, loaded]
    assert len(fleet_.generations[0].loaded) == 4


def test_3_versions_are_explicit_and_compared_before_a_commit(tmp_path: Path) -> None:
    trainer = Trainer()
    sender, receiver = sync.Sender(trainer.weights, version=7), sync.Receiver(trainer.copy(), version=7)
    first = sender.delta(trainer.step())
    second = sender.delta(trainer.step())
    assert (sender.version, receiver.version) == (9, 7)
    assert receiver.stage(first).version == 8
    for data, why in ((second, "changes version 8, and version 7 is here"), (gcodec.encode(trainer.weights, "lossless", header=gcodec.UpdateHeader(step=6)), "the stream is version 6")):
        with pytest.raises(gcodec.InputError, match=why) as raised:
            receiver.stage(data)
        assert raised.value.kind == "version"
    # A version that was staged before another one came is not committed.
    late = receiver.stage(first)
    receiver.stage(first).commit()
    with pytest.raises(gcodec.InputError, match="was staged on another version"):
        late.commit()
    receiver.stage(second).commit()
    assert receiver.version == sender.version and same(receiver.weights, trainer.weights)
    # A refit announces its version. Another trainer's takes its place, and the refit fails on the trainer.
    trainer, fleet_ = fleet(str(tmp_path), timeout=1)
    fleet_.sync_weights()
    intruder = fleet_.policies[0].exchange.announced

    def announced() -> int:
        version = intruder()
        Store(str(tmp_path)).publish({name: x + 1 for name, x in trainer.weights.items()})
        fleet_.policies[0].exchange.announced = intruder
        return version

    fleet_.policies[0].exchange.announced = announced
    with pytest.raises(RuntimeError) as failed:
        fleet_.sync_weights()
    assert "version 3 was published, and 2 expected" in str(failed.value.__cause__)
    fleet_.sync_weights()
    assert all(same(one.weights, trainer.weights) for one in fleet_.generations)


def test_3_a_trainer_that_publishes_nothing_changes_nothing(tmp_path: Path) -> None:
    trainer, fleet_ = fleet(str(tmp_path), timeout=0.3)
    fleet_.sync_weights()
    old, store = trainer.copy(), fleet_.policies[0].exchange.store
    trainer.step()
    publish, store.publish = store.publish, lambda *_, **__: (_ for _ in ()).throw(OSError("the trainer is cut off"))
    with pytest.raises(RuntimeError):
        fleet_.sync_weights()
    assert all(same(one.weights, old) for one in fleet_.generations)
    store.publish = publish
    fleet_.sync_weights()
    assert all(same(one.weights, trainer.weights) for one in fleet_.generations)


@pytest.mark.parametrize("fault", ["cut", "corrupt"])
def test_4_a_partial_delivery_by_s3(s3: Server, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    trainer, fleet_ = fleet(f"s3://bucket/{fault}", size=2, timeout=60)
    fleet_.sync_weights()
    old = trainer.copy()
    # Much changes, so that the object is longer than what the server sends before it cuts.
    draw = torch.Generator().manual_seed(1)
    for tensor in trainer.weights.values():
        tensor.copy_(torch.randn(tensor.shape, generator=draw).bfloat16())
    monkeypatch.setattr("test_store_s3.CUT_AFTER", 100)
    cut_off = fleet_.generations[1]
    # The first worker has finished before the second begins.
    turn: list[int] = []

    def fail(app: Any = s3.app) -> None:
        assert fleet_.generations[0].loaded == list(trainer.weights)
        turn.append(1)
        if fault == "cut":
            s3.cuts = 10_000
            return

        def corrupt(environment: dict[str, Any], start: Any) -> Any:
            answer = app(environment, start)
            if environment["REQUEST_METHOD"] != "GET" or "/data/" not in environment["PATH_INFO"]:
                return answer
            body = bytearray(b"".join(answer))
            body[len(body) // 2] ^= 1
            return [bytes(body)]

        s3.app = corrupt

    receive = cut_off.engine.receive_weight_batches

    async def later() -> Any:
        import asyncio

        while fleet_.generations[0].loaded != list(trainer.weights):
            await asyncio.sleep(0.05)
        fail()
        async for batch in receive():
            yield batch

    working = s3.app
    cut_off.engine.receive_weight_batches = later
    with pytest.raises(RuntimeError) as failed:
        fleet_.sync_weights()
    assert turn and isinstance(failed.value.__cause__, gcodec.GcodecError), failed.value.__cause__
    assert same(fleet_.generations[0].weights, trainer.weights) and same(cut_off.weights, old)
    s3.cuts, s3.app, cut_off.engine.receive_weight_batches = 0, working, receive
    fleet_.sync_weights()
    assert all(same(one.weights, trainer.weights) for one in fleet_.generations) and fleet_.generations[0].loaded == []
