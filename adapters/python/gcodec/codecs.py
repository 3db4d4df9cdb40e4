"""Codecs: a compressor and its settings, with the names and defaults of the Rust library.

A codec is a small immutable object that can be compared, hashed and pickled. Every function also takes its
specification, the text `name:key=value,...`. A codec that rounds or draws at random uses `seed`; for new
random numbers at each step use `dataclasses.replace(codec, seed=step)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from gcodec import _native
from gcodec.errors import InputError


@dataclass(frozen=True)
class Codec:
    """Base of all codecs."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if getattr(self, "k", None) is not None:
            # A count replaces the density.
            object.__setattr__(self, "density", None)
        for f in fields(self):
            if {",", "="} & set(str(getattr(self, f.name))):
                raise InputError(f"key `{f.name}` of `{self.name}` is `{getattr(self, f.name)}`: give one setting")
        _native.canonical(self.spec)

    @property
    def spec(self) -> str:
        """The specification: the name, and the settings that differ from the defaults."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        keys = ",".join(f"{name}={value}" for name, value in given if value is not None)
        return f"{self.name}:{keys}" if keys else self.name

    @property
    def is_lossy(self) -> bool:
        """Whether the decoded values may differ from the encoded ones."""
        return _native.is_lossy(self.spec)

    def __str__(self) -> str:
        """Returns the specification in the library's canonical form."""
        return _native.canonical(self.spec)


@dataclass(frozen=True)
class Raw(Codec):
    """The elements, unchanged."""

    name: ClassVar[str] = "raw"


@dataclass(frozen=True)
class Lossless(Codec):
    """The byte planes of the elements, entropy coded.

    `effort`: `"default"`, or `"fast"`, which encodes about twice as fast, and mostly up to 1 % larger.
    """

    name: ClassVar[str] = "lossless"
    effort: str = field(default="default", kw_only=True)


