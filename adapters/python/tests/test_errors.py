"""Any bytes give a value, or an exception with the error, its position and its cause."""

from __future__ import annotations

import io
import pickle
import random

import numpy as np
import pytest

import gcodec


def streams() -> list[bytes]:
    rng = np.random.default_rng(3)
    arrays = {"a": rng.standard_normal((20, 30)).astype("f"), "b": rng.standard_normal(70).astype("f"), "n": np.zeros((0,), "f")}
    found = [gcodec.encode(arrays, codec()) for codec in gcodec.CODECS if codec is not gcodec.Delta]
    out = io.BytesIO()
    with gcodec.Writer(out, part_bytes=100) as writer:
        writer.metadata({"key": "value " * 100})
        writer.write(arrays, "natural")
        writer.write(arrays, "sbc")
    return [*found, out.getvalue()]


def ways(data: bytes) -> dict[str, object]:
    limits = gcodec.Limits(max_alloc_bytes=1 << 24)
    return {
        "decode": lambda: gcodec.decode(data, limits=limits),
        "names": lambda: gcodec.decode(data, limits=limits, names={"b"}),
        "reader": lambda: list(gcodec.Reader(io.BytesIO(data), limits=limits)),
        "decoder": lambda: pushed(data, limits),
        "file": lambda: [update.tensors() for update in gcodec.File(data, limits=limits)],
        "inspect": lambda: gcodec.inspect(data, limits=limits),
    }


def pushed(data: bytes, limits: gcodec.Limits) -> list[gcodec.Update]:
    decoder = gcodec.Decoder(limits=limits)
    decoder.feed(data)
    found = list(decoder)
    decoder.finish()
    return found


def mutated(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    kind = chance.randrange(5)
    if kind == 0:
        return bytes(out[: chance.randrange(len(out))])
    if kind == 1:
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    elif kind == 2:
        for _ in range(chance.randrange(1, 9)):
            out[chance.randrange(len(out))] = chance.randrange(256)
    elif kind == 3:
        at = chance.randrange(len(out))
        out[at:at] = out[at // 2 : at // 2 + chance.randrange(1, 60)]
    else:
        at = chance.randrange(len(out))
        del out[at : at + chance.randrange(1, 60)]
    return bytes(out)


def test_hostile_bytes_never_give_anything_but_a_value_or_an_error() -> None:
    chance = random.Random(20260101)
    all_streams = streams()
    refused = {name: 0 for name in ways(b"")}
    for _ in range(3000):
        data = mutated(chance.choice(all_streams), chance)
        for name, way in ways(data).items():
            try:
                # A panic is not an Exception, so it fails the test.
                found = way()  # type: ignore[operator]
                if name == "inspect" and not found.ok:
                    raise found.error
            except gcodec.GcodecError as error:
                refused[name] += 1
                assert error.fault in ("bytes", "limits", "newer writer", "caller"), repr(error)
                assert error.fault == "caller" or error.offset is not None, repr(error)
                assert str(error)
    # Every reader detects corruption. Random access does not read all bytes, so it detects less.
    assert all(count > 2000 for count in refused.values()), refused


def test_damage_behind_right_checksums() -> None:
    """Checksums are corrected after the corruption, so that the code behind them is reached."""
    import zlib

    chance = random.Random(5)
    refused = 0
    for _ in range(1500):
        data = bytearray(chance.choice(STREAMS))
        report = gcodec.inspect(bytes(data))
        frame = chance.choice(report.frames)
        body = frame.offset + HEADER
        if frame.bytes == HEADER:
            continue
        data[body + chance.randrange(frame.bytes - HEADER)] ^= 1 << chance.randrange(8)
        header = bytearray(data[frame.offset : body])
        header[BODY_CRC] = zlib.crc32(data[body : frame.offset + frame.bytes]).to_bytes(4, "little")
        header[HEADER_CRC] = zlib.crc32(header[: HEADER_CRC.start]).to_bytes(4, "little")
        data[frame.offset : body] = header
        for way in ways(bytes(data)).values():
            try:
                way()  # type: ignore[operator]
            except gcodec.GcodecError:
                refused += 1
    assert refused > 1500


STREAMS = streams()
HEADER = 24
BODY_CRC = slice(16, 20)
HEADER_CRC = slice(20, 24)


def test_one_tree() -> None:
    for error in (gcodec.FormatError, gcodec.UnsupportedError, gcodec.LimitError, gcodec.InputError, gcodec.IoError):
        assert issubclass(error, gcodec.GcodecError)
    assert issubclass(gcodec.InputError, ValueError) and issubclass(gcodec.IoError, OSError)


def test_what_where_and_whose_fault() -> None:
    data = gcodec.encode({"w": np.ones((64, 64), "f")}, "raw")
    with pytest.raises(gcodec.FormatError) as format_error:
        gcodec.decode(b"not a stream at all, but long enough for a preamble")
    assert (format_error.value.kind, format_error.value.offset) == ("bad_magic", 0)
    with pytest.raises(gcodec.LimitError) as limit_error:
        gcodec.decode(data, limits=gcodec.Limits(max_alloc_bytes=1000))
    assert (limit_error.value.kind, limit_error.value.fault) == ("limit", "limits")
    assert "max_alloc_bytes" in str(limit_error.value)
    bad = np.ones((64, 64), "f")
    bad[1, 2] = np.inf
    with pytest.raises(gcodec.InputError, match='tensor "b".*66') as input_error:
        gcodec.encode({"a": np.ones(3, "f"), "b": bad}, "topk")
    assert (input_error.value.tensor, input_error.value.fault) == (1, "caller")
    assert gcodec.decode(gcodec.encode(bad, "topk", non_finite="zero"), framework="numpy")["tensor"][1, 2] == 0
    with pytest.raises(gcodec.InputError, match="lossless"):
        gcodec.encode(np.ones(3, "i4"), "topk")
    with pytest.raises(gcodec.InputError):
        gcodec.encode(bad, "topk", non_finite="ignore")  # type: ignore[arg-type]
    with pytest.raises(gcodec.InputError, match="no update"):
        out = io.BytesIO()
        gcodec.Writer(out).close()
        gcodec.decode(out.getvalue())
    with pytest.raises(gcodec.InputError, match="unknown codec"):
        gcodec.encode(bad, "zip")
    for wrong in ({"reduction": "max"}, {"step": -1}, {"step": 2**64}):
        with pytest.raises(gcodec.InputError):
            gcodec.UpdateHeader(**wrong)  # type: ignore[arg-type]
    with pytest.raises(gcodec.InputError):
        gcodec.Limits(max_tensors=-1)


def test_errors_can_be_pickled() -> None:
    with pytest.raises(gcodec.FormatError) as error:
        gcodec.decode(b"short")
    again = pickle.loads(pickle.dumps(error.value))
    assert type(again) is gcodec.FormatError and str(again) == str(error.value)
    assert again.__dict__ == error.value.__dict__
    missing = gcodec.IoError("gone", kind="io", fault="world", errno=2)
    again = pickle.loads(pickle.dumps(missing))
    assert (again.errno, again.kind, str(again)) == (2, "io", "gone")
