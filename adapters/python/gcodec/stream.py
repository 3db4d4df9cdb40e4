"""Streams of updates, written and read one by one: files, sockets, any object that reads or writes bytes."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from gcodec import _native
from gcodec._native import Tensor
from gcodec.codecs import Codec, spec_of
from gcodec.devices import Work, place
from gcodec.errors import InputError, check_u64
from gcodec.feedback import Dgc, Feedback, split
from gcodec.limits import Limits
from gcodec.tensors import Framework, convert, given
from gcodec.trees import named_tensors, rebuild

Order = Literal["name"] | Iterable[str] | None
"""In which order a stream has the tensors of a tree: `name`, all names in a row, or None, that of the tree."""

# The library's defaults of its EncodeOptions and of its compressors' Options.
PART_BYTES = 64 << 20
BLOCK_LEN = 1 << 22
# Bytes read at once.
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class UpdateHeader:
    """Who says it, when, and for whom."""

    step: int = 0
    """Optimizer updates before this one."""
    round: int = 0
    """Communication rounds before this one."""
    sender: int = 0
    """Number of the sender."""
    world: int = 0
    """Number of senders, 0 if unknown."""
    contributors: int = 0
    """Senders whose updates are in this one, 0 if unknown."""
    inner_steps: int = 0
    """Local steps that the update covers, 0 if unknown."""
    reduction: Literal["none", "sum", "mean"] = "none"
    """Whether the update is a sum or a mean of several."""
    label: str = ""
    """How the sender compressed, for people."""
    delta: bool = False
    """Whether it is a delta against a base. Written for what the codec makes, whatever stands here."""

    def __post_init__(self) -> None:
        for name in ("step", "round", "sender", "world", "contributors", "inner_steps"):
            check_u64("UpdateHeader", name, getattr(self, name))
        if self.reduction not in ("none", "sum", "mean"):
            raise InputError(f"reduction of UpdateHeader is {self.reduction!r}: none, sum or mean")


class Update(Mapping[str, Tensor]):
    """A decoded update: its tensors by name, and its `header`."""

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
        """All tensors by name, as `framework`'s."""
        return {name: convert(tensor, framework) for name, tensor in self._tensors.items()}

    def tree(self, like: Any, framework: Framework | None = None) -> Any:
        """A tree such as `like`, whose tensors this update's take the place of.

        Each is of the library that the tensor of `like` is of, or of `framework`. What the update does not have is an InputError.
        """
        return as_tree(self._tensors, like, framework)

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name!r}: {tensor!r}" for name, tensor in list(self._tensors.items())[:8])
        more = ", ..." if len(self) > 8 else ""
        return f"Update(step={self.header.step}, sender={self.header.sender}, {{{tensors}{more}}})"


def as_tree(tensors: Mapping[str, Tensor], like: Any, framework: Framework | None) -> Any:
    """A tree such as `like` of these tensors."""
    from gcodec.tensors import framework_of

    def leaf(name: str, old: Any) -> Any:
        if name not in tensors:
            raise InputError(f"the update has no tensor {name!r}")
        new = tensors[name]
        if tuple(old.shape) != new.shape:
            raise InputError(f"tensor {name!r} has shape {new.shape}, where {tuple(old.shape)} was expected")
        return convert(new, framework or framework_of(old))

    return rebuild(like, leaf)


@dataclass(frozen=True)
class EncodeSettings:
    """What the native module reads: how to compress, apart from the codec."""

    block_len: int
    zero_non_finite: bool


