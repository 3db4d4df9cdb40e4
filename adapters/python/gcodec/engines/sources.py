"""Streams from files and sockets."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from gcodec.errors import InputError

TIMEOUT = 60.0
"""Seconds without a byte after which a socket is given up."""
CHUNK = 1 << 20
"""Bytes that are read at once: memory grows with the bytes that came."""


def read_stream(address: str, most: int) -> bytes:
    """Reads a stream from a file, or from a TCP socket (`tcp://HOST:PORT`) until its peer closes it.

    Args:
        most: the most bytes that the stream may have.

    Raises:
        InputError: the stream is longer, or the address of a socket has no host or port.
        OSError: the file or the socket cannot be read, or no byte came for a minute.
    """
    if not address.startswith("tcp://"):
        with Path(address).open("rb") as file:
            return _read(file, address, most)
    with socket.create_connection(_place(address), timeout=TIMEOUT) as peer, peer.makefile("rb") as source:
        return _read(source, address, most)


def _place(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None:
        raise InputError(f"{address} is not tcp://HOST:PORT")
    return host, port


def _read(source: BinaryIO, address: str, most: int) -> bytes:
    data = bytearray()
    while chunk := source.read(min(CHUNK, most + 1 - len(data))):
        data += chunk
    if len(data) > most:
        raise InputError(f"{address} has more than {most} bytes")
    return bytes(data)
