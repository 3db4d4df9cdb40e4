"""Measures the same selection by other libraries, and the copy bandwidth. Skips missing libraries."""

import sys
import time

ELEMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 28
KEPT = ELEMENTS // 1000


def median(run, wait):
    """Returns the median of seven runs in milliseconds, after one warm-up."""
    times = []
    for i in range(8):
        wait()
        start = time.perf_counter()
        run()
        wait()
        if i:
            times.append(time.perf_counter() - start)
    return sorted(times)[3] * 1e3


def with_torch():
    import torch

    if not torch.cuda.is_available():
        print("torch: SKIPPED, it sees no device")
        return
    wait = torch.cuda.synchronize
    x = torch.randn(ELEMENTS, device="cuda")
    y = torch.empty_like(x)
    copy = median(lambda: y.copy_(x), wait)
    print(f"copy of {ELEMENTS} f32: {copy:.3f} ms")
    # A copy reads and writes: its bandwidth is twice the bytes.
    print(f"copy of {ELEMENTS} f32: {8 * ELEMENTS / copy / 1e6:.1f} GB/s read and written")
    del y

    def select():
        _, positions = torch.topk(x.abs(), KEPT, sorted=False)
        return positions.cpu(), x[positions].cpu()

    print(f"torch.topk, {KEPT} of {ELEMENTS} f32: {median(select, wait):.3f} ms")


def with_cupy():
    import cupy

    x = cupy.random.standard_normal(ELEMENTS, dtype=cupy.float32)

    def select():
        positions = cupy.argpartition(cupy.abs(x), ELEMENTS - KEPT)[ELEMENTS - KEPT :]
        return positions.get(), x[positions].get()

    print(f"cupy.argpartition, {KEPT} of {ELEMENTS} f32: {median(select, cupy.cuda.Device().synchronize):.3f} ms")


for name, run in (("torch", with_torch), ("cupy", with_cupy)):
    try:
        run()
    except ImportError as error:
        print(f"{name}: SKIPPED, {error}")
    except Exception as error:  # For example out of memory: the other library can still be measured.
        print(f"{name}: SKIPPED, {type(error).__name__}: {error}")
