"""Streams through files, sockets and other objects, and random access to files."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gcodec
from gcodec import _native
from gcodec._tensors.update import ENCODE_OPTIONS, native_update
from gcodec.options import resolve


def updates(gradient: np.ndarray, count: int = 3) -> list[dict[str, np.ndarray]]:
    return [{"w": gradient + step, "b": gradient[0] * step} for step in range(count)]


def written(gradient: np.ndarray, **options: object) -> bytes:
    out = io.BytesIO()
    with gcodec.Writer(out, **options) as writer:  # type: ignore[arg-type]
        writer.metadata({"model": "test"})
        for step, tensors in enumerate(updates(gradient)):
            writer.write(tensors, "lossless", header=gcodec.UpdateHeader(step=step, sender=4, reduction="mean"))
        assert writer.offset == len(out.getvalue())
    return out.getvalue()


def check(read: list[gcodec.Update], gradient: np.ndarray) -> None:
    assert [update.header.step for update in read] == [0, 1, 2]
    for update, tensors in zip(read, updates(gradient), strict=True):
        assert (update.header.sender, update.header.reduction, update.header.label) == (4, "mean", "lossless")
        assert list(update) == ["w", "b"] and len(update) == 2
        assert all(np.array_equal(update[name].numpy(), array) for name, array in tensors.items())
        assert np.array_equal(update.tensors("torch")["w"], tensors["w"])


class OnlyRead:
    """A source that returns as few bytes as it may."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + min(size, 1000)]
        self.at += len(piece)
        return piece


