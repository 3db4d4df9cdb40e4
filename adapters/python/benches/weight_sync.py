"""Bytes and seconds of a weight sync: gcodec beside the layouts of other projects, in one run.

    python adapters/python/benches/weight_sync.py [--write] [--elements N] [--data FOLDER]

The layouts of others are rebuilt from their public descriptions, in NumPy; they are not the projects' own
code, and their seconds are those of this program. All are lossless and use one thread. Each row is
encoded and applied to a copy of the old weights, and the result is compared bit by bit. Only gcodec's row
contains digests of the weights before and after. `--write` puts the table into docs/weight-sync.md. It
needs NumPy, PyTorch, zstandard and safetensors.
"""

from __future__ import annotations

import argparse
import io
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from safetensors.torch import load_file

import gcodec

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/weight-sync.md"
MARKS = "<!-- adapters/python/benches/weight_sync.py --write: begin -->", "<!-- end -->"
SHARES = 0.0007, 0.01, 0.05, 0.5
RUNS = 5

Weights = dict[str, Any]
"""Tensors by name, each as two-dimensional u16: the bits of bf16."""


def zip1(data: Any) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def unzip(data: Any) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


def changed(old: Any, new: Any) -> Any:
    """Returns the positions of the elements that differ, in row-major order."""
    return np.flatnonzero(old.reshape(-1) != new.reshape(-1))


class Positions:
    """int32 positions and bf16 values: verl, vLLM's sparse updates."""

    name = "int32 + bf16 (verl, vLLM)"

    def encode(self, old: Any, new: Any) -> bytes:
        at = changed(old, new)
        return bytes(at.astype("<i4").tobytes() + new.reshape(-1)[at].tobytes())

    def apply(self, data: bytes, to: Any) -> None:
        count = len(data) // 6
        to.reshape(-1)[np.frombuffer(data, "<i4", count)] = np.frombuffer(data, "<u2", count, 4 * count)


class Rows:
    """Differences of rows (u8 where they fit, else u32) and columns (u16), and bf16 values, by zstd of
    level 1: grail v3.1."""

    name = "rows u8, columns u16 (grail)"

    def encode(self, old: Any, new: Any) -> bytes:
        at = changed(old, new)
        row, column = np.divmod(at, new.shape[1])
        steps = np.diff(row, prepend=0)
        width = 1 if steps.max(initial=0) < 256 else 4
        moved = np.where(steps == 0, np.diff(column, prepend=0), column)
        return zip1(bytes([width]) + steps.astype(f"<u{width}").tobytes() + moved.astype("<u2").tobytes() + new.reshape(-1)[at].tobytes())

    def apply(self, data: bytes, to: Any) -> None:
        raw = unzip(data)
        width = raw[0]
        count = (len(raw) - 1) // (width + 4)
        steps = np.frombuffer(raw, f"<u{width}", count, 1)
        moved, values = (np.frombuffer(raw, "<u2", count, 1 + count * start) for start in (width, width + 2))
        row = np.cumsum(steps, dtype=np.int64)
        # Columns are sums since the row began.
        total = np.cumsum(moved, dtype=np.int64)
        begins = np.maximum.accumulate(np.where((steps != 0) | (np.arange(count) == 0), np.arange(count), 0))
        column = total - (total - moved)[begins]
        to.reshape(-1)[row * to.shape[1] + column] = values