@dataclass(frozen=True)
class TopK(Codec):
    """Top-k: the elements of largest magnitude (Deep Gradient Compression, arXiv 1712.01887, and earlier).

    Attributes:
        density: share of the elements to keep, more than 0, at most 1; or
        k: number of elements to keep, at least 1. It replaces `density`.
        values: encoding of the kept values: `f32`, `f16`, `bf16`, `pow2`, `sign` or `q4`.
        scope: selection within each `tensor`, or `global`, over all tensors of the codec.
        seed: seed of the rounding to powers of two, 0 to 2^64 - 1.
        positions: encoding of positions: `auto`, `rice`, `rice-one`, `tokens`, `bitmap` or
            `classed`.
    """

    name: ClassVar[str] = "topk"
    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    values: str = field(default="f32", kw_only=True)
    scope: str = field(default="tensor", kw_only=True)
    seed: int = field(default=1, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class Stc(Codec):
    """Sparse Ternary Compression (arXiv 1903.02891): positions and signs of the largest elements, and one
    magnitude.

    `density`, `k`, `positions` as in `TopK`. The magnitude is the mean over the kept elements.
    """

    name: ClassVar[str] = "stc"
    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class Threshold(Codec):
    """The elements whose magnitude is at least `at`.

    `values`, `seed`, `positions` as in `TopK`.
    """

    name: ClassVar[str] = "threshold"
    at: float = 0.001
    values: str = field(default="f32", kw_only=True)
    seed: int = field(default=1, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class Sbc(Codec):
    """Sparse Binary Compression (arXiv 1805.08768): one value for the largest elements of one sign.

    `density`, `k`, `positions` as in `TopK`.
    """

    name: ClassVar[str] = "sbc"
    density: float | None = 0.001
    k: int | None = field(default=None, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class Sidco(Codec):
    """SIDCo (arXiv 2101.10761): elements above a threshold from a distribution fitted to the magnitudes.

    The number of kept elements is approximate.

    Attributes:
        fit: the fitted distributions: `gp`, `gamma-gp` or `exp`.
        stages: number of fits, each to the elements above the last threshold: 1 to 64; or `guard`, which
            keeps 0.9 to 1.1 times the target; or `authors`, the rule of the paper's authors.
        density, k, values, seed, positions: as in `TopK`.
    """

    name: ClassVar[str] = "sidco"
    density: float | None = 0.001
    k: int | None = field(default=None, kw_only=True)
    fit: str = field(default="gp", kw_only=True)
    stages: str | int = field(default="guard", kw_only=True)
    values: str = field(default="f32", kw_only=True)
    seed: int = field(default=1, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class RandK(Codec):
    """Random-k (arXiv 1809.07599): elements drawn at random. The stream holds the seed instead of positions.

    Attributes:
        scale: factor of the values: `n/k`, which is unbiased, or `1`.
        values: encoding of the values: `f32`, `f16` or `bf16`.
        seed: seed of the draw, 0 to 2^64 - 1.
        density, k: as in `TopK`.
    """

    name: ClassVar[str] = "randk"
    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    scale: str = field(default="n/k", kw_only=True)
    values: str = field(default="f32", kw_only=True)
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Chunked(Codec):
    """The same number of largest elements in each chunk (SparseLoCo, arXiv 2508.15706).

    Attributes:
        chunk: consecutive elements in a chunk, 1 to 2^32.
        kept: elements kept in each chunk, 1 to `chunk`.
        values: encoding of the values: `code2` or `sign`.
    """

    name: ClassVar[str] = "chunked"
    chunk: int = field(default=4096, kw_only=True)
    kept: int = field(default=64, kw_only=True)
    values: str = field(default="code2", kw_only=True)


@dataclass(frozen=True)
class Demo(Codec):
    """DeMo's transform (arXiv 2411.19870): the largest cosine coefficients of each chunk.

    Attributes:
        chunk: longest side of a chunk, 1 to 128. The side is the largest divisor of a dimension up to this
            length.
        kept: coefficients kept in each chunk, at least 1.
        values: encoding of the coefficients: `sign`, `f32`, `f16` or `bf16`.
    """

    name: ClassVar[str] = "demo"
    chunk: int = field(default=64, kw_only=True)
    kept: int = field(default=32, kw_only=True)
    values: str = field(default="sign", kw_only=True)


@dataclass(frozen=True)
class PowerSgd(Codec):
    """PowerSGD (arXiv 1905.13727): each matrix as the product of two factors.

    Attributes:
        rank: columns of a factor, at least 1.
        seed: seed of the matrix from which the power iteration starts, 0 to 2^64 - 1.
    """

    name: ClassVar[str] = "powersgd"
    rank: int = 4
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Natural(Codec):
    """Natural compression (arXiv 1905.10988): elements rounded at random to powers of two, without bias.

    Attributes:
        seed: seed of the rounding, 0 to 2^64 - 1.
        effort: `"default"`, or `"fast"`, which decodes up to 1.4 times as fast; streams are up to 1 % larger.
    """

    name: ClassVar[str] = "natural"
    seed: int = field(default=1, kw_only=True)
    effort: str = field(default="default", kw_only=True)


@dataclass(frozen=True)
class Qsgd(Codec):
    """QSGD (arXiv 1610.02132): elements rounded at random, without bias, to steps of their bucket's norm.

    Attributes:
        bits: bits of a level including its sign, 2 to 16.
        bucket: elements that share a norm, at least 2.
        norm: `l2` or `max`.
        seed: seed of the rounding, 0 to 2^64 - 1.
    """

    name: ClassVar[str] = "qsgd"
    bits: int = 4
    bucket: int = field(default=512, kw_only=True)
    norm: str = field(default="l2", kw_only=True)
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Dither(Codec):
    """Natural dithering (arXiv 1905.10988): elements rounded at random to zero or a power of two of a norm.

    Attributes:
        levels: number of powers of two, 1 to 255.
        bucket: elements that share a norm, at least 2.
        norm: `l1`, `l2` or `max`.
        seed: seed of the rounding, 0 to 2^64 - 1.
    """

    name: ClassVar[str] = "dither"
    levels: int = 8
    bucket: int = field(default=512, kw_only=True)
    norm: str = field(default="l2", kw_only=True)
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class TernGrad(Codec):
    """TernGrad (arXiv 1705.07878): elements rounded at random to zero or plus or minus one magnitude.

    The magnitude is the largest in the bucket.

    Attributes:
        clip: limit on magnitudes, in root mean squares of the bucket, at least 1; `inf` is no limit.
        bucket: elements that share a magnitude, at least 2.
        seed: seed of the rounding, 0 to 2^64 - 1.
    """

    name: ClassVar[str] = "terngrad"
    clip: float = 2.5
    bucket: int = field(default=4096, kw_only=True)
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Sign(Codec):
    """The sign of each element and the mean magnitude (arXiv 1901.09847).

    `group`: number of elements that share a mean, at least 2, or `tensor`.
    """

    name: ClassVar[str] = "sign"
    group: str | int = "tensor"


@dataclass(frozen=True)
class Int8(Codec):
    """Elements rounded to multiples of 1/127 of their group's largest magnitude.

    `group`: number of elements that share a magnitude, at least 2.
    """

    name: ClassVar[str] = "int8"
    group: int = 256


@dataclass(frozen=True)
class Delta(Codec):
    """The elements that differ from a base, lossless.

    `values`: `"ulp"` (default), differences in units of the last place, which is smallest, or
    `"overwrite"`, the new elements, which may be applied twice. `positions` as in `TopK`; with `"ulp"`,
    `"auto"` and `"classed"` predict positions from the base. Where more than a quarter of the elements change
    and that helps little, `"auto"` sends a difference for each element, which is faster. `digest`: digests of
    the tensors before and after, `"sum"` (default), `"blake3"` or `"both"`. Tensors on a CUDA device are
    compared there with `"blake3"`, and copied to the host with sums.
    """

    name: ClassVar[str] = "delta"
    values: str = field(default="ulp", kw_only=True)
    positions: str = field(default="auto", kw_only=True)
    digest: str = field(default="sum", kw_only=True)


CODECS: tuple[type[Codec], ...] = (
    Raw, Lossless, TopK, Stc, Threshold, Sbc, Sidco, RandK, Chunked, Demo, PowerSgd, Natural, Qsgd, Dither, TernGrad, Sign, Int8, Delta
)  # fmt: skip
"""All codecs, in the library's order."""


def spec_of(codec: Codec | str) -> str:
    """Returns the specification of a codec in canonical form."""
    return _native.canonical(codec.spec if isinstance(codec, Codec) else codec)


def numbered(codec: Codec | str, number: int) -> Codec | str:
    """Returns the codec with its seed advanced by `number`, modulo 2^64, for independent draws in each
    exchange.

    PowerSGD keeps its seed, which only starts its power iteration. Codecs without a seed are returned
    unchanged.
    """
    text = codec.spec if isinstance(codec, Codec) else codec
    name, _, rest = text.partition(":")
    of_name = next((c for c in CODECS if c.name == name), None)
    if name in ("powersgd", "stc") or of_name is None or "seed" not in {f.name for f in fields(of_name)}:
        return codec
    keys = dict(pair.split("=", 1) for pair in rest.split(",") if pair)
    keys["seed"] = str((int(keys.get("seed", "1")) + number) % (1 << 64))
    return f"{name}:" + ",".join(f"{key}={value}" for key, value in keys.items())
