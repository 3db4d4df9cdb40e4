"""The speed and size of gcodec beside other compressors, each in a process of its own and on one thread.

    python adapters/python/benches/peers.py GRADIENT.safetensors WEIGHTS.safetensors

The tensors of a gradient (f32, and rounded to bf16) and of weights (bf16), each repeated along its rows to
16 Mi elements in all. Every copy has another sign and scale, so that nothing repeats. gcodec gets the tensors
by name, the others all elements one after the other. GB/s of these elements, by processor time (all threads,
user and system): the median of a turn of a few runs, and of several turns the best. All decoders return new
memory. `cargo xtask peers` runs this program.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import bitsandbytes
import blosc2
import numpy as np
import openzl.ext as zl
import torch
import zstandard
from pcodec import ChunkConfig, standalone
from safetensors.torch import load_file

import gcodec

with warnings.catch_warnings():
    # Its own module uses what PyTorch will remove.
    warnings.simplefilter("ignore")
    from zipnn import ZipNN

ELEMENTS, TURNS, RUNS = 16 << 20, 3, 5

# Of gcodec's rows without wider instructions than these.
NARROW = ", AVX2"

Way = tuple[str, Callable[[], Any], Callable[[Any], Any]]


class Data:
    """Tensors of one type by name, and all their elements as an array of floats or of 16-bit patterns."""

    def __init__(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        self.name, self.tensors = name, tensors
        flat = torch.cat([x.flatten() for x in tensors.values()])
        self.elements = flat.view(torch.uint16 if flat.dtype == torch.bfloat16 else flat.dtype).numpy()


def repeated(path: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file, each repeated along its rows, to at least `ELEMENTS` in all."""
    tensors = {name: x for name, x in load_file(path).items() if x.dim() and x.is_floating_point()}
    copies = -(-ELEMENTS // sum(x.numel() for x in tensors.values()))
    # No powers of two, which would leave the fractions as they are.
    scales = [(-1 if i % 3 == 0 else 1) * (1 + (37 * i % 97) / 97) for i in range(copies)]
    return {name: torch.cat([scaled(x, scale) for scale in scales]) for name, x in tensors.items()}


def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns a scaled tensor. Of bf16, each element is a random number that rounds to it: products of the
    elements themselves would have some fractions more often than others."""
    if x.dtype == torch.bfloat16:
        fraction, exponent = torch.frexp(x.float())
        x = torch.ldexp(fraction + (torch.rand(x.shape) - 0.5) / 256 * (fraction != 0), exponent)
        return (x * scale).bfloat16()
    return x * scale


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gradient, weights = repeated(sys.argv[1]), repeated(sys.argv[2])
    floats = Data("gradient, f32", gradient)
    print(f"| {'data, compressor':52} | encode | decode | size |\n|---|---|---|---|")
    for data in (Data("gradient, bf16", {name: x.bfloat16() for name, x in gradient.items()}), Data("weights, bf16", weights), floats):
        table(data, lossless(data), exact=True)
    specs = ("natural", "qsgd:bits=4", "dither", "terngrad", "int8", "sign")
    table(floats, [*(ours(floats, spec) for spec in specs), eight_bits(floats)], exact=False)
    for density in (0.1, 0.01, 0.001):
        table(floats, [ours(floats, f"topk:density={density}"), torch_topk(floats, density)], exact=False)


def lossless(data: Data) -> list[Way]:
    """All that give the elements back as they are."""
    halves = data.elements.itemsize == 2
    ways = [ours(data, spec, form) for spec in ("lossless", "lossless:effort=fast") for form in ("", NARROW)]
    # What OpenZL has for floats: exponents apart from signs and fractions. Its own profile for bf16 and f32
    # is the last of these.
    coders = (("Huffman, store", zl.graphs.Huffman, zl.graphs.Store), ("entropy", zl.graphs.Entropy, zl.graphs.Entropy))
    ways += [open_zl(data, name, exponent, rest) for name, exponent, rest in coders]
    ways += [open_zl(data, "compress", zl.graphs.Compress, zl.graphs.Compress)]
    ways += [zipnn(data, "bfloat16" if halves else "float32"), zstd(data, 1), blosc(data)]
    return ways if halves else [*ways, pco(data)]


def table(data: Data, ways: list[Way], exact: bool) -> None:
    """Prints a row for each way to encode and decode the elements."""
    # A process has the memory that others left to its allocator, and its pages are large if anyone asked for
    # that. Each way has its own, a copy of this one, in which nothing has run.
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in ways]
    processes = [fork.Process(target=work, args=(data, way, exact, pipe[1])) for way, pipe in zip(ways, pipes, strict=True)]
    for process in processes:
        process.start()
    times: list[list[tuple[float, float]]] = [[] for _ in ways]
    for _ in range(TURNS):
        for (pipe, _), seconds in zip(pipes, times, strict=True):
            pipe.send(True)
            seconds.append(pipe.recv())
    for (way, _, _), (pipe, _), process, seconds in zip(ways, pipes, processes, times, strict=True):
        pipe.send(False)
        share = pipe.recv() / data.elements.nbytes
        process.join()
        speeds = " | ".join(f"{data.elements.nbytes / min(side) / 1e9:.2f}" for side in zip(*seconds, strict=True))
        print(f"| {f'{data.name}: {way}':52} | {speeds} | {share:.2%} |", flush=True)


def work(data: Data, way: Way, exact: bool, pipe: Any) -> None:
    """Runs one way in its turns, and sends the seconds to encode and to decode; at the end, the size."""
    name, encode, decode = way
    if name.endswith(NARROW):
        os.environ["GCODEC_WIDEST_FORM"] = "avx2"
    gcodec.set_num_threads(1)
    encoded = encode()
    bytes_encoded = size(encoded)
    assert not exact or raw(data, decode(encoded)) == data.elements.tobytes(), f"{name}: the elements come back"
    del encoded
    while pipe.recv():
        # What was decoded is kept for so long: no allocator has it for the next run.
        encoding, decoding, kept = [], [], []
        for _ in range(RUNS):
            start = time.process_time()
            encoded = encode()
            middle = time.process_time()
            kept.append(decode(encoded))
            decoding.append(time.process_time() - middle)
            encoding.append(middle - start)
            del encoded
        pipe.send((statistics.median(encoding), statistics.median(decoding)))
    pipe.send(bytes_encoded)


def size(encoded: Any) -> int:
    """Returns the number of bytes of what an encoder returned."""
    return sum(t.nbytes for t in encoded) if isinstance(encoded, tuple) else len(encoded)


def raw(data: Data, decoded: Any) -> bytes:
    """Returns the bytes of what a decoder returned, in the order of the elements."""
    if isinstance(decoded, dict):
        return b"".join(np.from_dlpack(decoded[name].bits()).tobytes() for name in data.tensors)
    return decoded.tobytes() if hasattr(decoded, "tobytes") else bytes(decoded)


def ours(data: Data, spec: str, form: str = "") -> Way:
    """gcodec with this codec."""
    return f"gcodec `{spec}`{form}", lambda: gcodec.encode(data.tensors, spec), gcodec.decode


def open_zl(data: Data, name: str, exponent: Callable[[], Any], rest: Callable[[], Any]) -> Way:
    """OpenZL's split of floats, with these coders."""
    halves = data.elements.itemsize == 2
    compressor = zl.Compressor()
    compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
    split = zl.nodes.BFloat16Deconstruct() if halves else zl.nodes.Float32Deconstruct()
    rest_graph = rest()(compressor)
    if not halves and rest is zl.graphs.Entropy:
        # Its entropy coder takes no elements of three bytes.
        rest_graph = zl.nodes.TransposeSplit()(compressor, rest_graph)
    compressor.select_starting_graph(split(compressor, rest_graph, exponent()(compressor)))
    patterns = data.elements.view(np.uint16 if halves else np.uint32)

    def encode() -> bytes:
        context = zl.CCtx()
        context.ref_compressor(compressor)
        return context.compress([zl.Input(zl.Type.Numeric, patterns)])

    return f"OpenZL, {name}", encode, lambda b: zl.DCtx().decompress(b)[0].content.as_nparray()


def zipnn(data: Data, kind: str) -> Way:
    """ZipNN for this type of elements."""
    codec = ZipNN(bytearray_dtype=kind, input_format="byte", threads=1)
    # It changes the bytes that it compresses.
    return "ZipNN", lambda: codec.compress(bytearray(data.elements.data.cast("B"))), codec.decompress


def zstd(data: Data, level: int) -> Way:
    """Zstandard."""
    codec, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return f"zstd -{level}", lambda: codec.compress(data.elements.data.cast("B")), decoder.decompress


def blosc(data: Data) -> Way:
    """Blosc with shuffled bytes and Zstandard."""
    settings = {"typesize": data.elements.itemsize, "codec": blosc2.Codec.ZSTD, "clevel": 1, "nthreads": 1}
    return "blosc2, zstd -1", lambda: blosc2.compress2(data.elements, **settings), lambda b: blosc2.decompress2(b, nthreads=1)


def pco(data: Data) -> Way:
    """pcodec with its own choices."""
    return "pcodec", lambda: standalone.simple_compress(data.elements, ChunkConfig()), standalone.simple_decompress


def eight_bits(data: Data) -> Way:
    """bitsandbytes' blocks of 8 bits, without any coding."""
    tensor = torch.from_numpy(data.elements)

    def quantise() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        codes, state = bitsandbytes.functional.quantize_blockwise(tensor, blocksize=256)
        return codes, state.absmax, state.code

    def restore(kept: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        codes, absmax, code = kept
        return bitsandbytes.functional.dequantize_blockwise(codes, absmax=absmax, code=code, blocksize=256)

    return "bitsandbytes, 8 bits", quantise, restore


def torch_topk(data: Data, density: float) -> Way:
    """PyTorch's selection and scattering, without any coding."""
    tensor = torch.from_numpy(data.elements)
    count = round(density * len(tensor))

    def select() -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.topk(tensor.abs(), count, sorted=False).indices
        return tensor[places], places

    return f"torch.topk, scatter, {density:.1%}", select, lambda kept: torch.zeros(len(tensor)).scatter_(0, kept[1], kept[0])


if __name__ == "__main__":
    main()
