"""CUDA tensors on a CUDA device, for results that the mock driver cannot give.

`tools/gpu-check` runs this file by itself, `python3 test_device.py [VECTORS]`, because pytest may be missing
there. Tests that cannot run are skipped with a message. With GCODEC_MOCK_DRIVER set, the mock driver replaces
the device, to try this file.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gcodec
import gcodec.check
import gcodec.cuda
import gcodec.sync
from gcodec import _native

VECTORS = Path(__file__).resolve().parents[3] / "spec/vectors/index.json"
DTYPES = ("float32", "float16", "bfloat16")


class SkipError(Exception):
    """The reason why a test does not run here."""


class Numpy:
    """Arrays on the host, with bf16 as bits."""

    @staticmethod
    def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
        # Arrays of no dimensions stay arrays: NumPy's operators make scalars of them.
        if dtype == "bfloat16":
            return np.asarray(np.asarray(array, np.float32).view(np.uint32) >> 16, np.uint16)
        return np.asarray(array, dtype)

    @staticmethod
    def tensor(array: np.ndarray, dtype: str) -> gcodec.Tensor:
        return gcodec.Tensor({"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype], array.shape, array.tobytes())


class Torch:
    name = "torch"
    writable = True

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise SkipError("torch sees no device")
        self.torch = torch

    def put(self, array: np.ndarray, dtype: str) -> Any:
        bits = self.torch.from_numpy(array.view(np.int16) if dtype == "bfloat16" else array).cuda()
        return bits.view(self.torch.bfloat16) if dtype == "bfloat16" else bits

    def get(self, tensor: Any) -> bytes:
        self.torch.cuda.synchronize()
        tensor = tensor.cpu().contiguous()
        tensor = tensor.view(self.torch.int16) if tensor.dtype == self.torch.bfloat16 else tensor
        return bytes(tensor.numpy().tobytes())


class Cupy:
    name = "cupy"
    writable = True

    def __init__(self) -> None:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise SkipError("cupy sees no device")
        self.cupy = cupy

    def put(self, array: np.ndarray, dtype: str) -> Any:
        if dtype == "bfloat16":
            raise SkipError("bf16 is not tried with cupy")
        return self.cupy.asarray(array)

    def get(self, tensor: Any) -> bytes:
        return bytes(tensor.get().tobytes())


class CupyInterface(Cupy):
    """CuPy through the CUDA Array Interface only."""

    name = "the CUDA Array Interface"

    def put(self, array: np.ndarray, dtype: str) -> Any:
        return Interface(super().put(array, dtype))

    def get(self, tensor: Any) -> bytes:
        return super().get(tensor.array)


class Interface:
    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


class Jax:
    name = "jax"
    writable = False

    def __init__(self) -> None:
        import jax

        if jax.default_backend() != "gpu":
            raise SkipError("jax sees no device")
        self.jax = jax

    def put(self, array: np.ndarray, dtype: str) -> Any:
        if dtype != "bfloat16":
            return self.jax.numpy.asarray(array)
        return self.jax.lax.bitcast_convert_type(self.jax.numpy.asarray(array), self.jax.numpy.bfloat16)

    def get(self, tensor: Any) -> bytes:
        return bytes(np.asarray(tensor).tobytes())


class MockDriver:
    """Not a device."""

    name = "the mock driver"
    writable = True

    def __init__(self) -> None:
        if "GCODEC_MOCK_DRIVER" not in os.environ:
            raise SkipError("GCODEC_MOCK_DRIVER is not set")
        import mock_driver

        self.module, self.driver = mock_driver, mock_driver.MockDriver(mock_driver.build())
        self.driver.load()

    def put(self, array: np.ndarray, dtype: str) -> Any:
        shared = self.module.Shared(self.module.Memory(self.driver, array))
        shared.type = dtype
        return shared

    def get(self, tensor: Any) -> bytes:
        return bytes(tensor.memory.read().tobytes())


def libraries() -> Iterator[Any]:
    for library in (MockDriver,) if "GCODEC_MOCK_DRIVER" in os.environ else (Torch, Cupy, CupyInterface, Jax):
        try:
            yield library()
        except (ImportError, RuntimeError, SkipError) as e:
            skip(f"{library.__name__}: {e}")


SKIPPED: list[str] = []


def skip(why: str) -> None:
    if why not in SKIPPED:
        SKIPPED.append(why)
        print(f"python: SKIPPED, {why}", flush=True)


def needs_a_device() -> None:
    if "GCODEC_MOCK_DRIVER" in os.environ:
        _native._load_driver(os.environ["GCODEC_MOCK_DRIVER"])
    elif (why := gcodec.cuda.why_not()) is not None:
        raise SkipError(why)


@functools.cache
def gradients(dtype: str, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    large = 4000 if "GCODEC_MOCK_DRIVER" in os.environ else 3_000_000
    shapes = {"w": (large // 200, 200), "b": (37,), "e": (0, 3), "s": (), "z": (9000,)}
    return {n: Numpy.rounded((rng.standard_normal(s) ** 3).astype(np.float32), dtype) for n, s in shapes.items()}


SPECS = [codec.name for codec in gcodec.CODECS if gcodec.cuda.on_device(codec.name)] + [
    "topk:density=0.2,scope=global",
    "topk:k=99,values=pow2,seed=5,positions=rice",
    "sbc:density=0.01,positions=rice-one",
]


def each(of: Callable[[Any, str], None], *, writable: bool = False) -> None:
    """Runs a test for each library and element type. `writable`: only for libraries whose arrays are."""
    needs_a_device()
    done = 0
    for library in libraries():
        if writable and not library.writable:
            continue
        for dtype in DTYPES:
            try:
                of(library, dtype)
                done += 1
            except SkipError as e:
                skip(f"{library.name}: {e}")
    if not done:
        raise SkipError("none of torch, cupy and jax sees a device")


def torch_on_a_device() -> Any:
    needs_a_device()
    if "GCODEC_MOCK_DRIVER" in os.environ:
        raise SkipError("torch has no tensors on the mock driver")
    try:
        return Torch().torch
    except ImportError as e:
        raise SkipError(str(e)) from None


STEPS = 3


@functools.cache
def on_the_host(spec: str, dtype: str) -> tuple[list[bytes], dict[str, bytes], bytes]:
    """Returns updates with error feedback, the residuals after them, and the last update without feedback."""
    feedback, updates = gcodec.Feedback(), []
    for step in range(STEPS):
        host = {name: Numpy.tensor(array, dtype) for name, array in gradients(dtype, step).items()}
        updates.append(gcodec.encode(host, spec, feedback=feedback))
    residuals = {name: tensor.tobytes() for name, tensor in feedback.state_dict().items()}
    return updates, residuals, gcodec.encode(host, spec)


def test_bytes_and_residuals_are_the_hosts() -> None:
    def of(library: Any, dtype: str) -> None:
        for spec in SPECS:
            updates, residuals, plain = on_the_host(spec, dtype)
            feedback = gcodec.Feedback()
            compressor = gcodec.cuda.Compressor(feedback=feedback)
            for step, expected in enumerate(updates):
                given = {name: library.put(array, dtype) for name, array in gradients(dtype, step).items()}
                assert compressor.encode(given, spec) == expected, (library.name, dtype, spec, step)
            assert gcodec.encode(given, spec) == plain, (library.name, dtype, spec)
            ours = {name: tensor.tobytes() for name, tensor in feedback.state_dict().items()}
            assert ours == residuals, (library.name, dtype, spec)

    each(of)


def test_updates_are_put_and_added_as_on_the_host() -> None:
    def of(library: Any, dtype: str) -> None:
        own, before = gradients(dtype, 1), gradients(dtype, 2)
        for spec in ("topk:density=0.01", "sbc:density=0.01", "natural", "powersgd:rank=1", "raw"):
            data = gcodec.encode({name: Numpy.tensor(array, dtype) for name, array in own.items()}, spec)
            expected = gcodec.decode(data)
            there = {name: library.put(array, dtype) for name, array in before.items()}
            gcodec.cuda.apply(data, there)
            for name, tensor in there.items():
                assert library.get(tensor) == expected[name].tobytes(), (library.name, dtype, spec, name)
            gcodec.cuda.apply(data, there, add=True)
            if dtype == "float32":
                for name, tensor in there.items():
                    once = expected[name].numpy()
                    # Compared as numbers, because -0 + 0 is 0.
                    assert np.array_equal(np.frombuffer(library.get(tensor), np.float32).reshape(once.shape), once + once), (spec, name)

    each(of, writable=True)


def test_vectors_are_put_as_they_are_decoded() -> None:
    if not VECTORS.exists():
        raise SkipError(f"{VECTORS} is not here")

    def of(library: Any, dtype: str) -> None:
        put = 0
        short = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
        for vector in json.loads(VECTORS.read_text())["vectors"]:
            if vector["result"] != "valid" or "hex" not in vector:
                continue
            data = bytes.fromhex(vector["hex"])
            try:
                expected = gcodec.decode(data)
            except gcodec.GcodecError:
                continue
            if not expected or any(tensor.dtype != short for tensor in expected.values()):
                continue
            arrays = {n: np.frombuffer(t.bits().tobytes(), np.uint8) for n, t in expected.items()}
            kind = np.dtype("uint16") if dtype == "bfloat16" else np.dtype(dtype)
            there = {n: library.put(np.ones(expected[n].shape, kind), dtype) for n in arrays}
            try:
                gcodec.cuda.apply(data, there)
            except gcodec.InputError as e:
                assert "delta" in str(e) or "latent" in str(e) or "set" in str(e), (vector["id"], e)
                continue
            for name, tensor in there.items():
                assert library.get(tensor) == arrays[name].tobytes(), (library.name, vector["id"], name)
            put += 1
        if dtype == "float32":
            assert put > 0, "no vector was put"

    each(of, writable=True)


def test_sums_are_the_hosts() -> None:
    def of(library: Any, dtype: str) -> None:
        given = gradients(dtype, 4)
        host = gcodec.check.digest({name: Numpy.tensor(array, dtype) for name, array in given.items()})
        there = gcodec.check.digest({name: library.put(array, dtype) for name, array in given.items()})
        assert host.differences(there) == [], (library.name, dtype)

    each(of)


def test_sums_of_torch_views() -> None:
    torch = torch_on_a_device()
    x = torch.randn(300, 40, 96, device="cuda")
    for dtype in ("float32", "bfloat16", "float64", "float8_e4m3fn", "int8", "int64", "bool"):
        own = (x * 50).to(getattr(torch, dtype))
        views = {"t": own.mT, "p": own.permute(1, 2, 0), "s": own[3:, ::2, 5:90], "e": own[:0], "o": own[0, 0, 0], "w": own}
        host = gcodec.check.digest({name: view.cpu() for name, view in views.items()})
        assert host.differences(gcodec.check.digest(views)) == [], dtype


def test_a_receiver_of_weights_on_the_device() -> None:
    torch = torch_on_a_device()
    old = {f"w{n}": torch.randn(3000, 2000, device="cuda").bfloat16() for n in range(6)}
    new = {name: x.clone() for name, x in old.items()}
    for x in new.values():
        x.view(torch.int16).view(-1)[::100] ^= 1
    sender = gcodec.sync.Sender(old, on_device=True)
    data = sender.delta(new)
    # Fused, transposed and plain parameters of an engine.
    own = {"f": torch.cat([old["w0"], old["w1"]]), "t": old["w2"].t().contiguous(), **{f"w{n}": old[f"w{n}"].clone() for n in (3, 4, 5)}}
    layout = {"f": gcodec.check.fused((6000, 2000), {"w0": 3000, "w1": 3000}), "t": [gcodec.check.Part("w2", axes=(1, 0))]}
    receiver = gcodec.sync.Receiver(gcodec.check.views(own, layout))
    staged = receiver.stage(data)
    # An element that changes after staging, as by a fault of the memory: the old elements come back.
    own["w4"].view(torch.int16)[7, 7] ^= 2
    try:
        staged.commit()
        raise AssertionError("a damaged tensor was not found")
    except gcodec.InputError as e:
        assert e.kind == "checksum_mismatch", e
    own["w4"].view(torch.int16)[7, 7] ^= 2
    expected = gcodec.check.digest(old)
    assert expected.differences(gcodec.check.digest(own, layout)) == []
    assert staged.commit() == 1
    assert gcodec.check.digest(new).differences(gcodec.check.digest(own, layout)) == []


def test_deltas_are_the_hosts() -> None:
    def of(library: Any, dtype: str) -> None:
        old, new = gradients(dtype, 5), gradients(dtype, 5)
        for array in new.values():
            array.reshape(-1).view(np.uint8)[::77] ^= 1
        for digest in ("sum", "blake3", "both"):
            spec = f"delta:digest={digest}"
            host = [{name: Numpy.tensor(array, dtype) for name, array in arrays.items()} for arrays in (new, old)]
            there = [{name: library.put(array, dtype) for name, array in arrays.items()} for arrays in (new, old)]
            assert gcodec.encode(there[0], spec, base=there[1]) == gcodec.encode(host[0], spec, base=host[1]), (library.name, dtype, spec)

    each(of)


def test_torch_streams_and_views() -> None:
    torch = torch_on_a_device()
    x = torch.randn(1_000_000, device="cuda")
    expected = gcodec.encode((x * 2).cpu(), "topk:density=0.001")
    compressor = gcodec.cuda.Compressor()
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for given in (None, other, other.cuda_stream):
        with torch.cuda.stream(stream):
            # The tensor is written late: work that does not wait for it reads other values.
            late = torch.zeros_like(x)
            torch.cuda._sleep(200_000_000)
            late.copy_(x * 2)
            assert compressor.encode(late, "topk:density=0.001", stream=given) == expected
    parameter = torch.nn.Parameter(x.view(1000, 1000))
    assert gcodec.encode(parameter[7:], "sbc") == gcodec.encode(parameter[7:].detach().cpu(), "sbc")
    transposed = parameter.t()
    assert gcodec.encode(transposed, "topk") == gcodec.encode(transposed.detach().cpu(), "topk")
    try:
        compressor.encode(transposed, "topk")
        raise AssertionError("a transposed tensor was taken")
    except gcodec.InputError as e:
        assert e.kind == "strides", e
    assert not torch.cuda.is_available() or torch.cuda.current_device() == 0


def main() -> int:
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        what = f"python: {name.removeprefix('test_').replace('_', ' ')}"
        try:
            test()
            print(f"{what}: ok", flush=True)
        except SkipError as e:
            skip(str(e))
        except Exception:
            traceback.print_exc()
            print(f"{what}: FAILED", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        VECTORS = Path(sys.argv[1])
    sys.exit(main())
else:
    import pytest

    @pytest.fixture(autouse=True)
    def skips() -> Iterator[None]:
        if gcodec.cuda.why_not() is not None:
            pytest.skip("no CUDA device: tools/gpu-check carries this file to one")
        yield
