"""Tensors in one flat buffer: borrowed and filled at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import gcodec
from gcodec import _native
from gcodec._tensors.update import PART_BYTES, native_update
from gcodec.options import Options, resolve
from gcodec.torch.buckets import Buckets

SHAPES = {"row": (3, 5), "column": (4, 2), "none": (0, 3), "scalar": (), "last": (7,)}
STRIDES = {"row": (5, 1), "column": (1, 4), "none": (3, 1), "scalar": (), "last": (1,)}


def places() -> list[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
    out, at = [], 0
    for name, shape in SHAPES.items():
        out.append((name, shape, STRIDES[name], at))
        at += torch.Size(shape).numel()
    return out


def buffer(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(31, generator=torch.Generator().manual_seed(1)).to(dtype)


def views(flat: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: flat.as_strided(shape, strides, at) for name, shape, strides, at in places()}


def encoded(tensors: dict[str, torch.Tensor], flat: torch.Tensor | None, layout: _native.Layout) -> bytes:
    given: Options = {"rules": {"row": "raw"}}
    options = resolve("test", ("rules",), given)
    update = native_update("test", tensors, "lossless", options, held=["last"], flat=None if flat is None else (layout, flat))
    return bytes(memoryview(_native.Encoder(PART_BYTES, False, True).update(update, finish=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_bytes_are_those_of_the_tensors(dtype: torch.dtype) -> None:
    flat, layout = buffer(dtype), _native.Layout(places())
    stream = encoded(views(flat), flat, layout)
    assert stream == encoded(views(flat), None, layout)
    decoded = gcodec.decode(stream, framework="torch")
    assert all(torch.equal(decoded[name], view) for name, view in views(flat).items() if name != "last")
    assert not decoded["last"].any()


def streams(dtype: torch.dtype, names: tuple[str, ...] = tuple(SHAPES)) -> list[bytes]:
    of_senders = []
    for sender in range(3):
        tensors = {name: view * (sender + 0.5) for name, view in views(buffer(dtype)).items() if name in names}
        header = gcodec.UpdateHeader(sender=sender, world=3)
        of_senders.append(gcodec.encode(tensors, ["raw", "topk:density=0.5", "lossless"][sender], header=header))
    return of_senders


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_buffer_gets_the_mean(dtype: torch.dtype) -> None:
    flat, layout = torch.full((33,), 7, dtype=dtype), _native.Layout(places())
    assert layout.mean(flat, streams(dtype), gcodec.Limits())
    expected = gcodec.reduce(streams(dtype), mean=True).tensors("torch")
    for name, view in views(flat).items():
        assert torch.equal(view, expected[name]), name
    # What no tensor has stays.
    assert flat[31:].tolist() == [7, 7]


def test_a_mean_that_is_not_finite_is_noticed() -> None:
    largest = {"x": torch.full((3000,), torch.finfo(torch.float64).max, dtype=torch.float64)}
    layout = _native.Layout([("x", (3000,), (1,), 0)])
    flat = torch.zeros(3000, dtype=torch.float64)
    assert layout.mean(flat, [gcodec.encode(largest, "raw")], gcodec.Limits())
    for value in (float("nan"), float("inf"), -float("inf")):
        for at in (0, 1023, 1024, 2999):
            largest["x"][at] = value
            assert not layout.mean(flat, [gcodec.encode(largest, "raw")], gcodec.Limits()), (value, at)
            largest["x"][at] = 0.0


def test_what_does_not_fit_is_refused() -> None:
    flat, layout = buffer(), _native.Layout(places())
    given, limits = streams(torch.float32), gcodec.Limits()
    for short in (flat[:30], flat[:0], torch.zeros(62)[::2]):
        with pytest.raises(gcodec.InputError, match="shorter than its tensors, or not row-major"):
            encoded(views(flat), short, layout)
    with pytest.raises(gcodec.InputError, match="the buffer is shorter than its tensors"):
        layout.mean(flat[:30].clone(), given, limits)
    with pytest.raises(BufferError, match="not row-major"):
        layout.mean(torch.zeros(62)[::2], given, limits)
    for others in (streams(torch.float64), streams(torch.float32, ("row", "last"))):
        with pytest.raises(gcodec.InputError, match="other tensors than the buffer"):
            layout.mean(flat, others, limits)
    with pytest.raises(gcodec.InputError, match="there is no update"):
        layout.mean(flat, [], limits)
    with pytest.raises(gcodec.FormatError, match="stream 1"):
        layout.mean(flat, [given[0], given[1][:-40] + bytes(40), given[2]], limits)
    for shape, strides, start in [((3,), (-1,), 3), ((3,), (1, 1), 0), ((2, 2), (2**62, 1), 0), ((2**40,), (1,), 0), ((1,), (1,), 2**63)]:
        with pytest.raises(gcodec.InputError, match="shorter than its tensors"):
            encoded({"a": flat}, flat, _native.Layout([("a", shape, strides, start)]))
    for strides, start in [((-1,), 3), ((1,), 2**62), ((1,), 29), ((2**62,), 0), ((15,), 2)]:
        with pytest.raises(gcodec.InputError, match="shorter than its tensors"):
            _native.Layout([("a", (3,), strides, start)]).mean(flat, [gcodec.encode({"a": torch.ones(3)}, "raw")], limits)


@dataclass
class Bucket:
    """What a hook asks a bucket of DistributedDataParallel for."""

    of: list[torch.nn.Parameter]
    memory: torch.Tensor

    def index(self) -> int:
        return 0

    def parameters(self) -> list[torch.nn.Parameter]:
        return self.of

    def buffer(self) -> torch.Tensor:
        return self.memory


def test_a_bucket_is_known_until_it_changes() -> None:
    conv, bias = torch.nn.Parameter(torch.zeros(2, 3, 4, 5)), torch.nn.Parameter(torch.zeros(7))
    # A bucket has the last parameters first.
    buckets = Buckets({id(conv): (0, "conv"), id(bias): (1, "bias")})
    bucket: Any = Bucket([bias, conv], torch.arange(127.0))
    first = buckets.contents(bucket)
    assert list(first.gradients) == ["conv", "bias"] and buckets.contents(bucket) is first
    assert first.gradients["bias"].tolist() == list(range(7)) and first.gradients["conv"][0, 0, 0, 0] == 7
    flat = first.flat
    # It travels whole: the same bytes as its gradients.
    assert flat is not None
    update = native_update("test", first.gradients, "raw", resolve("test", (), {}), flat=flat)
    whole = bytes(memoryview(_native.Encoder(PART_BYTES, False, True).update(update, finish=True)))
    assert all(torch.equal(gcodec.decode(whole, framework="torch")[name], one) for name, one in first.gradients.items())
    conv.data = conv.data.to(memory_format=torch.channels_last)
    second = buckets.contents(bucket)
    assert second is not first and second.gradients["conv"].stride() == conv.stride()
    bucket.memory = bucket.memory.clone()
    assert buckets.contents(bucket) is not second
    pair = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    other: Any = Bucket([pair], torch.zeros(6))
    assert Buckets({id(pair): (0, "pair")}).contents(other).flat is None
