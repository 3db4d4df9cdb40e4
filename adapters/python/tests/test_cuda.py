"""CUDA tensors on machines without CUDA: the mock driver runs the kernels on the CPU. test_device.py has the
tests that need a GPU."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import mock_driver
import numpy as np
import pytest
from mock_driver import Interface, Memory, MockDriver, Shared

import gcodec
import gcodec.check
import gcodec.cuda
from gcodec import _native

SPECS = [codec.name for codec in gcodec.CODECS if codec is not gcodec.Delta] + [
    "topk:density=0.2,scope=global",
    "topk:k=99,values=pow2,seed=5,positions=rice",
    "topk:k=70,values=q4",
    "threshold:at=0.5,values=bf16",
    "sbc:density=0.01,positions=rice-one",
]
ON_DEVICE = [spec for spec in SPECS if gcodec.cuda.on_device(spec)]

driver = pytest.fixture(scope="module")(mock_driver.loaded)


def arrays(rng: np.random.Generator, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Gradients of difficult shapes: a matrix, a vector, no elements, one element, zeros."""
    cube = lambda *shape: (rng.standard_normal(shape) ** 3).astype(dtype)  # noqa: E731
    return {"m": cube(50, 61), "v": cube(37), "e": np.zeros((0, 4), dtype), "s": cube(), "z": np.zeros(300, dtype)}


def shared(driver: MockDriver, arrays: dict[str, np.ndarray], **how: Any) -> dict[str, Any]:
    return {name: Shared(Memory(driver, array), **how) for name, array in arrays.items()}


def same(state: dict[str, Any], other: dict[str, Any]) -> None:
    assert state.keys() == other.keys()
    for name in state:
        assert state[name].tobytes() == other[name].tobytes(), name


def test_without_a_driver_everything_says_so() -> None:
    _native._load_driver(None)
    why = gcodec.cuda.why_not()
    if why is None:
        pytest.skip("there is a CUDA driver here")
    assert not gcodec.cuda.available()
    assert "driver" in why or "device" in why

    class Claimed:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **_: Any) -> object:
            raise AssertionError("the driver is missing, so nothing may be exported")

    for use in (lambda: gcodec.encode(Claimed(), "topk"), gcodec.cuda.Compressor):
        with pytest.raises(gcodec.DeviceError) as raised:
            use()
        assert raised.value.kind in ("no-driver", "no-device", "old-driver")
        assert raised.value.fault == "world" and str(raised.value) == why


def test_the_library_says_which_codecs_run_there() -> None:
    assert {"topk", "stc", "threshold", "sbc"} <= set(ON_DEVICE)
    assert gcodec.cuda.on_device(gcodec.TopK(k=3)) and not gcodec.cuda.on_device(gcodec.Raw())