class Gaps:
    """u16 gaps and the XOR of changed elements, as a pickle of tensors, by zstd of level 1: NeMo-RL."""

    name = "u16 gaps + XOR, zstd (NeMo-RL)"

    def encode(self, old: Weights, new: Weights) -> dict[str, bytes]:
        out = io.BytesIO()
        torch.save({name: self._parts(old[name], tensor) for name, tensor in new.items()}, out)
        return {"": zip1(out.getvalue())}

    def _parts(self, old: Any, new: Any) -> tuple[torch.Tensor, torch.Tensor]:
        at = changed(old, new)
        gaps = np.diff(at, prepend=-1) - 1
        fill = gaps // 65536
        xor = old.reshape(-1)[at] ^ new.reshape(-1)[at]
        if fill.any():
            # A gap too wide for 16 bits is cut by elements whose XOR is zero.
            last = np.cumsum(fill + 1) - 1
            wide, values = np.full(last[-1] + 1, 65535), np.zeros(last[-1] + 1, np.uint16)
            wide[last], values[last] = gaps - fill * 65536, xor
            gaps, xor = wide, values
        return torch.from_numpy(gaps.astype(np.uint16)), torch.from_numpy(xor)

    def apply(self, data: dict[str, bytes], to: Weights) -> None:
        for name, (gaps, values) in torch.load(io.BytesIO(unzip(data[""]))).items():
            at = np.cumsum(gaps.numpy().astype(np.int64) + 1) - 1
            to[name].reshape(-1)[at] ^= values.numpy()


class Xor:
    """XOR of all bytes by zstd of level 1: slime, ModelExpress."""

    name = "XOR, zstd -1 (slime, ModelExpress)"

    def encode(self, old: Any, new: Any) -> bytes:
        return zip1(old ^ new)

    def apply(self, data: bytes, to: Any) -> None:
        np.bitwise_xor(to, np.frombuffer(unzip(data), np.uint16).reshape(to.shape), out=to)


class Each:
    """A layout of single tensors, for all that differ."""

    def __init__(self, of: Positions | Rows | Xor) -> None:
        self.name, self._of = of.name, of

    def encode(self, old: Weights, new: Weights) -> dict[str, bytes]:
        return {name: self._of.encode(old[name], tensor) for name, tensor in new.items()}

    def apply(self, data: dict[str, bytes], to: Weights) -> None:
        for name, stream in data.items():
            self._of.apply(stream, to[name])


class Gcodec:
    """`gcodec.encode` as a delta, and its patches."""

    name = "**gcodec**"

    def encode(self, old: Weights, new: Weights) -> dict[str, bytes]:
        return {"": gcodec.encode(_bf16(new), "delta", base=_bf16(old))}

    def apply(self, data: dict[str, bytes], to: Weights) -> None:
        base = _bf16(to)
        gcodec.patches(data[""], base=base).apply_(base)


def _bf16(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(tensor).view(torch.bfloat16) for name, tensor in weights.items()}


LAYOUTS: list[Each | Gaps | Gcodec] = [Gcodec(), Gaps(), *map(Each, (Xor(), Rows(), Positions()))]


@dataclass
class Row:
    """Bits for each changed element, and GB of weights a second."""

    bits: float
    encode: float
    apply: float


def measure(layout: Each | Gaps | Gcodec, pairs: list[tuple[Weights, Weights]]) -> Row:
    """Encodes and applies all pairs, each as often as needed; the least time of each counts."""
    size = count = weights = 0
    encode = apply = 0.0
    for old, new in pairs:
        data, seconds = least(lambda old=old, new=new: layout.encode(old, new))
        encode += seconds
        size += sum(map(len, data.values()))
        copies = [{name: tensor.copy() for name, tensor in old.items()} for _ in range(RUNS)]
        left = iter(copies)
        _, seconds = least(lambda data=data, left=left: layout.apply(data, next(left)))
        apply += seconds
        if not all(np.array_equal(copies[-1][name], tensor) for name, tensor in new.items()):
            raise SystemExit(f"{layout.name}: the weights differ")
        count += sum(int(np.count_nonzero(old[name] != tensor)) for name, tensor in new.items())
        weights += sum(tensor.nbytes for tensor in new.values())
    return Row(8 * size / count, weights / encode / 1e9, weights / apply / 1e9)


def least(call: Callable[[], Any]) -> tuple[Any, float]:
    """Returns the last result of several calls, and their least seconds of processor time, which other work
    on the machine disturbs less."""
    times = []
    for _ in range(RUNS):
        begin = time.process_time()
        result = call()
        times.append(time.process_time() - begin)
    return result, min(times)


