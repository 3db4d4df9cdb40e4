"""Stand-ins for slime and miles, which write versions of weights into folders, and for SGLang, which reads
them.

They do to the bytes what these projects do, with the same packages (NumPy, zstandard, xxhash, blake3), and
were written from their behaviour: THUDM/slime 624b824 and radixark/miles 31f1ca9 (`utils/disk_delta.py`, the
updaters around it), SGLang 01d5bfe (`srt/weight_sync/local_checkpoint.py`). None of them is in a package
registry.
"""

from __future__ import annotations

import json
import mmap
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import safetensors.numpy
import xxhash
import zstandard

INDEX = "model.safetensors.index.json"
STATE = ".weight_sync/state.json"

CHECKSUMS: dict[str, Callable[[Any], str]] = {
    "xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
    "blake3": lambda data: blake3.blake3(bytes(data)).hexdigest(),
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
}

Item = tuple[str, memoryview, Path, int, int, "str | None"]
"""A tensor to change: name, difference, file, place and bytes there, checksum of the result."""
Apply = Callable[[Item], None]
Context = dict[str, Any]
"""Names that functions for an encoding find around them: `open_mmaps`, `algorithm`, `mismatches`, `lock`."""


def folder_of(run: Path, version: int) -> Path:
    return run / f"weight_v{version:06d}"


def publish(
    run: Path,
    version: int,
    old: dict[str, np.ndarray],
    new: dict[str, np.ndarray],
    encoding: str,
    checksum: str = "xxh3-128",
    encode: Callable[[str, np.ndarray, np.ndarray], bytes] | None = None,
) -> None:
    """Writes the differences of weights, given as bytes, as two ranks of a trainer do.

    encode: how another encoding writes the difference of the tensor of this name, old and new bytes.
    """
    folder = folder_of(run, version)
    folder.mkdir(parents=True)
    ranks: list[dict[str, np.ndarray]] = [{}, {}]
    for number, name in enumerate(new):
        if np.array_equal(old[name], new[name]):
            continue
        if encode is not None:
            packed = encode(name, old[name], new[name])
        else:
            packed = zstandard.ZstdCompressor(level=1).compress(bytes_of(encoding, old[name], new[name]))
        ranks[number % 2][name] = np.frombuffer(packed, np.uint8)
    ranks = [rank for rank in ranks if rank]
    weight_map = {}
    for number, rank in enumerate(ranks):
        file = f"model-{number:05d}-of-{len(ranks):05d}.safetensors"
        sums = {name: CHECKSUMS[checksum](new[name]) for name in rank}
        (folder / file).write_bytes(safetensors.numpy.save(rank, metadata=sums))
        weight_map |= dict.fromkeys(rank, file)
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    (folder / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))


def bytes_of(encoding: str, old: np.ndarray, new: np.ndarray) -> bytes:
    """Returns the difference of a tensor's bytes, not compressed."""
    if encoding == "xor":
        return (old ^ new).tobytes()
    changed = np.flatnonzero(old != new)
    return np.uint32(len(changed)).tobytes() + changed.astype("<u4").tobytes() + new[changed].tobytes()


def xor_of(context: Context) -> Apply:
    def apply_xor(item: Item) -> None:
        name, compressed, path, offset, nbytes, want = item
        region = np.ndarray((nbytes,), np.uint8, context["open_mmaps"][path][1], offset)
        reader = zstandard.ZstdDecompressor().stream_reader(compressed)
        at = 0
        while at < nbytes and (piece := reader.read(min(2 << 20, nbytes - at))):
            region[at : at + len(piece)] ^= np.frombuffer(piece, np.uint8)
            at += len(piece)
        if CHECKSUMS[context["algorithm"]](region) != want:
            context["mismatches"].append(name)

    return apply_xor


def overwrite_of(context: Context) -> Apply:
    def apply_overwrite(item: Item) -> None:
        name, compressed, path, offset, nbytes, want = item
        region = np.ndarray((nbytes,), np.uint8, context["open_mmaps"][path][1], offset)
        # It needs the number of bytes in the frame.
        plain = np.frombuffer(zstandard.ZstdDecompressor().decompress(compressed), np.uint8)
        count = int.from_bytes(plain[:4].tobytes(), "little")
        region[plain[4 : 4 + 4 * count].view("<u4")] = plain[4 + 4 * count :]
        if CHECKSUMS[context["algorithm"]](region) != want:
            context["mismatches"].append(name)

    return apply_overwrite


