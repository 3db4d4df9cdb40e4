"""The speed and size of gcodec beside other compressors, in one process and on one thread.

    python adapters/python/benches/peers.py FILE.safetensors

The elements of the file's f32 tensors, one after the other and again from the first, 16 Mi of them; as
bf16 their upper halves. GB/s of these elements, by processor time (all threads, user and system), the
best of several runs that take turns. All decoders return new memory. `cargo xtask peers` runs this
program.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import blosc2
import numpy as np
import torch
import zstandard
from pcodec import ChunkConfig, standalone
from safetensors.numpy import load_file

import gcodec

with warnings.catch_warnings():
    # Its own module uses what PyTorch will remove.
    warnings.simplefilter("ignore")
    from zipnn import ZipNN

ELEMENTS, RUNS = 16 << 20, 5

Way = tuple[str, Callable[[], object], Callable[[object], object]]


def main() -> None:
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    tensors = load_file(sys.argv[1]).values()
    floats = np.resize(np.concatenate([t.ravel() for t in tensors if t.dtype == np.float32]), ELEMENTS)
    halves = (floats.view(np.uint32) >> 16).astype(np.uint16)
    print(f"| {'elements, compressor':36} | encode | decode | size |\n|---|---|---|---|")
    bf16 = torch.from_numpy(halves.view(np.int16)).view(torch.bfloat16)
    ways = [ours(bf16, "lossless"), zipnn(halves, "bfloat16"), zstd(halves, 1), blosc(halves)]
    table("bf16", halves, ways, exact=True)
    pco = ("pcodec", lambda: standalone.simple_compress(floats, ChunkConfig()), standalone.simple_decompress)
    ways = [ours(floats, "lossless"), zipnn(floats, "float32"), pco, zstd(floats, 1), blosc(floats)]
    table("f32", floats, ways, exact=True)
    ways = [ours(floats, spec) for spec in ("natural", "qsgd:bits=4", "dither", "terngrad", "int8", "sign")]
    table("f32", floats, ways, exact=False)
    for density in (0.1, 0.01, 0.001):
        ways = [ours(floats, f"topk:density={density}"), torch_topk(floats, density)]
        table(f"f32, {density:.1%} kept:", floats, ways, exact=False)


def table(name: str, elements: np.ndarray, ways: list[Way], exact: bool) -> None:
    """Prints a row for each way to encode and decode the elements."""
    times = [[[], []] for _ in ways]
    sizes = []
    for run in range(RUNS):
        for (_, encode, decode), (encoding, decoding) in zip(ways, times, strict=True):
            start = time.process_time()
            encoded = encode()
            middle = time.process_time()
            decoded = decode(encoded)
            decoding.append(time.process_time() - middle)
            encoding.append(middle - start)
            if run == 0:
                sizes.append(size(encoded) / elements.nbytes)
                assert not exact or raw(decoded) == elements.tobytes(), "the elements come back"
            del encoded, decoded
    for (way, _, _), (encoding, decoding), share in zip(ways, times, sizes, strict=True):
        speeds = " | ".join(f"{elements.nbytes / min(seconds) / 1e9:.2f}" for seconds in (encoding, decoding))
        print(f"| {f'{name} {way}':36} | {speeds} | {share:.2%} |", flush=True)


def size(encoded: object) -> int:
    """Returns the number of bytes of what an encoder returned."""
    return sum(t.nbytes for t in encoded) if isinstance(encoded, tuple) else len(encoded)


def raw(decoded: object) -> bytes:
    """Returns the bytes of what a decoder returned."""
    if isinstance(decoded, dict):
        (decoded,) = decoded.values()
    return decoded.tobytes() if hasattr(decoded, "tobytes") else bytes(decoded)


def ours(elements: object, spec: str) -> Way:
    """gcodec with this codec."""
    return f"gcodec `{spec}`", lambda: gcodec.encode(elements, spec), gcodec.decode


def zipnn(elements: np.ndarray, kind: str) -> Way:
    """ZipNN for this type of elements."""
    codec = ZipNN(bytearray_dtype=kind, input_format="byte", threads=1)
    # It changes the bytes that it compresses.
    return "ZipNN", lambda: codec.compress(bytearray(elements.data.cast("B"))), codec.decompress


def zstd(elements: np.ndarray, level: int) -> Way:
    """Zstandard."""
    codec, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return f"zstd -{level}", lambda: codec.compress(elements.data.cast("B")), decoder.decompress


def blosc(elements: np.ndarray) -> Way:
    """Blosc with shuffled bytes and Zstandard."""
    settings = {"typesize": elements.itemsize, "codec": blosc2.Codec.ZSTD, "clevel": 1, "nthreads": 1}
    return "blosc2, zstd -1", lambda: blosc2.compress2(elements, **settings), lambda b: blosc2.decompress2(b, nthreads=1)


def torch_topk(elements: np.ndarray, density: float) -> Way:
    """PyTorch's selection and scattering, without any coding."""
    tensor = torch.from_numpy(elements)
    count = round(density * len(elements))

    def select() -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.topk(tensor.abs(), count, sorted=False).indices
        return tensor[places], places

    return "torch.topk, scatter", select, lambda kept: torch.zeros(len(elements)).scatter_(0, kept[1], kept[0])


if __name__ == "__main__":
    main()
