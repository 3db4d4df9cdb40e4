"""The overhead of Python: 64 MiB encoded by the library's own `encode`, by `gcodec.encode` and by
`gcodec.Writer`.

    python adapters/python/benches/overhead.py [SPEC ...]

The library returns a vector, `gcodec.encode` returns `bytes`. The three run in turns in one process, and each
frees its memory before the next. Milliseconds are the minimum of all runs. A ratio is the median over turns,
of wall time and of processor time (all threads, user and system); other work on the machine disturbs the
latter less.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import gcodec
from gcodec import _native

# Least number of turns for each codec, and least seconds of turns.
RUNS, SECONDS = 41, 10
SPECS = ["topk:density=0.001", "topk:density=0.01", "sbc", "chunked", "natural", "qsgd", "sign", "int8", "lossless", "raw"]


def main() -> None:
    tensor = np.random.default_rng(0).standard_normal(16 << 20, dtype=np.float32)
    print(f"{tensor.nbytes >> 20} MiB of f32, {gcodec.num_threads()} threads, at least {RUNS} runs each")
    ways = "".join(f" | {way:>10} ms    wall    processor" for way in ("encode", "Writer"))
    print(f"{'codec':20} {'bytes':>11} {'library ms':>11}{ways}")
    for spec in sys.argv[1:] or SPECS:
        writer = gcodec.Writer(Sink(), index=False)
        ways: list[Callable[[], object]] = [
            lambda spec=spec: _native.library_encode([("tensor", tensor, None)], spec, False),
            lambda spec=spec: gcodec.encode(tensor, spec),
            lambda spec=spec, writer=writer: writer.write(tensor, spec),
        ]
        wall: list[list[float]] = [[], [], []]
        processor: list[list[float]] = [[], [], []]
        begin = time.perf_counter()
        while len(wall[0]) <= RUNS or time.perf_counter() < begin + SECONDS:
            for way, of_wall, of_processor in zip(ways, wall, processor, strict=True):
                start, start_processor = time.perf_counter(), time.process_time()
                way()
                of_wall.append(time.perf_counter() - start)
                of_processor.append(time.process_time() - start_processor)
        # The first run of each is a warm-up.
        least = [min(times[1:]) * 1e3 for times in wall]
        size = len(gcodec.encode(tensor, spec))
        columns = "".join(
            f" | {least[i]:10.2f}    {ratio(wall[i], wall[0]):7.3f}      {ratio(processor[i], processor[0]):7.3f}" for i in (1, 2)
        )
        print(f"{spec:20} {size:11,} {least[0]:11.2f}{columns}", flush=True)


def ratio(times: list[float], others: list[float]) -> float:
    """Returns the ratio of two times."""
    return statistics.median(time / other for time, other in zip(times[1:], others[1:], strict=True))


class Sink:
    """A target that discards all bytes."""

    def write(self, piece: memoryview) -> int:
        return len(piece)


if __name__ == "__main__":
    main()
