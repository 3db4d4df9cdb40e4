"""The times of encoding and decoding one f32 tensor by its size, as a Markdown table.

    python adapters/python/benches/tensor_sizes.py [CODEC..]

Nanoseconds of processor time per element, with one thread, the smallest of several runs: whole streams with
preamble, manifest, index and end, from a NumPy array and to a NumPy array.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import gcodec

CODECS = ["topk:density=0.01", "topk:density=0.01,values=pow2", "natural", "int8", "lossless", "raw"]
SIZES = [1 << bits for bits in (10, 12, 14, 16, 18, 20, 22, 24, 26)]
# Elements that the runs of one row have together.
TOTAL = 1 << 25


def nanoseconds(work: Callable[[], object], elements: int) -> float:
    """Returns the processor time of one element: the smallest of 3 to 9 groups of runs."""
    repeats = max(1, (1 << 18) // elements)
    groups = min(9, max(3, TOTAL // (elements * repeats)))
    best = float("inf")
    for _ in range(groups):
        begin = time.process_time_ns()
        for _ in range(repeats):
            work()
        best = min(best, (time.process_time_ns() - begin) / repeats / elements)
    return best


def main() -> None:
    gcodec.set_num_threads(1)
    codecs = sys.argv[1:] or CODECS
    print("| elements | " + " | ".join(f"`{codec}`" for codec in codecs) + " |")
    print("|---|" + "---|" * len(codecs))
    for elements in SIZES:
        # Heavy tails, as gradients have them.
        tensors = {"w": (np.random.default_rng(0).standard_normal(elements) ** 3).astype("f4")}
        cells = []
        for codec in codecs:
            data = gcodec.encode(tensors, codec)
            encode = nanoseconds(lambda codec=codec: gcodec.encode(tensors, codec), elements)
            decode = nanoseconds(lambda data=data: gcodec.decode(data), elements)
            cells.append(f"{encode:.2f}, {decode:.2f}")
        print(f"| {elements:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