def native_update(
    tree: Any,
    codec: Codec | str | Dgc,
    *,
    rules: Mapping[str, Codec | str] | None,
    base: Any = None,
    feedback: Feedback | None,
    header: UpdateHeader | None,
    non_finite: str,
    order: Order = None,
    on: Work | None = None,
) -> _native._Update:
    """An update, as the native module's encoder takes it. `on`: a device's stream and memory to work in."""
    if non_finite not in ("reject", "zero"):
        raise InputError(f"non_finite is reject or zero, not {non_finite!r}")
    tensors = ordered(named_tensors(tree), order)
    chosen, native_feedback, native_dgc = split(codec, feedback)
    default = spec_of(chosen)
    specs, label = [default], default
    if rules:
        if native_dgc is not None:
            raise InputError("Deep Gradient Compression takes no rules")
        ruled = [(glob, spec_of(rule)) for glob, rule in rules.items()]
        specs = [_ruled(name, default, ruled) for name in tensors]
        label = "; ".join([default, *(f"{glob}={spec}" for glob, spec in ruled)])
    header = header or UpdateHeader()
    if not header.label:
        header = UpdateHeader(**{**header.__dict__, "label": label})
    settings = EncodeSettings(BLOCK_LEN, non_finite == "zero")
    bases = given(named_tensors(base))
    # Deep Gradient Compression is the host's.
    placed = given(tensors) if native_dgc is not None else place(tensors, specs, on)
    remember = native_feedback is not None
    if on is not None and native_feedback is None:
        native_feedback = on.memory
    return placed, specs, header, settings, bases, native_feedback, native_dgc, remember


def ordered(tensors: dict[str, Any], order: Order) -> dict[str, Any]:
    """Tensors in another order."""
    if order is None:
        return tensors
    if isinstance(order, str):
        if order != "name":
            raise InputError(f"order is 'name' or the names of all tensors, not {order!r}")
        names = sorted(tensors)
    else:
        names = list(order)
    if len(names) != len(tensors) or set(names) != set(tensors):
        wrong = sorted(set(names) ^ set(tensors)) or sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"order and the tree do not have the same names: {', '.join(map(repr, wrong[:8]))}")
    return {name: tensors[name] for name in names}


def _ruled(name: str, default: str, rules: list[tuple[str, str]]) -> str:
    """The codec of a tensor: that of the last rule that means it."""
    return next((spec for glob, spec in reversed(rules) if fnmatch.fnmatchcase(name, glob)), default)


