"""The time and the accuracy of ways to choose the largest elements of a gradient.

    python adapters/python/benches/thresholds.py GRADIENT.safetensors [--elements N ..] [--densities D ..]

One f32 tensor: the gradient, repeated to 1 to 260 million elements. Every copy has another sign and scale, so
that nothing repeats. Milliseconds of processor time, all on one thread, the best of several runs that take
turns, and the number of kept elements divided by the wanted one. gcodec's times include the stream; the
others end with positions and values:

- torch.topk and a gather.
- Deep Gradient Compression (arXiv 1712.01887): the threshold is that of a random 1 %; if it keeps more than a
  third too many, torch.topk chooses among these.
- Gaussian-K (arXiv 1911.08772): the threshold is that of a normal distribution of the same mean and standard
  deviation, halved or enlarged by half up to three times while it keeps a third too few or too many.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from safetensors.torch import load_file

import gcodec

RUNS = 3
# A third too many or too few.
MOST, LEAST = 4 / 3, 2 / 3

# Takes a tensor and a density, and returns a stream or values.
Way = Callable[[torch.Tensor, float], "bytes | torch.Tensor"]


def repeated(path: Path, elements: int) -> torch.Tensor:
    """Returns the elements of a file's tensors, repeated with other signs and scales."""
    once = torch.cat([x.flatten() for x in load_file(path).values()])
    out = torch.empty(elements)
    for i, piece in enumerate(out.split(len(once))):
        torch.mul(once[: len(piece)], (-1 if i % 3 == 0 else 1) * (1 + (37 * i % 97) / 97), out=piece)
    return out


def ours(spec: str) -> Way:
    """gcodec's codec, with the density at the end of its specification."""
    return lambda x, density: gcodec.encode({"x": x}, f"{spec}density={density}")


def top_k(x: torch.Tensor, density: float) -> torch.Tensor:
    """torch.topk and a gather."""
    _, positions = torch.topk(x.abs(), max(round(density * len(x)), 1), sorted=False)
    return x[positions]


def dgc(x: torch.Tensor, density: float) -> torch.Tensor:
    """Deep Gradient Compression's threshold of a sample."""
    wanted, sizes = max(round(density * len(x)), 1), x.abs()
    sample = sizes[torch.randint(len(x), (len(x) // 100,))]
    threshold = torch.topk(sample, max(round(density * len(sample)), 1), sorted=False).values.min()
    positions = torch.nonzero(sizes >= threshold).view(-1)
    if len(positions) > MOST * wanted:
        positions = positions[torch.topk(sizes[positions], wanted, sorted=False).indices]
    return x[positions]


def gaussian(x: torch.Tensor, density: float) -> torch.Tensor:
    """Gaussian-K's threshold of a normal distribution."""
    wanted, sizes = max(round(density * len(x)), 1), x.abs()
    deviation, mean = (float(one) for one in torch.std_mean(x))
    threshold = NormalDist(mean, deviation).inv_cdf(1 - density / 2) if deviation > 0 else 0.0
    for _ in range(3):
        kept = int((sizes >= threshold).sum())
        if LEAST * wanted <= kept <= MOST * wanted:
            break
        threshold *= 0.5 if kept < wanted else 1.5
    return x[torch.nonzero(sizes >= threshold).view(-1)]


WAYS: dict[str, Way] = {
    "gcodec `topk`": ours("topk:"),
    "gcodec `sidco`": ours("sidco:"),
    "gcodec `sidco:fit=exp`": ours("sidco:fit=exp,"),
    "torch.topk": top_k,
    "DGC": dgc,
    "Gaussian-K": gaussian,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Times ways to choose the largest elements.")
    parser.add_argument("gradient", type=Path)
    parser.add_argument("--elements", type=int, nargs="+", default=[1_000_000, 16_000_000, 67_000_000, 260_000_000])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.1, 0.01, 0.001])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    torch.manual_seed(0)
    print(f"| elements | density | {' | '.join(WAYS)} |\n|---|---|{'---|' * len(WAYS)}")
    for elements in asked.elements:
        x = repeated(asked.gradient, elements)
        for density in asked.densities:
            print(f"| {elements:,} | {density} | {' | '.join(cells(x, density))} |", flush=True)


def count(result: bytes | torch.Tensor) -> int:
    """Returns the number of elements that a way kept."""
    if isinstance(result, torch.Tensor):
        return len(result)
    return int(np.count_nonzero(np.from_dlpack(gcodec.decode(result)["x"])))


def cells(x: torch.Tensor, density: float) -> list[str]:
    """Returns the time and the kept share of each way."""
    best = dict.fromkeys(WAYS, float("inf"))
    kept = {}
    for _ in range(RUNS):
        for name, way in WAYS.items():
            start = time.process_time()
            result = way(x, density)
            best[name] = min(best[name], time.process_time() - start)
            kept[name] = count(result)
            del result
    wanted = max(round(density * len(x)), 1)
    return [f"{1e3 * best[name]:.1f} ms, {kept[name] / wanted:.3f}" for name in WAYS]


if __name__ == "__main__":
    main()
