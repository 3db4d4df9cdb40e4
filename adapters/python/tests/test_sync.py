"""Weight sync: versions are published, followed and refused."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gcodec
from gcodec import sync

Weights = dict[str, torch.Tensor]


@pytest.fixture
def chain(tmp_path: Path) -> tuple[sync.Folder, list[Weights]]:
    """A folder with versions 1 to 6, anchors at 1 and 4, and their weights. Version 5 equals version 4."""
    generator = torch.Generator().manual_seed(0)
    weights = {"a": torch.randn(40, 30, generator=generator).bfloat16(), "b": torch.randn(9, generator=generator)}
    folder, versions = sync.Folder(tmp_path / "weights"), [weights]
    publisher = sync.Publisher(folder, anchor_every=3)
    for version in range(1, 7):
        weights = {n: t.clone() for n, t in weights.items()}
        if version != 5:
            # Versions change other tensors in turn, so that digests alone do not tell their order.
            weights["ab"[version % 2]].view(-1)[version :: 7] += 1
        published = publisher.publish(weights)
        assert (published.version, published.anchor) == (version, version in (1, 4))
        versions.append(weights)
    return folder, versions


def copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def same(one: Any, other: Weights) -> bool:
    return all(torch.equal(one[name], tensor) for name, tensor in other.items())


def test_followers(chain: tuple[sync.Folder, list[Weights]]) -> None:
    folder, versions = chain
    kinds = [(v, b) for v, b in folder.versions()]
    assert kinds == [(1, None), (2, 1), (3, 2), (4, None), (4, 3), (5, 4), (6, 5)]
    for start in (0, 1, 3):
        receiver = sync.Receiver(copy(versions[start]), start)
        loaded: list[list[str]] = []
        for data in folder.streams(receiver.version):
            staged = receiver.stage(data)
            before = receiver.version
            assert same(receiver.weights, versions[before]), "staging changes nothing"
            staged.commit(lambda patches: loaded.append(list(patches)))
            assert same(receiver.weights, versions[receiver.version])
        assert receiver.version == 6
        # Version 5 changes nothing: it is not loaded.
        assert loaded == {0: [["a", "b"], ["a"]], 1: [["a"], ["b"], ["a"], ["a"]], 3: [["a"], ["a"]]}[start]
    assert len(list(folder.streams(3))) == 3 and len(list(folder.streams(None))) == 3 and not list(folder.streams(6))
    assert len(list(folder.streams(1, 3))) == 2
    with pytest.raises(gcodec.InputError, match="no chain"):
        list(folder.streams(6, 9))


def test_every_wrong_order_is_refused(chain: tuple[sync.Folder, list[Weights]]) -> None:
    folder, versions = chain
    deltas = {v: next(folder.streams(b, v)) for v, b in folder.versions() if b is not None}
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
    anchor = next(folder.streams(None, 4))
    with pytest.raises(gcodec.InputError, match="version 4 is here"):
        sync.Receiver(copy(versions[4]), 4).stage(anchor)
    receiver = sync.Receiver(copy(versions[1]) | {"c": torch.zeros(3)}, 1)
    with pytest.raises(gcodec.InputError, match="not all elements of 'c'"):
        receiver.stage(anchor)


def test_every_flipped_or_missing_byte_is_refused(chain: tuple[sync.Folder, list[Weights]]) -> None:
    folder, versions = chain
    data = next(folder.streams(1, 2))
    receiver = sync.Receiver(copy(versions[1]), 1)
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        for bad in (bytes(damaged), data[:at]):
            with pytest.raises(gcodec.GcodecError):
                receiver.stage(bad)
    assert receiver.version == 1 and same(receiver.weights, versions[1])


def test_a_failed_load_poisons_until_an_anchor(chain: tuple[sync.Folder, list[Weights]]) -> None:
    folder, versions = chain
    receiver = sync.Receiver(copy(versions[1]), 1)
    delta = next(folder.streams(1, 2))
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
    assert receiver.stage(next(folder.streams(None, 1))).commit() == 1
    assert not receiver.poisoned
    first, second = receiver.stage(delta), receiver.stage(delta)
    first.commit()
    with pytest.raises(gcodec.InputError, match="staged on another"):
        second.commit()
    assert same(receiver.weights, versions[2])


def test_a_folder_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sync.Folder(tmp_path)
    folder.put(1, None, b"one")
    folder.put(1, None, b"one")
    with pytest.raises(gcodec.InputError, match="another publisher"):
        folder.put(1, None, b"two")
    assert [p.name for p in tmp_path.iterdir()] == ["000000000001-anchor.gcu"]

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    weights = {"a": torch.zeros(4)}
    publisher = sync.Publisher(folder, base=weights, version=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            publisher.publish({"a": torch.ones(4)})
    assert publisher.version == 1 and folder.versions() == [(1, None)] and len(list(tmp_path.iterdir())) == 1
    publisher.publish({"a": torch.ones(4)})
    receiver = sync.Receiver(copy(weights), 1)
    receiver.stage(next(folder.streams(1))).commit()
    assert same(receiver.weights, {"a": torch.ones(4)})
    for bad in ({"b": torch.ones(4)}, {"a": torch.ones(5)}, {"a": torch.ones(4).half()}):
        with pytest.raises(gcodec.InputError):
            publisher.publish(bad)


def test_numpy_weights(tmp_path: Path) -> None:
    folder = sync.Folder(tmp_path)
    publisher = sync.Publisher(folder)
    weights = {"w": np.arange(100, dtype=np.float32)}
    publisher.publish(weights)
    receiver = sync.Receiver({"w": np.zeros(100, np.float32)})
    weights["w"][::9] = 5
    publisher.publish(weights)
    for data in folder.streams(receiver.version):
        receiver.stage(data).commit()
    assert receiver.version == 2 and np.array_equal(receiver.weights["w"], weights["w"])


def test_sources(chain: tuple[sync.Folder, list[Weights]]) -> None:
    folder, _ = chain
    expected = list(folder.streams(3))
    path = next(folder.path.glob("*-from-*.gcu"))
    with sync.serve(folder, ("127.0.0.1", 0)) as server:
        host, port = server.address
        over_socket = sync.source_of(f"socket:{host}:{port}")
        assert list(over_socket.streams(3)) == expected
        assert list(over_socket.streams(None)) == list(folder.streams(None))
        with pytest.raises(gcodec.InputError, match="no chain"):
            list(over_socket.streams(6, 9))
        with pytest.raises(gcodec.LimitError):
            list(sync.SocketSource(server.address, max_bytes=10).streams(3))
    assert list(sync.source_of(f"folder:{folder.path}").streams(3)) == expected
    assert list(sync.source_of(f"file:{path}").streams(None)) == [path.read_bytes()]
    for bad in ("weights", "folder:", "socket:host", "s3:x"):
        with pytest.raises(gcodec.InputError, match="use file:PATH"):
            sync.source_of(bad)


@pytest.fixture
def cut() -> Iterator[tuple[str, int]]:
    """A server that promises 100 bytes, sends 30, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(16)
                connection.sendall((100).to_bytes(8, "little") + bytes(30))

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()


def test_a_connection_that_ends(cut: tuple[str, int]) -> None:
    with pytest.raises(gcodec.FormatError, match="30 of 100"):
        list(sync.SocketSource(cut).streams(1))