class Writer:
    """Writes a stream of updates to anything with `write` (a file) or `sendall` (a socket); it never seeks.

    A path is opened and closed again; what was given open stays open. If the target raises, a frame may have been written in part: the
    writer refuses to go on, and a socket is of no more use (a new one takes a new stream). Leaving a `with` block ends the stream; leaving it by an
    exception does not, so that readers notice. Without its end a stream is readable up to its last whole frame.

    Args:
        target: a path, or an object to write to.
        index: whether the stream ends in an index, for random access. It takes memory for each block until then.
        part_bytes: about how many bytes of values one part of an update holds.
        compress: whether metadata may be compressed.
    """

    def __init__(
        self, target: Any, *, index: bool = True, part_bytes: int = PART_BYTES, compress: bool = True
    ) -> None:
        self._owned = open(target, "wb") if isinstance(target, (str, os.PathLike)) else None  # noqa: SIM115
        target = self._owned or target
        self._put: Any = getattr(target, "sendall", None) or getattr(target, "write", None)
        if self._put is None:
            raise TypeError(f"a {type(target).__name__} has neither write nor sendall")
        self._target = target
        self._encoder = _native.Encoder(part_bytes, index, compress)
        self._state: Literal["open", "closed", "failed"] = "open"

    @property
    def offset(self) -> int:
        """Bytes that were put out."""
        return self._encoder.offset

    def write(
        self,
        tree: Any,
        codec: Codec | str | Dgc,
        *,
        rules: Mapping[str, Codec | str] | None = None,
        base: Any = None,
        feedback: Feedback | None = None,
        header: UpdateHeader | None = None,
        non_finite: Literal["reject", "zero"] = "reject",
        order: Order = None,
    ) -> int:
        """Writes an update; the arguments are those of `encode`. Gives the number of its bytes."""
        return self._write(
            lambda: native_update(
                tree,
                codec,
                rules=rules,
                base=base,
                feedback=feedback,
                header=header,
                non_finite=non_finite,
                order=order,
            )
        )

    def _write(self, update: Callable[[], _native._Update]) -> int:
        self._check()
        return self._send(self._encoder.update(update()))

    def metadata(self, entries: Mapping[str, str]) -> None:
        """Writes keys and values, for people and tools."""
        self._check()
        self._send(self._encoder.metadata(dict(entries)))

    def flush(self) -> None:
        """Flushes the target, if it has a `flush`. Does not end the stream."""
        flush = getattr(self._target, "flush", None)
        if flush is not None:
            flush()

    def close(self) -> None:
        """Ends the stream. A second call does nothing."""
        if self._state == "open":
            self._send(self._encoder.finish())
            self._state = "closed"
            self.flush()
        if self._owned is not None:
            self._owned.close()

    def _check(self) -> None:
        if self._state != "open":
            raise InputError(f"the writer is {self._state}")

    def _send(self, data: _native.Encoded | bytes) -> int:
        # What follows a frame that was written in part would be lost to every reader.
        self._state = "failed"
        rest = whole = memoryview(data)
        while rest:
            written = self._put(rest)
            # Raw files may take less than all; sockets' sendall and buffered files take everything.
            if not isinstance(written, int) or written >= len(rest):
                break
            rest = rest[written:]
        self._state = "open"
        return len(whole)

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
    """Reads a stream of updates from anything with `readinto`, `recv_into`, `read` or `recv`, or from a path; iterate over it.

    It reads no byte beyond the frame that it needs, so that what follows on a socket is left alone.

        for update in gcodec.Reader("run.gcu"):
            print(update.header.step, update["w"].numpy())

    What the source raises goes through. After a `TimeoutError` (a socket's, of `settimeout`) or a `BlockingIOError` the reader stands where it stood:
    `next(reader)` waits again, for the rest of an update too. After anything else it gives no more. A source that ends within a stream
    is a FormatError of the kind `truncated`; the updates that came before it are whole.

    Args:
        source: a path, or an object to read from.
        limits: what to allow.
        names: the tensors that are wanted; the others are not put together. None: all.
        base: for deltas, the tensors that they change: a tree. Set `base` again as they change.
        until_end: stop at the end of the first segment, where a socket stays open, instead of at the end of the bytes.
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
        """Keys and values that the stream had so far."""
        if base is not None:
            self.base = base

    @property
    def base(self) -> Any:
        """The tensors that deltas change, to be set."""
        raise AttributeError("the base can only be set")

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
            # Nothing came, and nothing is lost.
            raise
        except BaseException:
            # Where the stream stands is not known any more.
            self._done = True
            self.close()
            raise
        self.close()
        raise StopIteration

    def _fill(self) -> bool:
        """Reads some of what the next event needs; False at the end of a complete stream."""
        size = min(self._decoder.needed(), _CHUNK)
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(_CHUNK))
        read = self._read_into(self._buffer[:size])
        if read is None:
            raise BlockingIOError("the source has no bytes yet: a Reader needs one that waits; feed a Decoder otherwise")
        if read == 0:
            self._decoder.finish()
            return False
        self._decoder.feed(self._buffer[:read])
        return True

    def close(self) -> None:
        """Closes the file, if a path was given."""
        self._done = True
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reading(source: Any) -> Any:
    """A function that fills a buffer from the source and says with how many bytes."""
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
            raise InputError(f"read({len(buffer)}) gave {len(data)} bytes")
        buffer[: len(data)] = data
        return len(data)

    return read_into


class Decoder:
    """Decodes a stream that arrives in pieces, without reading anything itself.

        decoder.feed(piece)
        for update in decoder:  # those that are complete
            ...
    """

    def __init__(self, *, limits: Limits | None = None, names: set[str] | None = None, base: Any = None) -> None:
        self._native = _native.Decoder(limits or Limits(), names)
        self.metadata: dict[str, str] = {}
        """Keys and values that the stream had so far."""
        if base is not None:
            self.set_base(base)

    def set_base(self, tree: Any) -> None:
        """The tensors that deltas change that begin from now on."""
        self._native.set_base(given(named_tensors(tree)))

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Takes the next bytes."""
        self._native.feed(memoryview(data).cast("B"))

    def next_update(self) -> Update | None:
        """The next update, or None if more bytes are needed first."""
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
        """Checks that the stream is complete: FormatError if it is not."""
        self._native.finish()
