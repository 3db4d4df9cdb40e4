"""Streams from files and sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gcodec
from gcodec.engines.sources import CHUNK, read_stream

STREAM = bytes(range(256)) * (CHUNK // 100)


@contextmanager
def sender(data: bytes, *, parts: int = 1, reset: bool = False) -> Iterator[str]:
    """Sends bytes to whoever connects first."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            peer, _ = server.accept()
            with peer:
                for part in range(parts):
                    peer.sendall(data[part * len(data) // parts : (part + 1) * len(data) // parts])
                if reset:
                    # Closing sends a reset instead of an end.
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        yield "tcp://127.0.0.1:" + str(server.getsockname()[1])
        thread.join(10)


def test_sockets_and_files_give_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "stream"
    file.write_bytes(STREAM)
    assert read_stream(str(file), len(STREAM)) == STREAM
    with sender(STREAM, parts=7) as address:
        assert read_stream(address, len(STREAM)) == STREAM
    with sender(b"") as address:
        assert read_stream(address, 0) == b""


def test_what_is_too_long_or_breaks_off_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "stream"
    file.write_bytes(STREAM)
    with pytest.raises(gcodec.InputError, match="more than"):
        read_stream(str(file), len(STREAM) - 1)
    with sender(STREAM[: 3 * CHUNK // 2]) as address, pytest.raises(gcodec.InputError, match="more than"):
        read_stream(address, CHUNK)
    with sender(b"x" * 10, reset=True) as address, pytest.raises(OSError, match="reset"):
        read_stream(address, 100)
    with pytest.raises(OSError, match="refused"):
        read_stream(address, 100)
    with pytest.raises(OSError, match="No such file"):
        read_stream(str(tmp_path / "none"), 100)


@pytest.mark.parametrize("address", ["tcp://", "tcp://host", "tcp://:80", "tcp://host:http", "tcp://[::1:80", "tcp://host:70000"])
def test_addresses_without_host_or_port_are_refused(address: str) -> None:
    with pytest.raises(gcodec.InputError, match="HOST:PORT"):
        read_stream(address, 100)


def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcodec.engines.sources.TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        read_stream(f"tcp://127.0.0.1:{server.getsockname()[1]}", 100)