def synthetic(elements: int, share: float) -> list[tuple[Weights, Weights]]:
    """Returns Gaussian weights, and the same with a share moved by one unit in the last place."""
    rng = np.random.default_rng(7)
    shape = (elements // 4 // 1024, 1024)
    old, new = {}, {}
    for name in "abcd":
        bits = torch.from_numpy(rng.standard_normal(shape, np.float32) * 0.02).bfloat16().view(torch.int16).numpy()
        step = np.where(rng.random(shape) < share, rng.choice(np.array([-1, 1], np.int16), shape), np.int16(0))
        old[name], new[name] = bits.view(np.uint16), (bits + step).view(np.uint16)
    return [(old, new)]


def real_pair(data: Path) -> list[tuple[Weights, Weights]]:
    return [(load(data / "gpt_bf16_sync020.safetensors"), load(data / "gpt_bf16_sync021.safetensors"))]


def load(path: Path) -> Weights:
    bits = {name: tensor.view(torch.int16).numpy().view(np.uint16) for name, tensor in load_file(path).items()}
    return {name: tensor.reshape(tensor.shape[0], -1) for name, tensor in bits.items()}


def chain(data: Path) -> list[tuple[Weights, Weights]]:
    changes = np.load(data / "chain/chain.npz")
    versions = [load(data / "chain/base.safetensors")]
    names = [str(name) for name in changes["names"]]
    for step in range(1, 13):
        flat = np.concatenate([versions[-1][name].reshape(-1) for name in names])
        flat[changes[f"idx{step}"]] = changes[f"new{step}"]
        parts = np.split(flat, np.cumsum([versions[0][name].size for name in names])[:-1])
        versions.append({name: part.reshape(versions[0][name].shape) for name, part in zip(names, parts, strict=True)})
    return list(zip(versions[:-1], versions[1:], strict=True))


def bandwidth() -> float:
    """Returns GB a second at which one thread reads memory."""
    array = np.ones(32 << 20, np.uint64)
    return float(array.nbytes / least(array.sum)[1] / 1e9)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def report(elements: int, data: Path) -> Iterator[str]:
    cases = {f"{share:.2%}".replace("0%", "%").replace(".%", "%"): synthetic(elements, share) for share in SHARES}
    if data.is_dir():
        cases |= {"real pair": real_pair(data), "real chain": chain(data)}
    rates = [bandwidth()]
    heads = "".join(f" {case} |" for case in cases)
    yield f"| layout: bits, encode, apply |{heads}\n|---|{'---|' * len(cases)}"
    for layout in LAYOUTS:
        cells = (measure(layout, pairs) for pairs in cases.values())
        yield f"| {layout.name} |" + "".join(f" {row.bits:.1f}, {row.encode:.2f}, {row.apply:.2f} |" for row in cells)
        rates.append(bandwidth())
    yield (
        f"\nOne thread, in processor time, of {processor()}, which read memory at {statistics.median(rates):.1f} GB/s during the\n"
        f"run; Python {platform.python_version()}, NumPy {np.__version__}, zstandard {zstandard.__version__}; {elements >> 20} Mi synthetic elements."
    )


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--write", action="store_true")
    args.add_argument("--elements", type=int, default=8 << 20, help="synthetic elements, a multiple of 4096")
    args.add_argument("--data", type=Path, default=ROOT / "../shared/gradients/weight_sync")
    given = args.parse_args()
    gcodec.set_num_threads(1)
    torch.set_num_threads(1)
    lines = []
    for line in report(given.elements, given.data):
        print(line, flush=True)
        lines.append(line)
    if given.write:
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        if not after:
            raise SystemExit(f"{PAGE} has no place for the table: {MARKS[0]} .. {MARKS[1]}")
        PAGE.write_text(f"{before}{MARKS[0]}\n" + "\n".join(lines) + f"\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