class OnlyWrite:
    """A target that takes as few bytes as it may, as raw files do."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, piece: memoryview) -> int:
        self.data += piece[:777]
        return min(len(piece), 777)


def test_any_object_that_reads_or_writes(gradient: np.ndarray, tmp_path: Path) -> None:
    data = written(gradient)
    path = tmp_path / "run.gcu"
    with gcodec.Writer(path) as writer:
        writer.metadata({"model": "test"})
        for step, tensors in enumerate(updates(gradient)):
            writer.write(tensors, "lossless", header=gcodec.UpdateHeader(step=step, sender=4, reduction="mean"))
    assert path.read_bytes() == data
    target = OnlyWrite()
    gcodec.Writer(target)._send(data)
    assert target.data == data
    for source in (path, str(path), io.BytesIO(data), open(path, "rb", buffering=0), OnlyRead(data)):
        reader = gcodec.Reader(source)
        check(list(reader), gradient)
        assert reader.metadata == {"model": "test"} and list(reader) == []
    for wrong in (3, object()):
        with pytest.raises(TypeError):
            gcodec.Writer(wrong)
        with pytest.raises(TypeError):
            gcodec.Reader(wrong)


def test_sockets_and_what_follows_the_stream(gradient: np.ndarray) -> None:
    here, there = socket.socketpair()

    def send() -> None:
        with gcodec.Writer(there) as writer:
            for step, tensors in enumerate(updates(gradient)):
                writer.write(tensors, "lossless", header=gcodec.UpdateHeader(step=step, sender=4, reduction="mean"))
        there.sendall(b"and more")

    thread = threading.Thread(target=send)
    thread.start()
    # The connection stays open, so the reader must stop at the end of the stream.
    check(list(gcodec.Reader(here, until_end=True)), gradient)
    assert here.recv(100) == b"and more", "nothing behind the end was taken"
    thread.join()
    here.close()
    there.close()


def test_pieces_of_any_size(gradient: np.ndarray) -> None:
    data = written(gradient)
    for size in (1000, 4096, len(data)):
        decoder = gcodec.Decoder()
        found = []
        for at in range(0, len(data), size):
            decoder.feed(data[at : at + size])
            found += list(decoder)
        decoder.finish()
        check(found, gradient)
        assert decoder.metadata == {"model": "test"}
    small = gcodec.encode(gradient[0, :5], "raw")
    decoder = gcodec.Decoder()
    when = []
    for i in range(len(small)):
        decoder.feed(small[i : i + 1])
        when += [i for update in decoder]
    [update] = gcodec.inspect(small).updates
    frame = gcodec.inspect(small).frames[update.frames[0]]
    assert when == [frame.offset + frame.bytes - 1], "as soon as its last byte is there"


def test_names_and_tensors_come_from_an_iterator(gradient: np.ndarray) -> None:
    tree = {"layer.w": gradient, "b": gradient[0]}
    assert gcodec.encode(iter(tree.items()), "lossless") == gcodec.encode(tree, "lossless")
    out = io.BytesIO()
    with gcodec.Writer(out) as writer:
        writer.write(((name, tensor) for name, tensor in tree.items()), "lossless")
    assert out.getvalue() == gcodec.encode(tree, "lossless")
    with pytest.raises(gcodec.InputError, match="two tensors of the tree have the name 'b'"):
        gcodec.encode(iter([("b", gradient), ("b", gradient)]), "raw")
    for wrong in (iter([gradient]), iter([(0, gradient)]), iter([("a", gradient, 1)])):
        with pytest.raises(TypeError, match="give pairs of a name and a tensor"):
            gcodec.encode(wrong, "raw")
    with pytest.raises(TypeError, match="a is a str: give tensors"):
        gcodec.encode(iter([("a", "b")]), "raw")


def test_updates_in_several_parts(gradient: np.ndarray) -> None:
    data = written(gradient, part_bytes=1000)
    assert len(gcodec.inspect(data).updates[0].frames) == 2
    check(list(gcodec.Reader(io.BytesIO(data))), gradient)
    assert list(gcodec.decode(data)) == ["w", "b"]
    assert np.array_equal(gcodec.decode(data, names={"b"})["b"].numpy(), gradient[0] * 2)
    # Elements of another type need another block, because a block is never cut.
    half = gradient[0].astype(np.float16)
    base = {"w": gradient, "b": half}
    out = io.BytesIO()
    with gcodec.Writer(out, part_bytes=10) as writer:
        writer.write({"w": gradient * 2, "b": half + 1}, "delta", base=base)
    assert len(gcodec.inspect(out.getvalue()).updates[0].frames) == 2
    [update] = gcodec.Reader(io.BytesIO(out.getvalue()), base=base)
    assert np.array_equal(update["w"].numpy(), gradient * 2) and np.array_equal(update["b"].numpy(), half + 1)


def test_a_chain_of_deltas(gradient: np.ndarray) -> None:
    states = [{"w": gradient.copy()} for _ in range(4)]
    for step, state in enumerate(states):
        state["w"][step] *= step + 2
    out = io.BytesIO()
    with gcodec.Writer(out) as writer:
        for old, new in zip(states, states[1:], strict=False):
            writer.write(new, gcodec.Delta(), base=old)
    reader = gcodec.Reader(io.BytesIO(out.getvalue()), base=states[0])
    for update, expected in zip(reader, states[1:], strict=True):
        assert update.header.delta and np.array_equal(update["w"].numpy(), expected["w"])
        reader.base = update
    file = gcodec.File(out.getvalue())
    assert np.array_equal(file[1].on(states[1])["w"].numpy(), states[2]["w"])
    with pytest.raises(gcodec.InputError):
        file[1]["w"]
    with pytest.raises(gcodec.InputError, match="base"):
        list(gcodec.Reader(io.BytesIO(out.getvalue())))


def test_what_is_wanted(gradient: np.ndarray) -> None:
    assert [list(update) for update in gcodec.Reader(io.BytesIO(written(gradient)), names={"b"})] == [["b"]] * 3


def test_a_stream_that_is_cut_off_is_read_to_there(gradient: np.ndarray) -> None:
    data = written(gradient)
    third = gcodec.inspect(data).updates[2].frames[0]
    offset = gcodec.inspect(data).frames[third].offset
    reader = gcodec.Reader(io.BytesIO(data[: offset + 100]))
    assert [next(reader).header.step, next(reader).header.step] == [0, 1]
    with pytest.raises(gcodec.FormatError) as error:
        next(reader)
    assert (error.value.kind, error.value.offset, error.value.fault) == ("truncated", offset + 100, "bytes")
    assert list(reader) == [], "nothing is read after an error"

    def fails() -> None:
        out = io.BytesIO()
        try:
            with gcodec.Writer(out) as writer:
                writer.write(updates(gradient)[1], "raw")
                raise KeyError
        finally:
            list(gcodec.Reader(io.BytesIO(out.getvalue())))

    with pytest.raises(gcodec.FormatError):
        fails()


def test_a_write_that_fails_ends_the_writer(gradient: np.ndarray) -> None:
    class Broken:
        def write(self, piece: memoryview) -> int:
            raise ConnectionResetError("gone")

    writer = gcodec.Writer(Broken())
    with pytest.raises(ConnectionResetError):
        writer.write(gradient, "raw")
    with pytest.raises(gcodec.InputError, match="failed"):
        writer.write(gradient, "raw")
    writer.close()
    out = io.BytesIO()
    writer = gcodec.Writer(out)
    with pytest.raises(gcodec.InputError):
        writer.write(gradient * np.nan, "topk")
    writer.write(gradient, "topk")
    writer.close()
    writer.close()
    with pytest.raises(gcodec.InputError, match="closed"):
        writer.write(gradient, "topk")
    assert out.getvalue() == gcodec.encode(gradient, "topk"), "what failed left nothing behind"


class Parts:
    """A target that keeps each piece, and then does something."""

    def __init__(self, then: Callable[[int], object] = lambda count: None) -> None:
        self.pieces: list[bytes] = []
        self.then = then

    def write(self, piece: memoryview) -> int:
        self.pieces.append(bytes(piece))
        self.then(len(self.pieces))
        return len(piece)


def eight_blocks(gradient: np.ndarray) -> dict[str, np.ndarray]:
    """Returns tensors of 80 kB, of which neighbours share no block because their types differ."""
    return {f"t{i}": np.resize(gradient, 40_000 >> (1 - i % 2)).astype(f"f{4 - 2 * (i % 2)}") for i in range(8)}


@pytest.fixture
def one_thread() -> Iterator[None]:
    gcodec.set_num_threads(1)
    yield
    gcodec.set_num_threads(0)


@pytest.mark.parametrize("codec", ["raw", "lossless", "topk:density=0.1", "delta"])
def test_a_target_gets_each_part_of_an_update_by_itself(gradient: np.ndarray, codec: str) -> None:
    tensors = eight_blocks(gradient)
    options = {"base": {name: x * 2 for name, x in tensors.items()}} if codec == "delta" else {}
    callers = set()
    target = Parts(lambda _: callers.add(threading.get_ident()))
    with gcodec.Writer(target, part_bytes=1000) as writer:
        size = writer.write(tensors, codec, **options)  # type: ignore[arg-type]
        parts = list(target.pieces)
        assert writer.offset == size == sum(map(len, parts))
    whole = b"".join(target.pieces)
    [update] = gcodec.inspect(whole).updates
    frames = gcodec.inspect(whole).frames
    assert len(parts) == len(update.frames) == 8
    assert len(parts[0]) == frames[update.frames[0]].offset + frames[update.frames[0]].bytes
    assert [len(part) for part in parts[1:]] == [frames[number].bytes for number in update.frames[1:]]
    assert callers == {threading.get_ident()}
    arguments = native_update("encode", tensors, codec, resolve("encode", ENCODE_OPTIONS, options))
    assert whole == _native.Encoder(1000, True, True).whole(arguments), "the bytes of one call"


def interrupt(count: int) -> None:
    if count == 2:
        # A job in the background begins with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)


def hang_up(count: int) -> None:
    if count == 2:
        raise ConnectionResetError("gone")


def be_interrupted(count: int) -> None:
    if count == 2:
        raise InterruptedError


@pytest.mark.parametrize(
    ("then", "error"),
    [(interrupt, KeyboardInterrupt), (hang_up, ConnectionResetError), (be_interrupted, InterruptedError)],
)
def test_an_exception_between_parts_comes_out_and_ends_the_writer(
    gradient: np.ndarray, then: Callable[[int], None], error: type[BaseException]
) -> None:
    target = Parts(then)
    writer = gcodec.Writer(target, part_bytes=1000)
    with pytest.raises(error) as raised:
        writer.write(eight_blocks(gradient), "raw")
    assert raised.type is error
    assert then.__name__ in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert len(target.pieces) == 2 and writer.offset == len(target.pieces[0]), "the second was not taken"
    for call in (lambda: writer.write(gradient, "raw"), lambda: writer.metadata({})):
        with pytest.raises(gcodec.InputError, match="the writer is failed: begin a new stream with a new writer"):
            call()
    writer.close()
    assert len(target.pieces) == 2, "nothing follows"


def test_a_target_that_does_not_block_fails_when_it_is_full(gradient: np.ndarray) -> None:
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    with open(ends[0], "rb"), open(ends[1], "wb", buffering=0) as full:
        writer = gcodec.Writer(full)
        with pytest.raises(BlockingIOError, match="must block"):
            writer.write(gradient, "raw")
        with pytest.raises(gcodec.InputError, match="the writer is failed"):
            writer.write(gradient, "raw")


def test_a_value_that_cannot_be_encoded_after_a_part_ends_the_writer(one_thread: None) -> None:
    tensors = {"a": np.zeros(5 << 20, np.float32), "b": np.full(8, np.nan, np.float32)}
    target = Parts()
    writer = gcodec.Writer(target, part_bytes=1000)
    with pytest.raises(gcodec.InputError, match='"b"') as raised:
        writer.write(tensors, "int8")
    assert raised.value.kind == "non_finite"
    assert len(target.pieces) == 1
    with pytest.raises(gcodec.InputError, match="the writer is failed"):
        writer.write(tensors["a"], "int8")


def test_a_target_may_use_the_feedback_and_not_the_writer(gradient: np.ndarray) -> None:
    feedback, offsets = gcodec.Feedback(), []

    def use(count: int) -> None:
        assert feedback.norm > 0
        offsets.append(writer.offset)
        with pytest.raises(gcodec.InputError, match="the writer is failed"):
            writer.metadata({})

    target = Parts(use)
    writer = gcodec.Writer(target, part_bytes=1000)
    writer.write(eight_blocks(gradient), "topk:density=0.1", feedback=feedback)
    assert offsets == [sum(map(len, target.pieces[:i])) for i in range(8)]


def test_a_target_may_wait_for_a_reader_in_the_same_process(gradient: np.ndarray, one_thread: None) -> None:
    here, there = socket.socketpair()
    tensors = {name: np.resize(x, 1 << 20) for name, x in eight_blocks(gradient).items()}

    def send() -> None:
        with gcodec.Writer(there, part_bytes=1000) as writer:
            for _ in range(3):
                writer.write(tensors, "raw")

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    here.settimeout(60)
    read = list(gcodec.Reader(here, until_end=True))
    thread.join()
    assert [update["t7"].tobytes() for update in read] == [tensors["t7"].tobytes()] * 3
    here.close()
    there.close()


def test_a_source_that_does_not_wait(gradient: np.ndarray) -> None:
    class NotYet:
        def read(self, size: int) -> None:
            return None

    with pytest.raises(BlockingIOError):
        next(gcodec.Reader(NotYet()))


def test_after_a_timeout_a_reader_goes_on(gradient: np.ndarray) -> None:
    data = written(gradient)
    here, there = socket.socketpair()
    here.settimeout(0.01)
    reader, updates, sent = gcodec.Reader(here), [], 0
    while len(updates) < 3:
        try:
            updates.append(next(reader))
        except TimeoutError:
            there.sendall(data[sent : sent + 65_537])
            sent += 65_537
    assert sent > 10 * 65_537, "it waited within updates too"
    expected = gcodec.Reader(io.BytesIO(data))
    for update, other in zip(updates, expected, strict=True):
        assert {n: t.tobytes() for n, t in update.items()} == {n: t.tobytes() for n, t in other.items()}
    there.sendall(data[sent:])
    there.close()
    assert list(reader) == [], "the stream was complete"
    here.close()


def test_a_peer_that_hangs_up(gradient: np.ndarray) -> None:
    here, there = socket.socketpair()
    there.sendall(written(gradient)[:20_000])
    there.close()
    with pytest.raises(gcodec.FormatError) as error:
        next(gcodec.Reader(here))
    assert (error.value.kind, error.value.offset) == ("truncated", 20_000)
    here.close()


def test_random_access(gradient: np.ndarray, tmp_path: Path) -> None:
    data = written(gradient)
    path = tmp_path / "run.gcu"
    path.write_bytes(data)
    for source in (path, str(path), data, bytearray(data), memoryview(data)):
        file = gcodec.File(source)
        assert len(file) == 3 and [update.header.step for update in file] == [0, 1, 2]
        assert np.array_equal(file[-1]["w"].numpy(), gradient + 2)
        assert np.array_equal(file.step(1)["b"].numpy(), gradient[0])
        assert [update.header.step for update in file[1:]] == [1, 2]
        update = file[0]
        assert (update.dtypes, update.shapes) == ({"w": "f32", "b": "f32"}, {"w": (300, 401), "b": (401,)})
        assert list(update) == ["w", "b"] and list(update.tensors({"b"}, framework="numpy")) == ["b"]
        assert update.bytes == gcodec.inspect(data).updates[0].bytes
        with pytest.raises(KeyError):
            update["x"]
        with pytest.raises(IndexError):
            file[3]
        with pytest.raises(gcodec.InputError):
            file.step(9)
    kept = gcodec.File(bytearray(data))[1]
    assert np.array_equal(kept["w"].numpy(), gradient + 1), "an update keeps its file"


def test_tensors_come_one_after_another(gradient: np.ndarray) -> None:
    base = {"w": gradient, "b": gradient[0]}
    new = {"w": gradient + 1, "b": gradient[0]}
    delta = gcodec.encode(new, "delta", base=base)
    items = gcodec.File(delta)[0].on(base).items()
    assert len(items) == 2
    for _ in range(2):
        found = {name: tensor.numpy() for name, tensor in items}
        assert list(found) == ["w", "b"]
        assert all(np.array_equal(found[name], new[name]) for name in new)
    with pytest.raises(gcodec.InputError):
        dict(gcodec.File(delta)[0].items())
    # An error comes when its tensor does, and ends the walk. Large tensors come alone.
    large = {"a": np.zeros((5 << 20,), np.float32), "b": np.ones((5 << 20,), np.float32)}
    data = bytearray(gcodec.encode(large, "raw"))
    data[len(data) // 4 * 3] ^= 1
    walk = iter(gcodec.File(data)[0].items())
    name, tensor = next(walk)
    assert name == "a" and np.array_equal(tensor.numpy(), large["a"])
    with pytest.raises(gcodec.FormatError) as error:
        next(walk)
    assert error.value.tensor == 1 and '"b"' in str(error.value)
    assert list(walk) == []


def test_one_tensor_is_read_without_the_others(gradient: np.ndarray) -> None:
    data = bytearray(written(gradient))
    [update, *_] = gcodec.inspect(data).updates
    frame = gcodec.inspect(data).frames[update.frames[0]]
    data[frame.offset + 5000] ^= 1  # in w, which comes first and is long
    file = gcodec.File(data)
    assert np.array_equal(file[0]["b"].numpy(), gradient[0] * 0)
    with pytest.raises(gcodec.FormatError) as error:
        file[0]["w"]
    assert error.value.kind == "checksum_mismatch" and error.value.offset is not None
    with pytest.raises(gcodec.FormatError) as error:
        gcodec.decode(data)
    assert error.value.frame == frame.number


def test_files_that_cannot_be_opened(gradient: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(gcodec.IoError) as error:
        gcodec.File(tmp_path / "no-such-file")
    assert error.value.errno == 2 and isinstance(error.value, OSError) and error.value.fault == "world"
    with pytest.raises(gcodec.FormatError):
        gcodec.File(written(gradient, index=False))
    with pytest.raises(gcodec.FormatError):
        gcodec.File(b"")
    with pytest.raises(TypeError):
        gcodec.File(3)
