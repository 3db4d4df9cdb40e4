"""Where versions of weights come from: a file, a folder of deltas, a socket.

A source is any object with `streams`. A store plugs in by that method.
"""

from __future__ import annotations

import os
import re
import socket
import socketserver
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from gcodec.errors import FormatError, InputError, LimitError

_NAME = re.compile(r"(\d{12})-(anchor|from-(\d{12}))\.gcu")
_ASK = struct.Struct("<QQ")
_SIZE = struct.Struct("<Q")
_NONE = (1 << 64) - 1
_CHUNK = 1 << 20


@runtime_checkable
class Source(Protocol):
    """Where versions of weights come from."""

    def streams(self, after: int | None, target: int | None = None) -> Iterator[bytes]:
        """Yields streams that lead to version `target` (None: the newest), to be applied in order.

        after: the version that the receiver has; None if it needs an anchor first.
        """


class StreamFile:
    """A source of one stream in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def streams(self, after: int | None, target: int | None = None) -> Iterator[bytes]:
        """Yields the file's bytes."""
        yield self._path.read_bytes()


class Folder:
    """A folder with a file for each anchor and delta; both a source and a sink.

    Files are written under another name, flushed to the disk, and linked to their own: a reader sees whole
    files only. A file that exists is never replaced.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def put(self, version: int, base: int | None, data: bytes) -> None:
        """Keeps a stream that makes `version`.

        Raises:
            InputError: the folder has another stream of that name.
        """
        if not 0 <= version < 10**12:
            raise InputError(f"version {version} is not from 0 to 10^12 - 1")
        self.path.mkdir(parents=True, exist_ok=True)
        what = "anchor" if base is None else f"from-{base:012}"
        final = self.path / f"{version:012}-{what}.gcu"
        descriptor, name = tempfile.mkstemp(dir=self.path, prefix=".gcodec-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(name, final)
            except FileExistsError:
                if final.read_bytes() != data:
                    raise InputError(f"{final} exists: another publisher made this version") from None
        finally:
            os.unlink(name)

    def versions(self) -> list[tuple[int, int | None]]:
        """Returns what the folder has, ascending: versions, and the version that each changes (None: an
        anchor)."""
        found = (_NAME.fullmatch(name) for name in os.listdir(self.path)) if self.path.is_dir() else ()
        pairs = ((int(m[1]), None if m[3] is None else int(m[3])) for m in found if m)
        return sorted(pairs, key=lambda pair: (pair[0], -1 if pair[1] is None else pair[1]))

    def streams(self, after: int | None, target: int | None = None) -> Iterator[bytes]:
        """Yields the deltas from `after` to `target`, or, where a delta is missing, an anchor and the deltas
        after it.

        Raises:
            InputError: nothing leads to `target`.
        """
        for version, base in self._path_to(after, target):
            what = "anchor" if base is None else f"from-{base:012}"
            yield (self.path / f"{version:012}-{what}.gcu").read_bytes()

    def _path_to(self, after: int | None, target: int | None) -> list[tuple[int, int | None]]:
        have = self.versions()
        if target is None:
            target = max((version for version, _ in have), default=after or 0)
        # From every version, the longest step forward.
        steps = {base: version for version, base in have if base is not None and base < version <= target}

        def walk(at: int) -> list[tuple[int, int | None]]:
            path: list[tuple[int, int | None]] = []
            while at < target and at in steps:
                path.append((steps[at], at))
                at = steps[at]
            return path

        reached = walk(after) if after is not None else []
        end = reached[-1][0] if reached else after
        if end is not None and end >= target:
            return reached
        anchors = [version for version, base in have if base is None and version <= target and (after is None or version > after)]
        for anchor in reversed(anchors):
            path = [(anchor, None), *walk(anchor)]
            if path[-1][0] == target:
                return path
        raise InputError(f"{self.path} has no chain from version {'none' if after is None else after} to version {target}")


class SocketSource:
    """A source behind a socket of `serve`.

    Args:
        address: host and port.
        timeout: seconds that a connection and each answer may take.
        max_bytes: most bytes of one stream.
    """

    def __init__(self, address: tuple[str, int], *, timeout: float = 60, max_bytes: int = 1 << 40) -> None:
        self._address, self._timeout, self._max = address, timeout, max_bytes

    def streams(self, after: int | None, target: int | None = None) -> Iterator[bytes]:
        """Yields the streams that the server sends.

        Raises:
            FormatError: the connection ends within a stream.
            InputError: the server has no chain to `target`.
            LimitError: a stream is too long.
        """
        with socket.create_connection(self._address, self._timeout) as connection:
            connection.sendall(_ASK.pack(_NONE if after is None else after, _NONE if target is None else target))
            while (size := _SIZE.unpack(_read(connection, _SIZE.size))[0]) != 0:
                if size == _NONE:
                    raise InputError(f"the server has no chain from version {after} to version {target}")
                if size > self._max:
                    raise LimitError(f"a stream has {size} bytes, and {self._max} are allowed", kind="limit", fault="limits")
                yield _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    """Reads bytes; memory grows with what has come."""
    out = bytearray()
    while len(out) < size:
        data = connection.recv(min(_CHUNK, size - len(out)))
        if not data:
            raise FormatError(f"the connection ended after {len(out)} of {size} bytes", kind="truncated", fault="bytes")
        out += data
    return bytes(out)


class serve:
    """Serves a source on a socket, in threads, until `close`.

        with gcodec.sync.serve(gcodec.sync.Folder("weights"), ("127.0.0.1", 0)) as server:
            print(server.address)

    The protocol has no encryption and no passwords: bind it to an address that only receivers reach.
    """

    def __init__(self, source: Source, address: tuple[str, int], *, timeout: float = 60) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(timeout)
                try:
                    after, target = _ASK.unpack(_read(self.request, _ASK.size))
                    for data in source.streams(*(None if n == _NONE else n for n in (after, target))):
                        self.request.sendall(_SIZE.pack(len(data)))
                        self.request.sendall(data)
                    self.request.sendall(_SIZE.pack(0))
                except InputError:
                    self.request.sendall(_SIZE.pack(_NONE))
                except (OSError, FormatError):
                    # The receiver is gone, and sees the connection end.
                    return

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(address, Handler)
        self.address: tuple[str, int] = self._server.server_address[:2]  # type: ignore[assignment]
        """Host and port."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> serve:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def source_of(text: str) -> Source:
    """Returns the source that a text names: `file:PATH`, `folder:PATH` or `socket:HOST:PORT`."""
    kind, _, place = text.partition(":")
    if kind == "file" and place:
        return StreamFile(place)
    if kind == "folder" and place:
        return Folder(place)
    host, _, port = place.rpartition(":")
    if kind == "socket" and host and port.isdigit():
        return SocketSource((host, int(port)))
    raise InputError(f"the source is {text!r}: use file:PATH, folder:PATH or socket:HOST:PORT")
