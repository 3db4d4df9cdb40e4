"""Codecs: a compressor and its settings, under the library's names and with its defaults.

Each is a small immutable value, to be compared, hashed, pickled, and written as `name:key=value,...`, which every function
takes as well. To round at random differently at each step, take another seed for each:
`dataclasses.replace(codec, seed=step)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from gcodec import _native
from gcodec.errors import InputError


@dataclass(frozen=True)
class Codec:
    """Any codec."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if getattr(self, "k", None) is not None:
            # A count takes the place of the density.
            object.__setattr__(self, "density", None)
        for f in fields(self):
            if {",", "="} & set(str(getattr(self, f.name))):
                raise InputError(f"key `{f.name}` of `{self.name}` is `{getattr(self, f.name)}`: one setting, not several")
        _native.canonical(self.spec)

    @property
    def spec(self) -> str:
        """What the library reads: the settings that differ from its defaults."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        keys = ",".join(f"{name}={value}" for name, value in given if value is not None)
        return f"{self.name}:{keys}" if keys else self.name

    @property
    def is_lossy(self) -> bool:
        """Whether the receiver may get other values than the sender had."""
        return _native.is_lossy(self.spec)

    def __str__(self) -> str:
        """The specification as the library writes it."""
        return _native.canonical(self.spec)


@dataclass(frozen=True)
class Raw(Codec):
    """The elements as they are."""

    name: ClassVar[str] = "raw"


@dataclass(frozen=True)
class Lossless(Codec):
    """The elements' byte planes, entropy coded."""

    name: ClassVar[str] = "lossless"


@dataclass(frozen=True)
class TopK(Codec):
    """The elements of largest magnitude (Deep Gradient Compression, arXiv 1712.01887, and before).

    Attributes:
        density: the part of them that is kept, more than 0, at most 1; or
        k: how many.
        values: what is sent of them: `f32`, `f16`, `bf16`, `pow2`, `sign`, `q4`.
        scope: among which they are the largest: `tensor` or `global`.
        seed: of the rounding to powers of two.
        positions: how positions are written: `auto`, `rice`, `rice-one`, `tokens`, `bitmap`.
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
    """Sparse Ternary Compression (arXiv 1903.02891): the largest elements, their signs and one mean magnitude."""

    name: ClassVar[str] = "stc"
    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class Threshold(Codec):
    """The elements whose magnitude is at least `at`; `values`, `seed`, `positions` as in `TopK`."""

    name: ClassVar[str] = "threshold"
    at: float = 0.001
    values: str = field(default="f32", kw_only=True)
    seed: int = field(default=1, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class Sbc(Codec):
    """Sparse Binary Compression (arXiv 1805.08768): one value for the largest elements of one sign."""

    name: ClassVar[str] = "sbc"
    density: float | None = 0.001
    k: int | None = field(default=None, kw_only=True)
    positions: str = field(default="auto", kw_only=True)


@dataclass(frozen=True)
class Sidco(Codec):
    """About as many elements of largest magnitude as asked for, by a fitted threshold (SIDCo, arXiv 2101.10761).

    Attributes:
        fit: what is fitted to the magnitudes: `gp`, `gamma-gp`, `exp`.
        stages: `guard`, `authors`, or a number from 1 to 64.
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
    """Elements drawn at random from a seed that stands for their positions (arXiv 1809.07599).

    Attributes:
        scale: what they are multiplied by: `n/k`, without bias, or `1`.
        values: `f32`, `f16` or `bf16`.
        seed: of the draw.
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
    """As many elements of largest magnitude of each chunk (SparseLoCo, arXiv 2508.15706).

    Attributes:
        chunk: consecutive elements of a chunk, 1 to 2^32.
        kept: how many are kept of each, 1 to `chunk`.
        values: `code2` or `sign`.
    """

    name: ClassVar[str] = "chunked"
    chunk: int = field(default=4096, kw_only=True)
    kept: int = field(default=64, kw_only=True)
    values: str = field(default="code2", kw_only=True)


@dataclass(frozen=True)
class Demo(Codec):
    """DeMo's transform (arXiv 2411.19870): the largest cosine coefficients of each chunk.

    Attributes:
        chunk: the longest side of a chunk, 1 to 128: the side is the largest divisor of a dimension that is not longer.
        kept: how many coefficients are kept of each, at least 1.
        values: what is sent of them: `sign`, `f32`, `f16` or `bf16`.
    """

    name: ClassVar[str] = "demo"
    chunk: int = field(default=64, kw_only=True)
    kept: int = field(default=32, kw_only=True)
    values: str = field(default="sign", kw_only=True)


@dataclass(frozen=True)
class PowerSgd(Codec):
    """PowerSGD's factors (arXiv 1905.13727): the product of two matrices of `rank` columns.

    Attributes:
        rank: columns of a factor, at least 1.
        seed: of the matrix that the power iteration begins with.
    """

    name: ClassVar[str] = "powersgd"
    rank: int = 4
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Natural(Codec):
    """Natural compression (arXiv 1905.10988): each element rounded at random to a power of two, without bias."""

    name: ClassVar[str] = "natural"
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Qsgd(Codec):
    """QSGD (arXiv 1610.02132): each element rounded at random, without bias, to a multiple of its bucket's norm.

    Attributes:
        bits: of a level with its sign, 2 to 16.
        bucket: elements that share a norm, at least 2.
        norm: `l2` or `max`.
        seed: of the rounding.
    """

    name: ClassVar[str] = "qsgd"
    bits: int = 4
    bucket: int = field(default=512, kw_only=True)
    norm: str = field(default="l2", kw_only=True)
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Dither(Codec):
    """Natural dithering (arXiv 1905.10988): each element rounded at random to zero or a power of two of its bucket's norm.

    Attributes:
        levels: how many powers, 1 to 255.
        bucket: elements that share a norm, at least 2.
        norm: `l1`, `l2` or `max`.
        seed: of the rounding.
    """

    name: ClassVar[str] = "dither"
    levels: int = 8
    bucket: int = field(default=512, kw_only=True)
    norm: str = field(default="l2", kw_only=True)
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class TernGrad(Codec):
    """TernGrad (arXiv 1705.07878): each element rounded at random to zero or plus or minus its bucket's largest magnitude.

    Attributes:
        clip: root mean squares of a bucket that magnitudes are limited to, at least 1; `inf` for no limit.
        bucket: elements that share a magnitude, at least 2.
        seed: of the rounding.
    """

    name: ClassVar[str] = "terngrad"
    clip: float = 2.5
    bucket: int = field(default=4096, kw_only=True)
    seed: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Sign(Codec):
    """The sign of each element and the mean magnitude (arXiv 1901.09847); `group`: `tensor`, or how many share a mean."""

    name: ClassVar[str] = "sign"
    group: str | int = "tensor"


@dataclass(frozen=True)
class Int8(Codec):
    """Each element rounded to a multiple of its group's largest magnitude / 127; `group`: at least 2."""

    name: ClassVar[str] = "int8"
    group: int = 256


