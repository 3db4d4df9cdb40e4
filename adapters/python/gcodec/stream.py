"""Streams of updates, written and read one update at a time: to files, sockets, and objects like them."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from gcodec import _native
from gcodec._native import Tensor
from gcodec._tensors.dlpack import Framework, convert, framework_of, given, placed_like
from gcodec._tensors.trees import named_tensors, rebuild
from gcodec._tensors.update import ENCODE_OPTIONS, PART_BYTES, native_update
from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.feedback import Dgc
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.options import Options, resolve
from gcodec.shards import is_dtensor, like_dtensor

# Bytes read at once.
_CHUNK = 1 << 20


class Update(Mapping[str, Tensor]):
    """A decoded update: a mapping from names to tensors, with a `header`."""

    def __init__(self, header: UpdateHeader, tensors: Mapping[str, Tensor]) -> None:
        self.header = header
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def tensors(self, framework: Framework | None = None) -> dict[str, Any]:
        """Returns all tensors by name, as tensors of `framework`."""
        return {name: convert(tensor, framework) for name, tensor in self._tensors.items()}

    def tree(self, like: Any, framework: Framework | None = None) -> Any:
        """Returns a tree with the structure of `like` and the tensors of this update.

        Each tensor belongs to `framework`, or to the library of its counterpart in `like`. A tensor that the
        update does not have, or has with another shape, is an InputError.
        """
        return as_tree(self._tensors, like, framework)

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name!r}: {tensor!r}" for name, tensor in list(self._tensors.items())[:8])
        more = ", ..." if len(self) > 8 else ""
        return f"Update(step={self.header.step}, sender={self.header.sender}, {{{tensors}{more}}})"


def as_tree(tensors: Mapping[str, Tensor], like: Any, framework: Framework | None) -> Any:
    """Returns a tree with the structure of `like` and these tensors; see `Update.tree`."""

    def leaf(name: str, old: Any) -> Any:
        if name not in tensors:
            raise InputError(f"the update has no tensor {name!r}")
        new = tensors[name]
        parts = is_dtensor(old)
        shape = tuple(old.to_local().shape if parts else old.shape)
        if shape != new.shape:
            raise InputError(f"tensor {name!r} has shape {new.shape}, where the tree has {shape}")
        converted = convert(new, framework or framework_of(old))
        if framework is None and framework_of(old) == "jax":
            return placed_like(converted, old)
        return like_dtensor(converted, old) if parts and framework is None else converted

    return rebuild(like, leaf)


class Writer:
    """Writes a stream of updates to a path, or to an object with `write` (a file) or `sendall` (a socket).

    The writer opens and closes a path; an object stays open. It never seeks.

    Leaving a `with` block ends the stream. Leaving it by an exception does not: readers then see a truncated
    stream, which they can read up to its last complete frame.

    The target gets an update in parts, each as soon as it is encoded, so that the writer holds one part of
    its bytes. If the target raises, part of a frame may have been written. The writer then refuses further
    calls; open a new connection and begin a new stream. The same holds if a value cannot be encoded (NaN
    under a lossy codec) after a part was written; an error before that leaves the stream as it was.

    Args:
        target: a path, or an object to write to.
        index: whether the stream ends with an index, for random access. The index takes memory for each
            block.
        part_bytes: bytes of values in one part of an update, approximately. Default: 64 MiB.
        compress: whether metadata may be compressed.
        profile: `core` writes only what readers of the format's core profile know, as `encode` does.
    """

    def __init__(
        self,
        target: Any,
        *,
        index: bool = True,
        part_bytes: int = PART_BYTES,
        compress: bool = True,
        profile: Literal["full", "core"] = "full",
    ) -> None:
        self._owned = open(target, "wb") if isinstance(target, (str, os.PathLike)) else None  # noqa: SIM115
        target = self._owned or target
        self._put: Any = getattr(target, "sendall", None) or getattr(target, "write", None)
        if self._put is None:
            raise TypeError(f"a {type(target).__name__} has neither write nor sendall")
        self._target = target
        self._encoder = _native.Encoder(part_bytes, index, compress, profile)
        self._offset = 0
        self._state: Literal["open", "closed", "failed"] = "open"

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._offset

    def write(self, tree: Any, codec: Codec | str | Dgc, **options: Unpack[Options]) -> int:
        """Writes an update and returns its size in bytes. The arguments are those of `encode`."""
        chosen = resolve("Writer.write", ENCODE_OPTIONS, options)
        return self._write(lambda: native_update("Writer.write", tree, codec, chosen))

    def _write(self, update: Callable[[], _native._Update]) -> int:
        self._check()
        start = self._offset
        self._encoder.write(update(), self._send)
        self._state = "open"
        return self._offset - start

    def metadata(self, entries: Mapping[str, str]) -> None:
        """Writes a metadata frame: keys and values, which do not change how updates are decoded."""
        self._check()
        self._send(self._encoder.metadata(dict(entries)))
        self._state = "open"

    def flush(self) -> None:
        """Flushes the target, if it has a `flush`. The stream stays open."""
        flush = getattr(self._target, "flush", None)
        if flush is not None:
            flush()

    def close(self) -> None:
        """Ends the stream. Further calls do nothing."""
        if self._state == "open":
            self._send(self._encoder.finish())
            self._state = "closed"
            self.flush()
        if self._owned is not None:
            self._owned.close()

    def _check(self) -> None:
        if self._state != "open":
            raise InputError(f"the writer is {self._state}: begin a new stream with a new writer")

    def _send(self, data: _native.Encoded | bytes) -> None:
        """Gives bytes to the target. The caller sets the state after the last bytes of an update or frame."""
        # No reader gets past what was written in part, so an exception leaves the state at `failed`.
        self._state = "failed"
        rest = memoryview(data)
        while rest:
            written = self._put(rest)
            if written is None and isinstance(self._target, io.RawIOBase):
                raise BlockingIOError(errno.EAGAIN, "the target takes no bytes at present: it must block")
            # A raw file may take a part of the bytes; sendall and buffered files take all.
            if not isinstance(written, int) or written >= len(rest):
                written = len(rest)
            self._offset += written
            rest = rest[written:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._owned is not None:
            self._owned.close()


class Reader:
    """Iterates over the updates of a stream: a path, or an object with `readinto`, `recv_into`, `read` or
    `recv`.

        for update in gcodec.Reader("run.gcu"):
            print(update.header.step, update["w"].numpy())

    It reads no byte beyond the frame that it needs, so later bytes on a socket stay there.

    Exceptions of the source pass through. After a `TimeoutError` (a socket with `settimeout`) or a
    `BlockingIOError` the reader keeps its state: `next(reader)` continues, also in the middle of an update.
    After any other exception it ends. A source that ends within a stream is a FormatError of the kind
    `truncated`; the updates before it are whole.

    Args:
        source: a path, or an object to read from.
        limits: limits on the stream. Default: `Limits()`.
        names: the tensors to decode. Default: all.
        base: for deltas, the tree of tensors that they change. Assign to `base` when those tensors change.
        until_end: stop at the end of the first segment instead of at the end of the bytes. Set it for a
            socket that stays open.
    """

    def __init__(
        self,
        source: Any,
        *,
        limits: Limits | None = None,
        names: set[str] | None = None,
        base: Any = None,
        until_end: bool = False,
    ) -> None:
        self._owned = open(source, "rb") if isinstance(source, (str, os.PathLike)) else None  # noqa: SIM115
        self._read_into = _reading(self._owned or source)
        self._decoder = _native.Decoder(limits or Limits(), names)
        self._buffer = memoryview(bytearray(1 << 12))
        self._until_end = until_end
        self._done = False
        self.metadata: dict[str, str] = {}
        """Keys and values of the metadata frames read so far."""
        if base is not None:
            self.base = base

    @property
    def base(self) -> Any:
        """The tree of tensors that later deltas change; write-only."""
        raise AttributeError("base is write-only")

    @base.setter
    def base(self, tree: Any) -> None:
        self._decoder.set_base(given(named_tensors(tree)))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Update:
        try:
            while not self._done:
                found = self._decoder.next() if self._decoder.needed() == 0 else None
                if found is None:
                    self._done = not self._fill()
                    continue
                kind, value = found
                if kind == "update":
                    header, tensors = value
                    return Update(UpdateHeader(**header), dict(tensors))
                if kind == "metadata":
                    self.metadata.update(value)
                elif self._until_end:
                    self._done = True
        except (TimeoutError, BlockingIOError):
            # No bytes came: the decoder is unchanged, and the caller may continue.
            raise
        except BaseException:
            # The position in the stream is unknown from here on.
            self._done = True
            self.close()
            raise
        self.close()
        raise StopIteration

    def _fill(self) -> bool:
        """Feeds the decoder some of the bytes that it needs. Returns False at the end of a complete
        stream."""
        size = min(self._decoder.needed(), _CHUNK)
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(_CHUNK))
        read = self._read_into(self._buffer[:size])
        if read is None:
            raise BlockingIOError("the source has no bytes yet: use a blocking source, or feed a gcodec.Decoder")
        if read == 0:
            self._decoder.finish()
            return False
        self._decoder.feed(self._buffer[:read])
        return True

    def close(self) -> None:
        """Ends the iteration, and closes the file if the source was a path."""
        self._done = True
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reading(source: Any) -> Any:
    """Returns a function that fills a buffer from the source and returns the number of bytes."""
    into = getattr(source, "readinto", None) or getattr(source, "recv_into", None)
    if into is not None:
        return into
    read = getattr(source, "read", None) or getattr(source, "recv", None)
    if read is None:
        raise TypeError(f"a {type(source).__name__} has none of readinto, recv_into, read, recv")

    def read_into(buffer: memoryview) -> int | None:
        data = read(len(buffer))
        if data is None:
            return None
        if len(data) > len(buffer):
            raise InputError(f"the source returned {len(data)} bytes from read({len(buffer)})")
        buffer[: len(data)] = data
        return len(data)

    return read_into


class Decoder:
    """Decodes a stream that arrives in pieces; the caller does the input.

        decoder.feed(piece)
        for update in decoder:  # the updates that are complete
            ...

    Args:
        limits: limits on the stream. Default: `Limits()`.
        names: the tensors to decode. Default: all.
        base: for deltas, the tree of tensors that they change.
    """

    def __init__(self, *, limits: Limits | None = None, names: set[str] | None = None, base: Any = None) -> None:
        self._native = _native.Decoder(limits or Limits(), names)
        self.metadata: dict[str, str] = {}
        """Keys and values of the metadata frames read so far."""
        if base is not None:
            self.set_base(base)

    def set_base(self, tree: Any) -> None:
        """Sets the tree of tensors that later deltas change."""
        self._native.set_base(given(named_tensors(tree)))

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Adds the next bytes of the stream."""
        self._native.feed(memoryview(data).cast("B"))

    def next_update(self) -> Update | None:
        """Returns the next update, or None if it needs more bytes."""
        while (found := self._native.next()) is not None:
            kind, value = found
            if kind == "update":
                header, tensors = value
                return Update(UpdateHeader(**header), dict(tensors))
            if kind == "metadata":
                self.metadata.update(value)
        return None

    def __iter__(self) -> Iterator[Update]:
        while (update := self.next_update()) is not None:
            yield update

    def finish(self) -> None:
        """Checks that the stream is complete. A truncated one is a FormatError."""
        self._native.finish()