# Copies to the host use NumPy here, which does not share bf16.
@pytest.mark.parametrize(
    ("spec", "dtype"),
    [(spec, dtype) for spec in SPECS for dtype in ("float32", "float16", "bfloat16") if dtype != "bfloat16" or spec in ON_DEVICE],
)
def test_the_bytes_are_the_hosts(driver: MockDriver, rng: np.random.Generator, spec: str, dtype: str) -> None:
    own = arrays(rng, getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    expected, before = gcodec.encode(own, spec), driver.count("cuLaunchKernel")
    assert gcodec.encode(shared(driver, own), spec) == expected
    assert (driver.count("cuLaunchKernel") > before) == (spec in ON_DEVICE)
    if spec in ON_DEVICE:
        assert gcodec.encode({name: Interface(Memory(driver, a)) for name, a in own.items()}, spec) == expected
        assert gcodec.encode(shared(driver, own, versioned=False, offset=64), spec) == expected
        compressor, sink = gcodec.cuda.Compressor(), Sink()
        assert compressor.encode(shared(driver, own, flags=1), spec) == expected
        with gcodec.Writer(sink) as writer:
            compressor.write(writer, shared(driver, own), spec)
        assert sink.data == expected


DELTAS = [f"delta:{option}digest={kind}" for kind in ("sum", "blake3", "both") for option in ("", "positions=classed,", "values=overwrite,")]


def changed(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A next version: some elements move by one unit in the last place."""
    out = {name: array.copy() for name, array in arrays.items()}
    for array in out.values():
        bits = array.reshape(-1).view(np.uint32 if array.itemsize == 4 else np.uint16)
        bits[rng.random(bits.size) < 0.1] ^= 1
    return out


@pytest.mark.parametrize("spec", DELTAS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_deltas_and_their_digests_are_the_hosts(driver: MockDriver, rng: np.random.Generator, spec: str, dtype: str) -> None:
    old = arrays(rng, getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    new = changed(rng, old)
    expected, before = gcodec.encode(new, spec, base=old), driver.count("cuLaunchKernel")
    rules = {"v": "delta:values=overwrite,digest=blake3", "z": "delta:positions=tokens,digest=blake3"}
    ruled = gcodec.encode(new, spec, base=old, rules=rules)
    base = shared(driver, old) | {"another": Shared(Memory(driver, old["m"]))}
    crossed = driver.count("bytes to the host")
    assert gcodec.encode(shared(driver, new), spec, base=base) == expected
    assert driver.count("cuLaunchKernel") > before
    # 9 KiB of counts, digests, and a part of the elements.
    assert driver.count("bytes to the host") - crossed < 9216 + 5 * (32 + 64) + sum(array.nbytes for array in new.values())
    assert gcodec.encode({name: Interface(Memory(driver, a)) for name, a in new.items()}, spec, base=base) == expected
    assert gcodec.encode(shared(driver, new), spec, base=base, rules=rules) == ruled
    same(gcodec.decode(expected, base=old), new)
    sink = Sink()
    with gcodec.Writer(sink) as writer:
        writer.write(shared(driver, new), spec, base=base)
    assert sink.data == expected


def test_deltas_of_both_sides_are_compressed_on_the_host(driver: MockDriver, rng: np.random.Generator) -> None:
    spec = "delta:digest=blake3"
    old = arrays(rng)
    new = changed(rng, old)
    there, base, launches = shared(driver, new), shared(driver, old), driver.count("cuLaunchKernel")
    on_host = gcodec.encode(new, spec, base=old)
    assert gcodec.encode(there, spec, base=old) == on_host
    assert gcodec.encode(new, spec, base=base) == on_host
    assert gcodec.encode(there | {"v": new["v"]}, spec, base=base) == on_host
    assert gcodec.encode(there, spec, base=base | {"m": Shared(Memory(driver, old["m"], device=1))}) == on_host
    rules = {"v": "lossless"}
    assert gcodec.encode(there, spec, base=base, rules=rules) == gcodec.encode(new, spec, base=old, rules=rules)
    doubles, zeros = {"d": rng.standard_normal(9)}, {"d": np.zeros(9)}
    assert gcodec.encode(shared(driver, doubles), spec, base=shared(driver, zeros)) == gcodec.encode(doubles, spec, base=zeros)
    assert driver.count("cuLaunchKernel") == launches
    for wrong in ({"m": base["m"]}, base | {"v": base["m"]}):
        with pytest.raises(gcodec.InputError):
            gcodec.encode(there, spec, base=wrong)


def test_a_delta_that_fails_says_why(driver: MockDriver, rng: np.random.Generator) -> None:
    new = changed(rng, old := arrays(rng))
    there, base = shared(driver, new), shared(driver, old)
    expected = gcodec.encode(new, "delta:digest=blake3", base=old)
    gcodec.cuda.release_memory()
    for call in ("cuMemAlloc", "cuLaunchKernel", "cuMemcpyDtoH"):
        driver.fail(call, 0)
        with pytest.raises(gcodec.DeviceError):
            gcodec.encode(there, "delta:digest=blake3", base=base)
        driver.fail(call, -1)
        assert gcodec.encode(there, "delta:digest=blake3", base=base) == expected
        gcodec.cuda.release_memory()


def test_sums_are_the_hosts(driver: MockDriver, rng: np.random.Generator) -> None:
    given = {name: array for name, array in arrays(rng).items() if array.size}
    given |= {"i": rng.integers(-99, 99, (3, 70)).astype(np.int8), "d": rng.standard_normal((5, 6)), "b": np.ones((2, 3), np.bool_)}
    expected = gcodec.check.digest(given)
    there = {name: Shared(Memory(driver, array)) for name, array in given.items()}
    before = driver.count("cuLaunchKernel"), driver.count("bytes to the host")
    assert expected.differences(gcodec.check.digest(there)) == []
    assert driver.count("cuLaunchKernel") == before[0] + 1
    assert driver.count("bytes to the host") == before[1] + 32 * len(given)
    # Two columns of three, which the tensor's strides skip.
    square = rng.standard_normal((4, 3)).astype(np.float32)
    part = Shared(Memory(driver, square), strides=(3, 1))
    part.memory.shape = (4, 2)
    assert gcodec.check.digest({"w": np.ascontiguousarray(square[:, :2])}).differences(gcodec.check.digest({"w": part})) == []
    driver.fail("cuLaunchKernel", 0)
    with pytest.raises(gcodec.DeviceError):
        gcodec.check.digest(there)
    driver.fail("cuLaunchKernel", -1)
    assert expected.differences(gcodec.check.digest(there)) == []


class Sink:
    def __init__(self) -> None:
        self.data = b""

    def write(self, piece: memoryview) -> int:
        self.data += piece
        return len(piece)


REMEMBERED = ["topk:density=0.05,values=bf16", "sbc:density=0.05", "stc:density=0.1", "sidco:density=0.05,stages=authors"]


@pytest.mark.parametrize("spec", REMEMBERED + [spec for spec in ON_DEVICE if spec not in ("topk", "sbc", "stc")])
def test_residuals_are_the_hosts(driver: MockDriver, rng: np.random.Generator, spec: str) -> None:
    on_host, on_device, of_compressor = gcodec.Feedback(), gcodec.Feedback(), gcodec.Feedback()
    compressor = gcodec.cuda.Compressor(feedback=of_compressor)
    for _ in range(3):
        own = arrays(rng)
        expected = gcodec.encode(own, spec, feedback=on_host)
        assert gcodec.encode(shared(driver, own), spec, feedback=on_device) == expected
        assert compressor.encode(shared(driver, own), spec) == expected
        assert on_device.norm == of_compressor.norm == on_host.norm
    same(on_device.state_dict(), on_host.state_dict())
    again = pickle.loads(pickle.dumps(on_device))
    # The residual follows its tensor from a device to the host and back, by a checkpoint or by a move.
    for there in (True, False, False, True):
        own = arrays(rng)
        expected = gcodec.encode(own, spec, feedback=on_host)
        given = shared(driver, own) if there else own
        assert gcodec.encode(given, spec, feedback=on_device) == expected
        assert gcodec.encode(given, spec, feedback=again) == expected
    same(again.state_dict(), on_host.state_dict())
    on_device.reset()
    assert on_device.norm == 0 and on_device.state_dict() == {}


def test_one_update_of_both_sides(driver: MockDriver, rng: np.random.Generator) -> None:
    """Codecs that run on devices or not, tensors on devices and on the host: one stream, one set of
    residuals."""
    own = {f"layer.{i}.{part}": (rng.standard_normal(shape) ** 3).astype(np.float32) for i in range(3) for part, shape in
           {"weight": (30, 41), "bias": (30,), "scale": (7, 3)}.items()}
    rules = {"*.bias": "lossless", "*.scale": "powersgd:rank=1", "layer.2.weight": "sbc:density=0.02"}
    on_host, on_devices = gcodec.Feedback(), gcodec.Feedback()
    for step in range(3):
        expected = gcodec.encode(own, "topk:density=0.02,scope=global", rules=rules, feedback=on_host)
        given = shared(driver, own)
        if step == 1:
            given["layer.2.weight"] = own["layer.2.weight"]
        assert gcodec.encode(given, "topk:density=0.02,scope=global", rules=rules, feedback=on_devices) == expected
        same(on_devices.state_dict(), on_host.state_dict())
    # Tensors of one codec share blocks. If one is on the host, all are copied there.
    given = shared(driver, own) | {"layer.1.weight": own["layer.1.weight"]}
    before = driver.count("cuLaunchKernel")
    assert gcodec.encode(given, "topk") == gcodec.encode(own, "topk")
    given = shared(driver, own) | {"layer.1.weight": Shared(Memory(driver, own["layer.1.weight"], device=1))}
    assert gcodec.encode(given, "topk") == gcodec.encode(own, "topk")
    assert driver.count("cuLaunchKernel") == before
    # Two codecs on two devices.
    given = shared(driver, own) | {"layer.2.weight": Shared(Memory(driver, own["layer.2.weight"], device=1))}
    assert gcodec.encode(given, "topk", rules={"layer.2.weight": "sbc"}) == gcodec.encode(
        own, "topk", rules={"layer.2.weight": "sbc"}
    )
    assert driver.count("cuLaunchKernel") > before


def test_copies_to_the_host_are_logged_once(
    driver: MockDriver, gradient: np.ndarray, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcodec._tensors.devices._logged", set())
    caplog.set_level(logging.DEBUG, "gcodec.cuda")
    transposed = Shared(Memory(driver, gradient), strides=(1, 300))
    transposed.memory.shape = (300, 401)
    for _ in range(2):
        assert gcodec.encode(Shared(Memory(driver, gradient)), "raw") == gcodec.encode(gradient, "raw")
        gcodec.encode(Shared(Memory(driver, gradient.astype(np.float64))), "topk")
        gcodec.encode(transposed, "topk")
    assert [(r.levelname, r.getMessage().rpartition(": ")[2]) for r in caplog.records] == [
        ("DEBUG", "the codec does not run on devices"),
        ("DEBUG", "the kernels do not take f64"),
        ("DEBUG", "a tensor is not row-major"),
    ]


def test_work_waits_for_what_wrote_the_tensors(driver: MockDriver, gradient: np.ndarray) -> None:
    expected = gcodec.encode(gradient, "topk")
    compressor = gcodec.cuda.Compressor()
    for stream in (None, 1, 2, driver.stream()):
        theirs = driver.stream()
        tensor = Shared(Memory(driver, gradient, late=theirs), on=theirs)
        assert compressor.encode(tensor, "topk", stream=stream) == expected
        # Other threads do the work, so the legacy stream replaces the thread's own stream.
        assert [asked["stream"] for asked in tensor.asked] == [1 if stream in (None, 1, 2) else stream]
        theirs = driver.stream()
        interface = Interface(Memory(driver, gradient, late=theirs), stream=theirs)
        assert compressor.encode(interface, "topk", stream=stream) == expected
    # Work in the same stream is in order.
    theirs, before = driver.stream(), driver.count("cuStreamWaitEvent")
    assert compressor.encode(Interface(Memory(driver, gradient, late=theirs), stream=theirs), "topk", stream=theirs) == expected
    assert driver.count("cuStreamWaitEvent") == before
    assert gcodec.encode(Interface(Memory(driver, gradient, late=theirs), stream=theirs), "topk") == expected
    # Version 2 does not name a stream: work in the legacy stream comes first.
    old = Interface(Memory(driver, gradient, late=0), version=2)
    assert compressor.encode(old, "topk", stream=driver.stream()) == expected
    with pytest.raises(BufferError, match="stream is 0"):
        gcodec.encode(Interface(Memory(driver, gradient), stream=0), "topk")


def test_streams_of_other_libraries(driver: MockDriver, gradient: np.ndarray) -> None:
    stream, compressor = driver.stream(), gcodec.cuda.Compressor()

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, stream)

    torchs, cupys, numbas = (type("Stream", (), {name: stream})() for name in ("cuda_stream", "ptr", "handle"))
    for given in (stream, Protocol(), torchs, cupys, numbas):
        tensor = Shared(Memory(driver, gradient))
        compressor.encode(tensor, "topk", stream=given)
        assert tensor.asked[0]["stream"] == stream
    for wrong in ("1", True, -1, 1.5):
        with pytest.raises(TypeError, match="stream is a"):
            compressor.encode(Shared(Memory(driver, gradient)), "topk", stream=wrong)


def test_tensors_are_held_until_the_call_is_over(driver: MockDriver, gradient: np.ndarray) -> None:
    tensor = Shared(Memory(driver, gradient))
    gcodec.encode(tensor, "topk")
    assert tensor.freed == 1
    wrong = Shared(Memory(driver, np.full(10, np.nan, np.float32)))
    with pytest.raises(gcodec.InputError, match="element 0 is NaN"):
        gcodec.encode({"a": tensor, "w": wrong}, "topk")
    assert tensor.freed == 2 and wrong.freed == 1
    assert len(gcodec.encode(wrong, "topk", non_finite="zero")) > 0


def raises(use: Any, kind: str, match: str | None, error: type[Exception] = gcodec.InputError) -> None:
    with pytest.raises(error, match=match) as raised:
        use()
    assert raised.value.kind == kind  # type: ignore[attr-defined]


def test_errors_name_the_tensor_and_the_cause(driver: MockDriver, gradient: np.ndarray) -> None:
    compressor = gcodec.cuda.Compressor()
    memory = Memory(driver, gradient, device=1)
    raises(lambda: compressor.encode({"w": Shared(memory)}, "topk"), "wrong-device", "'w' is on CUDA device 1, but the compressor on 0")
    odd = Memory(driver, gradient, skip=2)
    raises(lambda: gcodec.encode({"w": Shared(odd)}, "topk"), "misaligned", '"w": address .* aligned')
    # A producer that declares a wrong device.
    memory.device = 0
    raises(lambda: gcodec.encode({"w": Shared(memory)}, "topk"), "wrong-device", "on device 1, not 0")
    host = Interface(odd, data=(gradient.ctypes.data, False))
    raises(lambda: gcodec.encode(host, "topk"), "not-device-memory", "not in device memory")
    long = Interface(Memory(driver, gradient), shape=(1 << 50,))
    raises(lambda: gcodec.encode(long, "topk"), "not-device-memory", "not in device memory")
    strided = Interface(Memory(driver, gradient), strides=(4, 4 * 300))
    raises(lambda: compressor.encode(strided, "topk"), "strides", "row-major")
    with pytest.raises(BufferError, match="copy it with its own library"):
        gcodec.encode(strided, "topk")
    for field, value in (("mask", host), ("typestr", "<c8"), ("shape", (-1,)), ("strides", (4,)), ("data", None)):
        with pytest.raises((BufferError, TypeError)):
            gcodec.encode(Interface(Memory(driver, gradient), **{field: value}), "topk")
    raises(lambda: gcodec.cuda.Compressor(2), "no-device", "no CUDA device 2", gcodec.DeviceError)
    with pytest.raises(gcodec.InputError, match="Deep Gradient"):
        compressor.encode(Shared(Memory(driver, gradient)), gcodec.Dgc())  # type: ignore[arg-type]
    driver.load()
    try:
        for machine, kind in (((2, 12080), "old-driver"), ((0, 13000), "no-device")):
            driver.machine(*machine)
            raises(driver.load, kind, None, gcodec.DeviceError)
    finally:
        driver.machine(2, 13000)
        driver.load()


def copied(feedback: gcodec.Feedback) -> gcodec.Feedback:
    out = gcodec.Feedback()
    out.load_state_dict(feedback.state_dict())
    return out


def test_what_fails_leaves_the_residuals(driver: MockDriver, rng: np.random.Generator) -> None:
    own, feedback, on_host = arrays(rng), gcodec.Feedback(), gcodec.Feedback()
    spec = "topk:density=0.05,values=bf16"
    for f, given in ((feedback, shared(driver, own)), (on_host, own)):
        gcodec.encode(given, spec, feedback=f)
    given = shared(driver, own)
    expected = gcodec.encode(own, spec, feedback=(after := copied(on_host)))
    for call, kind in (("cuMemAlloc", "out-of-memory"), ("cuMemHostAlloc", "out-of-memory"), ("cuLaunchKernel", "cuda"),
                       ("cuMemcpyHtoD", "cuda"), ("cuMemcpyDtoH", "cuda"), ("cuStreamSynchronize", "cuda")):  # fmt: skip
        for failing in range(100):
            fresh = copied(on_host)
            driver.fail(call, failing)
            try:
                data = gcodec.encode(given, spec, feedback=fresh)
            except gcodec.DeviceError as e:
                assert e.kind == kind, e
                same(fresh.state_dict(), on_host.state_dict())
                continue
            finally:
                driver.fail(call, -1)
            assert data == expected and failing > 0, call
            same(fresh.state_dict(), after.state_dict())
            break
    # Compression fails on the host after it has finished on the device.
    given = shared(driver, own) | {"n": np.array([1.0, np.nan], np.float32)}
    for _ in range(2):
        with pytest.raises(gcodec.InputError, match="NaN"):
            gcodec.encode(given, spec, rules={"n": "natural"}, feedback=feedback)
        same(feedback.state_dict(), on_host.state_dict())
    assert gcodec.encode(shared(driver, own), spec, feedback=feedback) == gcodec.encode(own, spec, feedback=on_host)
    same(feedback.state_dict(), on_host.state_dict())


def test_many_small_tensors_cost_what_one_costs(driver: MockDriver, rng: np.random.Generator) -> None:
    compressor = gcodec.cuda.Compressor()
    calls = ("cuLaunchKernel", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8", "cuStreamSynchronize", "cuMemAlloc", "cuMemHostAlloc")
    counts = []
    for tensors in (161, 161, 1):
        own = {f"t{i}": rng.standard_normal(40).astype(np.float32) for i in range(tensors)}
        given = shared(driver, own)
        driver.library.mock_driver_reset_counts()
        assert compressor.encode(given, "topk:density=0.1") == gcodec.encode(own, "topk:density=0.1")
        counts.append([driver.count(call) for call in calls])
    # Memory is allocated once. The other calls do not depend on the number of tensors.
    assert counts[1] == counts[2] and counts[1][-2:] == [0, 0], counts
    assert counts[1][2] <= 2 and counts[1][1] == 1, counts


def test_memory_is_kept_and_given_back(driver: MockDriver, gradient: np.ndarray) -> None:
    tensor = Shared(Memory(driver, gradient))
    gcodec.encode(tensor, "topk")
    gcodec.cuda.release_memory()
    before = driver.library.mock_driver_allocations()
    gcodec.encode(tensor, "topk")
    kept = driver.library.mock_driver_allocations()
    gcodec.encode(tensor, "topk")
    assert kept == driver.library.mock_driver_allocations() > before
    gcodec.cuda.release_memory()
    assert driver.library.mock_driver_allocations() == before
    compressor = gcodec.cuda.Compressor(feedback=gcodec.Feedback())
    compressor.encode(tensor, "topk")
    del compressor
    assert driver.library.mock_driver_allocations() == before


def test_threads_take_turns(driver: MockDriver, rng: np.random.Generator) -> None:
    own = [arrays(rng) for _ in range(4)]
    expected = [gcodec.encode(a, "topk") for a in own]
    given, out = [shared(driver, a) for a in own], [b""] * 4
    compressor = gcodec.cuda.Compressor()
    for encode in (gcodec.encode, compressor.encode):
        threads = [threading.Thread(target=lambda i=i: out.__setitem__(i, encode(given[i], "topk"))) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert out == expected
        out = [b""] * 4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_updates_are_put_and_added(driver: MockDriver, rng: np.random.Generator, dtype: str) -> None:
    own, before = arrays(rng, dtype), arrays(rng, dtype)
    for spec in SPECS:
        data = gcodec.encode(own, spec, rules={"z": "raw"})
        expected = gcodec.decode(data, framework="numpy")
        for how in ({}, {"versioned": False, "offset": 128}):
            there = shared(driver, before, **how)
            header = gcodec.cuda.apply(data, there)
            assert header.label.endswith("; z=raw")
            for name, array in expected.items():
                assert there[name].memory.read().tobytes() == array.tobytes(), (spec, name)
        there = {name: Interface(Memory(driver, array)) for name, array in before.items()}
        gcodec.cuda.apply(data, there, add=True)
        for name, array in expected.items():
            # Sums are in f32 and then rounded. Most codecs do not round their values to 16 bits before.
            if dtype == "float32" or spec == "topk" or name == "z":
                total = (before[name].astype(np.float32) + array.astype(np.float32)).astype(dtype)
                assert np.array_equal(there[name].memory.read(), total), (spec, name)


def test_an_update_that_does_not_fit_changes_nothing(driver: MockDriver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    own = arrays(rng)
    data = gcodec.encode(own, "topk")
    ones = {name: np.ones_like(array) for name, array in own.items()}

    def refused(given: dict[str, Any], kind: str, match: str, data: bytes = data, error: type[Exception] = gcodec.InputError) -> None:
        raises(lambda: gcodec.cuda.apply(data, given), kind, match, error)
        for tensor in given.values():
            if isinstance(tensor, Shared):
                assert (tensor.memory.read() == 1).all()

    there = shared(driver, ones)
    refused({n: x for n, x in there.items() if n != "v"}, "input", 'tensor "v", which is not among the given')
    refused(there | {"q": there["v"]}, "input", 'no tensor "q"')
    refused(there | {"v": Shared(Memory(driver, np.ones(36, np.float32)))}, "input", r'"v" is f32 \[36\], but in the update f32 \[37\]')
    refused(there | {"v": Shared(Memory(driver, np.ones(37, np.float16)))}, "input", '"v" is f16')
    refused(there | {"v": Shared(Memory(driver, ones["v"]), flags=1)}, "read-only", "read-only")
    refused(there | {"v": jax.numpy.ones(37)}, "read-only", "is a JAX array")
    refused(there | {"m": Shared(Memory(driver, ones["m"]), strides=(1, 50))}, "strides", "row-major")
    refused(there | {"v": Shared(Memory(driver, ones["v"], device=1))}, "wrong-device", "another one on")
    refused(there | {"v": ones["v"]}, "wrong-device", "not on a CUDA device")
    refused(there | {"v": Shared(Memory(driver, ones["v"], skip=2))}, "misaligned", '"v"')
    damaged = bytearray(data)
    damaged[-100] ^= 1
    with pytest.raises(gcodec.FormatError):
        gcodec.cuda.apply(damaged, there)
    with pytest.raises(gcodec.FormatError):
        gcodec.cuda.apply(data[:-5], there)
    with pytest.raises(gcodec.LimitError):
        gcodec.cuda.apply(data, there, limits=gcodec.Limits(max_elements=100))
    delta = gcodec.encode(own, "delta", base=ones)
    refused(there, "input", "delta, which needs its base", delta)
    driver.fail("cuMemAlloc", 0)
    gcodec.cuda.release_memory()
    refused(there, "out-of-memory", "device memory", error=gcodec.DeviceError)
    driver.fail("cuMemAlloc", -1)


def test_many_tensors_are_put_at_once(driver: MockDriver, rng: np.random.Generator) -> None:
    own = {f"t{i}": rng.standard_normal(40).astype(np.float32) for i in range(161)}
    data, there = gcodec.encode(own, "topk:density=0.1"), shared(driver, own)
    gcodec.cuda.apply(data, there)
    driver.library.mock_driver_reset_counts()
    gcodec.cuda.apply(data, there)
    counts = [driver.count(call) for call in ("cuLaunchKernel", "cuMemcpyHtoD", "cuMemAlloc", "cuMemHostAlloc", "cuMemsetD8")]
    assert counts == [1, 1, 0, 0, 161], counts


def test_what_is_put_comes_after_what_wrote_the_tensor(driver: MockDriver, gradient: np.ndarray) -> None:
    data = gcodec.encode(gradient, "topk")
    expected = (gradient + gcodec.decode(data)["tensor"].numpy()).tobytes()
    for stream in (None, driver.stream()):
        theirs = driver.stream()
        tensor = Shared(Memory(driver, gradient, late=theirs), on=theirs)
        gcodec.cuda.apply(data, tensor, add=True, stream=stream)
        if stream is not None:
            # Queued in the stream, but not executed.
            assert tensor.memory.read().tobytes() != expected
            driver.call("cuStreamSynchronize", stream)
        assert tensor.memory.read().tobytes() == expected


def test_the_files_for_a_device_run_with_the_mock_driver(driver: MockDriver) -> None:
    tests = Path(__file__).parent
    environment = {**os.environ, "GCODEC_MOCK_DRIVER": str(driver.path), "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}

    def run(*command: str) -> str:
        out = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
        assert out.returncode == 0, out.stdout + out.stderr
        return out.stdout

    said = run(str(tests / "test_device.py"))
    assert said.count(": ok") == 5 and "FAILED" not in said, said
    measured = run(str(mock_driver.ROOT / "tools/gpu-check/measure.py"), "5000")
    assert "the call's own" in measured and "a call each" in measured, measured


def test_tensors_of_pytorch_are_lent_in_its_current_stream(
    driver: MockDriver, gradient: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module with the used parts of PyTorch stands in for it, because PyTorch does not run on the mock
    driver."""
    import types

    said: list[Any] = []

    class Tensor(Shared):
        is_cuda = True
        is_nested = is_quantized = False
        layout = "strided"
        device = types.SimpleNamespace(type="cuda", index=1)
        dtype = "torch.float32"

        def detach(self) -> Tensor:
            said.append("detached")
            return self

        def is_neg(self) -> bool:
            return False

        def element_size(self) -> int:
            return 4

        def data_ptr(self) -> int:
            said.append("by its address")
            return self.memory.address

        def stride(self) -> tuple[int, ...]:
            return tuple(step // 4 for step in np.empty(self.shape, np.float32).strides)

    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            said.append(self.number)

        def __exit__(self, *_: object) -> None:
            said.append("left")

    theirs = driver.stream()
    cuda = types.SimpleNamespace(device=Device, current_stream=lambda device: types.SimpleNamespace(cuda_stream=theirs + 0 * device))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor, cuda=cuda, strided="strided"))  # type: ignore[arg-type]
    expected = gcodec.encode(gradient, "topk")
    tensor = Tensor(Memory(driver, gradient, device=1, late=theirs), on=theirs)
    before = driver.count("cuStreamSynchronize")
    assert gcodec.encode(tensor, "topk") == expected
    assert said == [1, "detached", "by its address", "left"] and not tensor.asked
    assert driver.count("cuStreamSynchronize") > before
    # A given stream replaces the current one.
    ours = driver.stream()
    assert gcodec.cuda.Compressor(1).encode(tensor, "topk", stream=ours) == expected
    assert tensor.asked[0]["stream"] == ours
    # Writing to a PyTorch tensor is queued in its current stream, and need not have finished.
    gcodec.cuda.apply(gcodec.encode(gradient, "raw"), tensor, add=True)
    assert np.array_equal(tensor.memory.read(), gradient)
    driver.call("cuStreamSynchronize", theirs)
    assert np.array_equal(tensor.memory.read(), gradient + gradient)


@pytest.mark.parametrize("kind", ["old-driver", "old-device"])
def test_what_is_too_old_goes_by_the_host(
    driver: MockDriver, gradient: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr("gcodec._tensors.devices._logged", set())

    def too_old(_: int) -> None:
        raise gcodec.DeviceError("too old", kind=kind, fault="world")

    monkeypatch.setattr(_native, "cuda_open", too_old)
    for _ in range(2):
        assert gcodec.encode(Shared(Memory(driver, gradient)), "topk") == gcodec.encode(gradient, "topk")
    assert [(r.levelname, r.getMessage().rpartition(": ")[2]) for r in caplog.records] == [("WARNING", "too old")]
    raises(gcodec.cuda.Compressor, kind, "too old", gcodec.DeviceError)


def test_the_interpreter_runs_on(driver: MockDriver, rng: np.random.Generator) -> None:
    large = Shared(Memory(driver, rng.standard_normal(2_000_000).astype(np.float32)))
    turns, done = 0, threading.Event()
    worker = threading.Thread(target=lambda: (gcodec.encode(large, "topk"), done.set()))
    worker.start()
    while not done.wait(0.001):
        turns += 1
    worker.join()
    # The kernels take much longer on the CPU. If the interpreter were held, this thread would get one turn at
    # most.
    assert turns > 2