@dataclass(frozen=True)
class Delta(Codec):
    """The elements that differ from a base, losslessly; `positions` as in `TopK`."""

    name: ClassVar[str] = "delta"
    positions: str = field(default="auto", kw_only=True)


CODECS: tuple[type[Codec], ...] = (
    Raw, Lossless, TopK, Stc, Threshold, Sbc, Sidco, RandK, Chunked, Demo, PowerSgd, Natural, Qsgd, Dither, TernGrad, Sign, Int8, Delta
)  # fmt: skip
"""Every codec, in the library's order."""


def spec_of(codec: Codec | str) -> str:
    """A codec's specification, as the library writes it."""
    return _native.canonical(codec.spec if isinstance(codec, Codec) else codec)


def numbered(codec: Codec | str, number: int) -> Codec | str:
    """The codec as it rounds and draws in the exchange of this number: independently of the others. Seeds wrap at 2^64.

    PowerSGD's seed stays: it is where a power iteration begins, and nothing is drawn from it that has a bias.
    """
    text = codec.spec if isinstance(codec, Codec) else codec
    name, _, rest = text.partition(":")
    of_name = next((c for c in CODECS if c.name == name), None)
    if name in ("powersgd", "stc") or of_name is None or "seed" not in {f.name for f in fields(of_name)}:
        return codec
    keys = dict(pair.split("=", 1) for pair in rest.split(",") if pair)
    keys["seed"] = str((int(keys.get("seed", "1")) + number) % (1 << 64))
    return f"{name}:" + ",".join(f"{key}={value}" for key, value in keys.items())