ENCODINGS: dict[str, Callable[[Context], Apply]] = {"xor": xor_of, "overwrite": overwrite_of}


def pull(local: Path, base: Path, run: Path, target: int, encodings: dict[str, Callable[[Context], Apply]] | None = None) -> None:
    """Brings a local checkpoint to a version, in place, as SGLang's `/pull_weights` does on each host."""
    state = local / STATE
    state.parent.mkdir(parents=True, exist_ok=True)
    applied = int(json.loads(state.read_text())["version"]) if state.exists() else None
    start = target
    while start > (applied or 0) and _isbytes_of(folder_of(run, start)):
        start -= 1
    if applied is None or start > applied:
        _copy(base if start == 0 else folder_of(run, start), local)
        state.write_text(json.dumps({"version": f"{start:06d}"}))
    else:
        start = applied
    for version in range(start + 1, target + 1):
        _apply(local, folder_of(run, version), encodings or ENCODINGS)


def _isbytes_of(folder: Path) -> bool:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    index = folder / INDEX
    if index.exists():
        return "delta_encoding" in json.loads(index.read_text()).get("metadata", {})
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]
    return False


def _copy(source: Path, local: Path) -> None:
    for path in local.iterdir():
        if path.is_file():
            path.unlink()
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, local / path.name)


def _entries(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields the places of tensors in a file from its first byte on, and its metadata."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        for name, entry in json.loads(opened.read(length)).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                entry = (8 + length + begin, 8 + length + end)
            yield name, entry


def _apply(local: Path, folder: Path, encodings: dict[str, Callable[[Context], Apply]]) -> None:
    index = json.loads((folder / INDEX).read_text())
    said, state = index["metadata"], local / STATE
    applied = int(json.loads(state.read_text())["version"])
    if applied != int(said["base_version"]):
        raise RuntimeError(f"out of order: {applied}, and it changes {said['base_version']}")
    if said["compression_format"] != "zstd" or said["delta_encoding"] not in encodings:
        raise NotImplementedError(f"{said['compression_format']}, {said['delta_encoding']}")
    places = {
        name: (file, place)
        for file in local.glob("*.safetensors")
        for name, place in _entries(file)
        if name != "__metadata__"
    }
    state.unlink()
    open_mmaps: dict[Path, Any] = {}
    items: list[Item] = []
    for file in sorted(set(index["weight_map"].values())):
        entries = dict(_entries(folder / file))
        sums = entries.pop("__metadata__", {})
        listed = {name for name, of in index["weight_map"].items() if of == file}
        if set(entries) != listed:
            raise RuntimeError(f"{file} has {set(entries) ^ listed}, unlike its index")
        blob = memoryview((folder / file).read_bytes())
        for name, (begin, end) in entries.items():
            path, (first, last) = places[name]
            if path not in open_mmaps:
                opened = path.open("r+b")
                open_mmaps[path] = (opened, mmap.mmap(opened.fileno(), 0))
            items.append((name, blob[begin:end], path, first, last - first, sums.get(name)))
    context: Context = {
        "np": np,
        "zstandard": zstandard,
        "_checksum": lambda algorithm, data: CHECKSUMS[algorithm](data),
        "open_mmaps": open_mmaps,
        "algorithm": said["checksum_format"],
        "mismatches": [],
        "lock": threading.Lock(),
    }
    with ThreadPoolExecutor() as pool:
        list(pool.map(encodings[said["delta_encoding"]](context), items))
    for opened, mapped in open_mmaps.values():
        mapped.close()
        opened.close()
    if context["mismatches"]:
        raise RuntimeError(f"wrong checksum: {context['mismatches']}")
    state.write_text(json.dumps({"version": said["version"]}))


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    """Returns the bytes of each tensor of a checkpoint."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        for name, place in _entries(file):
            if name != "__metadata__":
                found[name] = np.frombuffer(data[slice(*place)], np.uint8)
    return found
