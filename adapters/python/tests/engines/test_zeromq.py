"""Streams over ZeroMQ whose delivery is partial: every receiver ends at the trainer's version, none takes a
delta twice. `test_recovery.py` has the other requirements."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: `cargo xtask engines` installs it")

sys.path.insert(0, str(Path(__file__).parents[1]))
from refits import Trainer, same  # noqa: E402

import gcodec  # noqa: E402
from gcodec import sync  # noqa: E402
from gcodec.errors import GcodecError  # noqa: E402

CHUNK = 120
WAIT = 20_000
Chunks = list[tuple[int, bytes]]


class Peer:
    """A receiver: stages what it was sent, says so, and commits when it is told to."""

    def __init__(self, context: Any, address: str, name: str, weights: Any) -> None:
        self.receiver, self.name, self.fails = sync.Receiver(weights), name, 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, name.encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)
        self.socket.send(b"hello")
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        chunks: dict[int, bytes] = {}
        staged: sync.Staged | None = None
        while True:
            kind, *rest = self.socket.recv_multipart()
            if kind == b"stop":
                self.socket.close()
                return
            if kind == b"chunk":
                chunks[int(rest[0])] = rest[1]
                continue
            try:
                if kind == b"stage":
                    staged, data = None, b"".join(chunks[at] for at in sorted(chunks))
                    chunks = {}
                    staged = self.receiver.stage(data)
                    answer = f"staged {staged.version}"
                elif staged is None:
                    answer = "nothing is staged"
                else:
                    answer = f"at {self.commit(staged)}"
            except (GcodecError, MemoryError) as e:
                answer = f"refused {getattr(e, 'kind', 'memory')}"
            self.socket.send(answer.encode())

    def commit(self, staged: sync.Staged) -> int:
        if not self.fails:
            return staged.commit()
        self.fails -= 1
        place, writes = gcodec.patches.__globals__["_Place"], list[Any]()

        def write(own: Any) -> None:
            writes.append(own)
            if len(writes) > 2:
                raise MemoryError("no memory")
            own.put(own._values)

        # The trainer asks one peer after another: no other one commits meanwhile.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, "write", write)
            return staged.commit()


class Fleet:
    """The trainer's side: sends a stream to peers in chunks, through faults."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, WAIT)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.address, self.peers = f"tcp://127.0.0.1:{port}", dict[str, Peer]()

    def join(self, name: str, weights: Any) -> None:
        self.peers[name] = Peer(self.context, self.address, name, weights)
        assert self.socket.recv_multipart() == [name.encode(), b"hello"]

    def leave(self, name: str) -> None:
        self.socket.send_multipart([name.encode(), b"stop"])
        self.peers.pop(name).thread.join(20)

    def send(self, name: str, data: bytes, fault: Callable[[Chunks], Chunks] = lambda chunks: chunks) -> str:
        """Sends a stream, and returns what the peer answers."""
        chunks = [(at // CHUNK, data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
        assert len(chunks) > 3
        for at, chunk in fault(chunks):
            self.socket.send_multipart([name.encode(), b"chunk", str(at).encode(), chunk])
        return self.ask(name, b"stage")

    def ask(self, name: str, what: bytes) -> str:
        self.socket.send_multipart([name.encode(), what])
        own, answer = self.socket.recv_multipart()
        assert own == name.encode()
        return str(answer.decode())


@contextmanager
def fleet(trainer: Trainer, size: int = 3) -> Iterator[Fleet]:
    made = Fleet()
    try:
        for number in range(size):
            made.join(f"peer{number}", trainer.copy())
        yield made
    finally:
        for name in list(made.peers):
            made.leave(name)
        made.socket.close()
        made.context.term()


FAULTS: dict[str, tuple[Callable[[Chunks], Chunks], bool]] = {
    "a chunk is lost": (lambda chunks: chunks[:1] + chunks[2:], False),
    "the end is lost": (lambda chunks: chunks[:-1], False),
    "nothing comes": (lambda chunks: [], False),
    "a bit is flipped": (lambda chunks: [*chunks[:1], (1, bytes([chunks[1][1][0] ^ 1]) + chunks[1][1][1:]), *chunks[2:]], False),
    "a chunk comes twice": (lambda chunks: [*chunks, chunks[1]], True),
    "chunks change places": (lambda chunks: chunks[::-1], True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_partial_delivery_is_repeated(fault: str) -> None:
    trainer = Trainer()
    old = trainer.copy()
    sender = sync.Sender(trainer.weights)
    change, whole = FAULTS[fault]
    with fleet(trainer) as peers:
        data = sender.delta(trainer.step())
        assert peers.send("peer0", data) == "staged 1" == peers.send("peer2", data)
        answer = peers.send("peer1", data, change)
        assert (answer == "staged 1") == whole and (whole or answer.startswith("refused")), answer
        # Not all are ready; two commit all the same.
        assert peers.ask("peer0", b"commit") == "at 1" == peers.ask("peer2", b"commit")
        assert same(peers.peers["peer1"].receiver.weights, old)
        # The stream is sent again to all: those who have the version refuse it, the other one takes it.
        assert peers.send("peer0", data) == "refused version" == peers.send("peer2", data)
        assert peers.send("peer1", data) == "staged 1" and peers.ask("peer1", b"commit") == "at 1"
        data = sender.delta(trainer.step())
        for name, peer in peers.peers.items():
            assert peers.send(name, data) == "staged 2" and peers.ask(name, b"commit") == "at 2"
            assert same(peer.receiver.weights, trainer.weights)


def test_a_commit_that_fails_on_one_is_repeated_there() -> None:
    trainer = Trainer()
    old, sender = trainer.copy(), sync.Sender(trainer.weights)
    with fleet(trainer) as peers:
        data = sender.delta(trainer.step())
        peers.peers["peer1"].fails = 1
        assert [peers.send(name, data) for name in peers.peers] == ["staged 1"] * 3
        assert [peers.ask(name, b"commit") for name in peers.peers] == ["at 1", "refused memory", "at 1"]
        assert same(peers.peers["peer1"].receiver.weights, old)
        assert peers.send("peer1", data) == "staged 1" and peers.ask("peer1", b"commit") == "at 1"
        assert all(same(peer.receiver.weights, trainer.weights) for peer in peers.peers.values())


def test_a_receiver_that_was_replaced_takes_an_anchor() -> None:
    trainer = Trainer()
    first, sender = trainer.copy(), sync.Sender(trainer.weights)
    with fleet(trainer) as peers:
        data = sender.delta(trainer.step())
        for name in ("peer0", "peer2"):
            assert peers.send(name, data) == "staged 1" and peers.ask(name, b"commit") == "at 1"
        peers.leave("peer1")
        data = sender.delta(trainer.step())
        peers.join("new", {name: torch.zeros_like(x) for name, x in first.items()})
        assert peers.send("new", data) == "refused version"
        assert peers.send("new", sender.anchor()) == "staged 2" and peers.ask("new", b"commit") == "at 2"
        for name in ("peer0", "peer2"):
            assert peers.send(name, data) == "staged 2" and peers.ask(name, b"commit") == "at 2"
        assert all(same(peer.receiver.weights, trainer.weights) for peer in peers.peers.values())
