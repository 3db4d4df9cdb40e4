"""Sizes with and without each part of the format, beside entropies: the tables of docs/report.md.

    cargo build --release -p gcodec-cli
    python3 tools/report/ablation.py target/release/gcodec ../shared/gradients [--write] [--density 0.01]

Sizes are those that `gcodec inspect` reads from streams that the command line wrote, so a debug build gives
the same. Entropies are computed here, from the elements, and count neither tables nor headers. `--write`
puts the tables into docs/report.md. Needs NumPy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).resolve().parents[2] / "docs/report.md"
FAMILIES = {
    "gpt_step": "transformer, AdamW",
    "gpt_sgd": "transformer, SGD",
    "gpt_dgc": "transformer, DGC's residual",
    "gpt_diloco": "transformer, DiLoCo",
    "jaxgpt": "transformer in JAX, AdamW",
    "lstm": "LSTM, SGD",
    "resnet": "ResNet18, SGD",
    "digits": "small convolutional network",
}
TYPES = {"F32": "<u4", "BF16": "<u2", "F16": "<u2"}
Tensors = dict[str, Any]
"""The bits of the elements as unsigned integers, by name, in the order of the data."""


def load(path: Path) -> Tensors | None:
    """Reads a .safetensors file; `None` if its elements are not of one type that `TYPES` has."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:begin])
    entries.pop("__metadata__", None)
    if len({entry["dtype"] for entry in entries.values()} | {"F16"}) > 2:
        return None
    tensors = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = (begin + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[first:last], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def save(path: Path, tensors: Tensors) -> None:
    """Writes bf16 tensors as a .safetensors file."""
    entries, end = {}, 0
    for name, bits in tensors.items():
        begin, end = end, end + bits.nbytes
        entries[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.writelines(np.ascontiguousarray(bits).tobytes() for bits in tensors.values())


class Tool:
    """The command line, with a folder for its streams."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.stream, self.folder = program, folder / "update.gcu", folder

    def run(self, *arguments: str | Path) -> str:
        done = subprocess.run([self.program, *arguments], check=True, capture_output=True, text=True)
        return done.stdout

    def encode(self, tensors: Path, codec: str, *options: str | Path) -> dict[str, float]:
        """Encodes a file and returns the bits of its last update: all, and those of its parts."""
        self.run("encode", "-q", tensors, "-o", self.stream, "--codec", codec, *options)
        update = json.loads(self.run("inspect", "--json", "--coding", self.stream))["updates"][-1]
        parts = {key: 0.0 for key in ("position_bits", "value_bits", "overhead_bits")}
        for tensor in update["tensors"]:
            for key in parts:
                parts[key] += tensor[key]
        classed = any(tensor["support"] == "classed" for tensor in update["tensors"])
        return parts | {"bits": 8 * update["bytes"], "kept": update["kept"], "classed": classed}

    def fields(self) -> Iterator[dict[str, Any]]:
        """The fields of the stream's update."""
        for frame in json.loads(self.run("inspect", "--json", self.stream))["frames"]:
            if frame["kind"] == "update":
                number = str(frame["number"])
                text = self.run("inspect", "--annotate", "--json", "--frame", number, self.stream)
                yield from json.loads(text)


def within(fields: Iterable[dict[str, Any]], structure: str) -> list[dict[str, Any]]:
    """The fields inside of a structure whose name begins so."""
    return [f for f in fields if any(name.startswith(structure) for name in f["path"])]


def bits_of_set(kept: Any, of: Any) -> float:
    """Entropy of sets of `kept` elements of `of`, independent and equally likely, in bits."""
    kept, of = np.asarray(kept, float), np.asarray(of, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = -kept * np.log2(kept / of) - (of - kept) * np.log2(1 - kept / of)
    return float(np.nansum(bits))


def order0(symbols: Any) -> float:
    """Entropy of independent symbols with the frequencies that they have, in bits."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def planes(bits: Any) -> Iterator[Any]:
    """The planes of bytes of f32, the sign as the lowest bit: what `lossless` codes."""
    rotated = bits << 1 | bits >> 31
    return (rotated >> shift & 255 for shift in (0, 8, 16, 24))


def by_rows_and_columns(mask: Any) -> float:
    """Bits of a mask whose elements are independent, with odds a(row) b(column), the number in each row and
    column given.

    The factors are fitted by turns. Any factors give the length of a code, so a fit that has not converged
    gives a length that is a little too large.
    """
    mask = mask[mask.any(1)][:, mask.any(0)].astype(np.float32)
    if mask.size == 0 or mask.all():
        return 0.0
    rows, columns = mask.sum(1), mask.sum(0)
    a, b = rows / np.sqrt(mask.sum()), columns / np.sqrt(mask.sum())
    for _ in range(12):
        a = rows / (b / (1 + np.outer(a, b))).sum(1)
        b = columns / (a[:, None] / (1 + np.outer(a, b))).sum(0)
    odds = np.clip(np.outer(a, b), 1e-9, 1e9).astype(float)
    return float(np.log2(1 + odds).sum() - (mask * np.log2(odds)).sum())


def gradient(tool: Tool, path: Path, tensors: Tensors, density: float) -> dict[str, float]:
    """All measurements of one dump of f32."""
    topk = f"topk:density={density},scope=global,values=sign"
    row = {}
    for positions in ("rice-one", "rice", "tokens", "auto"):
        update = tool.encode(path, f"{topk},positions={positions}")
        row[positions] = update["position_bits"] / update["kept"]
    row["classed"] = update["classed"]
    fields = list(tool.fields())
    scales = "scales", "groups", "format of scales"
    signs = [f for f in within(fields, "values sign") if f["name"] not in scales]
    for name, part in ("signs", signs), ("lists", within(fields, "classes of rows")):
        row[name] = 8 * sum(f["bytes"] for f in part) / update["kept"]
    row |= entropies(tensors, update["kept"])
    elements = sum(bits.size for bits in tensors.values())
    for profile in ("core", "full"):
        tool.encode(path, "natural", "--profile", profile)
        codes = sum(f["bytes"] for f in within(tool.fields(), "codes"))
        row[f"natural {profile}"] = 8 * codes / elements
    tool.run("decode", tool.stream, "-o", tool.folder / "back.safetensors")
    back = load(tool.folder / "back.safetensors")
    row["natural order 0"] = sum(order0(bits >> 23 & 255) for bits in back.values()) / elements
    raw = 32 * elements
    row["lossless order 0"] = 100 * sum(order0(p) for b in tensors.values() for p in planes(b)) / raw
    for effort in ("fast", "default"):
        row[f"lossless {effort}"] = 100 * tool.encode(path, f"lossless:effort={effort}")["bits"] / raw
    return row


def entropies(tensors: Tensors, kept: float) -> dict[str, float]:
    """Entropies of the positions of the `kept` largest magnitudes, in bits for each."""
    magnitudes = np.concatenate([(bits & 0x7FFF_FFFF).ravel() for bits in tensors.values()])
    least = np.partition(magnitudes, -int(kept))[-int(kept)]
    masks = [(bits & 0x7FFF_FFFF) >= least for bits in tensors.values()]
    matrices = [mask.reshape(len(mask), -1) if mask.ndim > 1 else None for mask in masks]
    model = sum(
        bits_of_set(mask.sum(), mask.size) if matrix is None else by_rows_and_columns(matrix)
        for mask, matrix in zip(masks, matrices)
    )
    return {
        "independent": bits_of_set(kept, magnitudes.size) / kept,
        "by tensor": bits_of_set([m.sum() for m in masks], [m.size for m in masks]) / kept,
        "rows and columns": model / kept,
    }


def delta(tool: Tool, old: Tensors, new: Tensors) -> dict[str, float]:
    """All measurements of one delta of bf16 weights, in bits for each changed element."""
    files = [tool.folder / name for name in ("old.safetensors", "new.safetensors")]
    save(files[0], old), save(files[1], new)
    a, b = (np.concatenate([bits.ravel() for bits in x.values()]).astype(np.int64) for x in (old, new))
    changed = a != b
    count, exponents = int(changed.sum()), a >> 7 & 255
    steps = ordered(b[changed]) - ordered(a[changed])
    row: dict[str, float] = {"changed": 100 * count / a.size}
    for name in ("ulp,positions=rice", "ulp,positions=tokens", "ulp", "overwrite"):
        update = tool.encode(files[1], f"delta:values={name}", "--base", files[0])
        row[name] = update["bits"] / count
        row[f"{name}, positions"] = update["position_bits"] / count
        row[f"{name}, values"] = update["value_bits"] / count
    for digest in ("sum", "blake3", "both"):
        update = tool.encode(files[1], f"delta:digest={digest}", "--base", files[0])
        row[f"digest {digest}"] = update["bits"] / 8
    inside = [np.bincount(exponents, weights, 256) for weights in (changed, None)]
    row["independent"] = bits_of_set(count, a.size) / count
    row["by exponent"] = bits_of_set(*inside) / count
    row["steps"] = order0(steps) / count
    of = exponents[changed]
    row["steps by exponent"] = sum(order0(steps[of == e]) for e in np.unique(of)) / count
    return row


def ordered(bits: Any) -> Any:
    """Numbers bf16 in ascending order of their values."""
    return np.where(bits >> 15 == 1, 0xFFFF - bits, bits | 0x8000)


def chain(folder: Path) -> Iterator[tuple[Tensors, Tensors]]:
    """Pairs of weights before and after each sync of the chain."""
    old = load(folder / "base.safetensors")
    archive = np.load(folder / "chain.npz")
    for sync in range(1, 13):
        flat = np.concatenate([bits.ravel() for bits in old.values()])
        flat[archive[f"idx{sync}"]] = archive[f"new{sync}"].view("<u2")
        ends = np.cumsum([bits.size for bits in old.values()])[:-1]
        parts = np.split(flat, ends)
        new = {name: part.reshape(old[name].shape) for name, part in zip(old, parts)}
        yield old, new
        old = new


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *lines])


def gradients(tool: Tool, folder: Path, density: float) -> dict[str, str]:
    """The tables of the dumps of f32, a line for each family and the mean of all dumps."""
    groups: dict[str, list[dict[str, float]]] = {name: [] for name in FAMILIES.values()}
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("tiny/*.safetensors")]):
        tensors = load(path)
        if tensors is None or any(bits.itemsize != 4 for bits in tensors.values()):
            continue
        family = next((name for start, name in FAMILIES.items() if path.stem.startswith(start)), path.stem)
        groups.setdefault(family, []).append(gradient(tool, path, tensors, density))
        print(path.stem, {key: round(value, 3) for key, value in groups[family][-1].items()}, flush=True)
    if not any(groups.values()):
        raise SystemExit(f"{folder} has no .safetensors file with f32 tensors alone")
    every = [row for rows in groups.values() for row in rows]
    lines = [(f"{name} ({len(rows)})", mean(rows)) for name, rows in groups.items() if rows]
    lines.append((f"**mean of all {len(every)}**", mean(every)))

    def cells(keys: list[str], digits: int) -> list[list[str]]:
        return [[name, *(f"{row[key]:.{digits}f}" for key in keys)] for name, row in lines]

    positions = ["rice-one", "rice", "tokens", "auto", "lists"]
    positions += ["independent", "by tensor", "rows and columns"]
    symbols = ["signs", "natural core", "natural full", "natural order 0"]
    lossless = ["lossless fast", "lossless default", "lossless order 0"]
    return {
        "positions": table(
            ["dumps", "one Rice parameter", "Rice by 128 gaps", "tokens", "with classes", "of which lists",
             "H, independent", "H, by tensor", "H, by rows and columns"],
            cells(positions, 2),
        ),
        "symbols": table(
            ["dumps", "signs, predicted", "exponents, plain", "exponents, referenced", "H0 of exponents",
             "lossless, plain, %", "lossless, referenced, %", "H0 of planes, %"],
            [a + b[1:] for a, b in zip(cells(symbols, 3), cells(lossless, 2))],
        ),
    }


def deltas(tool: Tool, folder: Path) -> dict[str, str]:
    """The tables of the weight syncs."""
    pair = [load(folder / f"gpt_bf16_sync{number}.safetensors") for number in ("020", "021")]
    columns = [delta(tool, *pair), mean([delta(tool, *step) for step in chain(folder / "chain")])]
    rows = {
        "elements that change, %": "changed",
        "update, positions by Rice": "ulp,positions=rice",
        "update, positions by tokens": "ulp,positions=tokens",
        "**update, positions given the base's exponent**": "ulp",
        "update, new elements (`values=overwrite`)": "overwrite",
        "positions, tokens": "ulp,positions=tokens, positions",
        "positions, given the base's exponent": "ulp, positions",
        "H of independent positions": "independent",
        "H of positions given the base's exponent": "by exponent",
        "differences, one table": "ulp,positions=tokens, values",
        "differences, a table for each class": "ulp, values",
        "H0 of differences": "steps",
        "H0 of differences given the base's exponent": "steps by exponent",
    }
    kinds = "sum", "blake3", "both"
    digests = {f"bytes of the update, `digest={kind}`": f"digest {kind}" for kind in kinds}
    lines = [[text, *(f"{column[key]:.3f}" for column in columns)] for text, key in rows.items()]
    lines += [[text, *(f"{column[key]:,.0f}" for column in columns)] for text, key in digests.items()]
    return {"deltas": table(["bits per changed element", "one step", "mean of a chain of 12"], lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gcodec")
    parser.add_argument("gradients", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--density", type=float, default=0.01, help="share of the elements to keep")
    options = parser.parse_args()
    if options.write and options.density != parser.get_default("density"):
        parser.error("the report has the tables of the default density")
    if not options.gradients.is_dir():
        print(f"SKIPPED: {options.gradients} is not there")
        return
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(options.gcodec, Path(folder))
        syncs = options.gradients / "weight_sync"
        tables = deltas(tool, syncs) if syncs.is_dir() else {}
        tables |= gradients(tool, options.gradients, options.density)
    text = PAGE.read_text() if options.write else ""
    for name, rows in tables.items():
        print(f"\n{name}\n\n{rows}")
        if options.write:
            mark = f"<!-- tools/report/ablation.py, {name}"
            begin, end = f"{mark}: from here -->", f"{mark}: to here -->"
            before, rest = text.split(begin, 1)
            text = f"{before}{begin}\n{rows}{end}{rest.split(end, 1)[1]}"
    if options.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
