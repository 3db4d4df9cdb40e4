"""Measures the overhead of calls with CUDA tensors in Python: small tensors, in one call and in a call each.

Each line is a name, a number and a unit. Missing libraries are skipped with a message. With
GCODEC_MOCK_DRIVER set, the mock driver takes the place of a device: times then include the emulator's, but
the overhead of the calls is Python's.
"""

import os
import sys
import time

import numpy as np

import gcodec
import gcodec.cuda
from gcodec import _native
from gcodec.stream import PART_BYTES

ELEMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000
SPEC = "topk:density=0.001"


def median(values):
    return sorted(values)[len(values) // 2]


def timed(run, wait, times=21):
    """Returns the median in milliseconds, after two warm-up runs."""
    out = []
    for i in range(times + 2):
        wait()
        start = time.perf_counter()
        run()
        if i > 1:
            out.append(1e3 * (time.perf_counter() - start))
    return median(out)


def one_call(name, tensor, n, wait):
    """Measures a tensor to bytes: the whole call, its two parts in the library, and the call's own rest."""
    compressor, parts = gcodec.cuda.Compressor(), []
    for i in range(23):
        wait()
        start = time.perf_counter()
        update = compressor._update("Compressor.encode", tensor, SPEC, {}, None)
        encoded = _native.Encoder(PART_BYTES, True, True).update(update, True)
        bytes(encoded)
        wall = time.perf_counter() - start
        if i > 1:
            compressing, coding = encoded.seconds
            parts.append((wall, compressing, coding, wall - compressing - coding))
    for what, values in zip(("whole call", "selection and copies", "coding on the host", "the call's own"), zip(*parts), strict=True):
        print(f"{name} to bytes, {n} f32, {what}: {1e3 * median(values):.4f} ms", flush=True)
    return 1e3 * median([p[1] for p in parts])


def on_the_device(run, wait):
    """Returns the time of the kernels, copies and fills of one call by the profiler, in milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    run()
    wait()
    rounds = 10
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(rounds):
            run()
        wait()
    events = [e for e in found.events() if str(getattr(e, "device_type", "")).endswith("CUDA")]
    if not events:
        raise RuntimeError("the profiler saw no kernels")
    return sum(e.time_range.elapsed_us() for e in events) / rounds / 1e3


def small_tensors(name, tensors, n, wait):
    compressor = gcodec.cuda.Compressor()

    def each():
        for key, tensor in tensors.items():
            compressor.encode({key: tensor}, "topk:density=0.01")

    one = timed(lambda: compressor.encode(tensors, "topk:density=0.01"), wait, 11)
    print(f"{name}, {len(tensors)} tensors of {n} f32, one call: {one:.4f} ms", flush=True)
    print(f"{name}, {len(tensors)} tensors of {n} f32, a call each: {timed(each, wait, 3):.4f} ms", flush=True)


def with_torch():
    import torch

    if not torch.cuda.is_available():
        print("torch in Python: SKIPPED, it sees no device")
        return
    wait = torch.cuda.synchronize
    tensor = torch.randn(ELEMENTS, device="cuda") ** 3
    wall = one_call("torch", tensor, ELEMENTS, wait)
    compressor = gcodec.cuda.Compressor()
    try:
        device = on_the_device(lambda: compressor.encode(tensor, SPEC), wait)
        print(f"torch to bytes, {ELEMENTS} f32, kernels and copies by the profiler: {device:.4f} ms", flush=True)
        print(f"torch to bytes, {ELEMENTS} f32, selection beyond kernels and copies: {wall - device:.4f} ms", flush=True)
    except Exception as error:  # The other measurements do not need the profiler.
        print(f"torch's profiler: SKIPPED, {type(error).__name__}: {error}")
    data = compressor.encode(tensor, SPEC)
    print(f"bytes to torch, {ELEMENTS} f32: {timed(lambda: (gcodec.cuda.apply(data, tensor), wait()), wait):.4f} ms")
    del tensor
    small_tensors("torch", {f"t{i}": torch.randn(4096, device="cuda") for i in range(161)}, 4096, wait)


def with_mock_driver():
    import mock_driver

    driver = mock_driver.MockDriver(mock_driver.build())
    driver.load()
    rng = np.random.default_rng(0)
    shared = lambda n: mock_driver.Interface(mock_driver.Memory(driver, rng.standard_normal(n, dtype=np.float32)))  # noqa: E731
    n = min(ELEMENTS, 20_000)
    one_call("mock driver", shared(n), n, lambda: None)
    small_tensors("mock driver", {f"t{i}": shared(64) for i in range(12)}, 64, lambda: None)


try:
    if "GCODEC_MOCK_DRIVER" in os.environ:
        with_mock_driver()
    elif (why := gcodec.cuda.why_not()) is not None:
        print(f"CUDA in Python: SKIPPED, {why}")
    else:
        with_torch()
except ImportError as error:
    print(f"torch in Python: SKIPPED, {error}")
