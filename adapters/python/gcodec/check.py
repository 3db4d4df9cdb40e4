"""Do an engine's weights equal the trainer's, bit for bit? Sum digests, computed where the weights are.

    expected = gcodec.check.digest(trainer.state_dict())               # also `gcodec digest --json` of a file
    found = gcodec.check.digest(engine.named_parameters(), layout)     # on each rank
    for line in expected.differences(gcodec.check.merge(found_of_each_rank)):
        print(line)                                                    # model.norm.weight: other elements

A digest is 16 bytes for each tensor (section 6.1 of the format's text). It depends neither on the device, nor
on the order of the elements in memory, nor on how a tensor is divided: the digests of shards add up to the
tensor's. A layout says which tensors of the checkpoint an engine's fused, stacked or transposed parameter
holds.

Digests find accidents, such as damage, stale or missing shards, and swapped tensors. They are no protection
against someone who wants other weights to have the same digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

from gcodec import units
from gcodec._tensors import sums
from gcodec._tensors.dlpack import local
from gcodec._tensors.trees import named_tensors
from gcodec.errors import InputError
from gcodec.shards import place_of

__all__ = ["Digests", "Part", "Region", "add", "bisect", "digest", "fused", "merge", "region", "rows", "views"]

_FORMAT = "gcodec-digests 1"


@dataclass(frozen=True)
class Part:
    """Where a parameter of an engine holds a tensor of the checkpoint, or a part of one."""

    name: str
    """Name of the tensor in the checkpoint."""
    index: tuple[int | slice, ...] = ()
    """The part in the parameter, as in `parameter[index]`. Default: all of it."""
    axes: tuple[int, ...] | None = None
    """The part's axes in the order of the checkpoint's: (1, 0) if the engine holds the transposed matrix."""
    shape: tuple[int, ...] | None = None
    """Dimensions of the whole tensor. Default: those of the part, which is then the whole tensor."""
    offsets: tuple[int, ...] | None = None
    """First index of the part in each dimension of the whole tensor. Default: zeros."""


Layout = Mapping[str, Sequence[Part]]
"""The parts that each parameter of an engine holds. A parameter that is not in it is a tensor of its own
name; one with no parts is left out."""


def fused(
    shape: Sequence[int], sizes: Mapping[str, int], *, dim: int = 0, rank: int = 0, world: int = 1
) -> list[Part]:
    """Returns the parts of a parameter that has several tensors one after another, such as q, k and v.

    Args:
        shape: dimensions of the parameter on this rank.
        sizes: of each tensor of the checkpoint, in order, its whole size along `dim`.
        dim: the dimension along which they follow each other.
        rank, world: this rank of tensor parallelism holds an equal share of each tensor along `dim`.

    Raises:
        InputError: the sizes do not add up to the dimension, or are not divided by `world`.
    """
    if any(size % world for size in sizes.values()) or sum(sizes.values()) != world * shape[dim]:
        raise InputError(f"sizes {dict(sizes)} do not fill dimension {dim} of {tuple(shape)} on {world} ranks")
    parts, start = [], 0
    for name, size in sizes.items():
        own = size // world
        index = (slice(None),) * dim + (slice(start, start + own),)
        whole = (*shape[:dim], size, *shape[dim + 1 :])
        offsets = (0,) * dim + (rank * own,) + (0,) * (len(shape) - dim - 1)
        parts.append(Part(name, index, shape=whole, offsets=offsets))
        start += own
    return parts


@dataclass(frozen=True)
class Region:
    """The digest of a box of elements of a tensor."""

    name: str
    """Name of the whole tensor."""
    dtype: str
    whole: tuple[int, ...]
    """Dimensions of the whole tensor."""
    offsets: tuple[int, ...]
    """First index in each dimension."""
    shape: tuple[int, ...]
    """Dimensions of the box."""
    sum: str
    """The share in a sum over several tensors: 32 hexadecimal digits."""


def region(fields: Mapping[str, Any]) -> Region:
    """Returns the region of `dataclasses.asdict(region)`, also where JSON made lists of its tuples."""
    return Region(**{**fields, **{key: tuple(fields[key]) for key in ("whole", "offsets", "shape")}})


@dataclass(frozen=True)
class Digests:
    """Digests of tensors, or of their parts."""

    regions: tuple[Region, ...]

    @property
    def sum(self) -> str:
        """The sum of all, as `gcodec digest` prints it: also the `state` of a version with these tensors."""
        return sums.text(_total(self.regions))

    def tensor(self, name: str) -> str:
        """Returns the digest of a tensor: the sum of its parts.

        Raises:
            InputError: there is no such tensor.
        """
        own = self._by_name().get(name)
        if own is None:
            raise InputError(f"there is no digest of {name!r}")
        return sums.text(_total(own))

    def units(self) -> dict[str, str]:
        """Returns the digest of each quantised weight together with its scales (`gcodec.units.find`): the sum
        of theirs.

        A digest of the elements alone would not tell whether they are read with scales of their version.
        """
        own = self._by_name()
        found = units.find(own)
        return {unit: sums.text(_total(one for name in names for one in own[name])) for unit, names in found.items()}

    def json(self) -> str:
        """Returns what `gcodec digest --json` prints of these tensors, for `gcodec verify --against-digests`.

        Raises:
            InputError: a part of a tensor is missing.
        """
        tensors = {}
        for name, own in self._by_name().items():
            if (missing := _missing(own)) is not None:
                raise InputError(f"{name}: {missing}")
            tensors[name] = {"dtype": own[0].dtype, "shape": list(own[0].whole), "sum": sums.text(_total(own))}
        return json.dumps({"format": _FORMAT, "sum": self.sum, "tensors": dict(sorted(tensors.items()))}, indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads what `json` or `gcodec digest --json` made.

        Raises:
            InputError: it is something else, or lacks a tensor.
        """
        try:
            document = json.loads(text)
            if document["format"] != _FORMAT:
                raise InputError(f"digests of the format {document['format']!r}, not {_FORMAT!r}")
            regions = []
            for name, one in document["tensors"].items():
                shape = tuple(int(size) for size in one["shape"])
                digits = sums.text(sums.lanes(one["sum"]))
                regions.append(Region(name, str(one["dtype"]), shape, (0,) * len(shape), shape, digits))
            found = cls(tuple(regions))
            complete = found.sum == document["sum"]
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise InputError(f"not the output of `gcodec digest --json`: {e!r}") from e
        if not complete:
            raise InputError("the sum is not that of the tensors' digests")
        return found

    def differences(self, found: Digests) -> list[str]:
        """Returns what is different in `found`, a line for each tensor; none if all weights are equal.

        Tensors are equal if their names, types, shapes and bits are. Parts that several ranks hold count
        once, and have to be equal on all of them.
        """
        expected, here, lines = self._by_name(), found._by_name(), []
        for name, own in expected.items():
            theirs = here.get(name)
            if theirs is None:
                lines.append(f"{name}: missing")
                continue
            kinds = [(one.dtype, one.whole) for one in (own[0], theirs[0])]
            if kinds[0] != kinds[1]:
                lines.append("{}: {} {} in place of {} {}".format(name, *_flat(kinds[1]), *_flat(kinds[0])))
            elif (missing := _missing(theirs)) is not None:
                lines.append(f"{name}: {missing}")
            elif not _agree(theirs):
                lines.append(f"{name}: ranks hold different elements in the same place")
            elif _total(own) != _total(theirs):
                lines.append(f"{name}: other elements")
        lines.extend(f"{name}: not expected" for name in here if name not in expected)
        return lines

    def _by_name(self) -> dict[str, list[Region]]:
        found: dict[str, list[Region]] = {}
        for one in self.regions:
            found.setdefault(one.name, []).append(one)
        return found


def _flat(kind: tuple[str, tuple[int, ...]]) -> tuple[str, list[int]]:
    return kind[0], list(kind[1])


def _box(one: Region) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return one.name, one.offsets, one.shape


def _distinct(regions: Iterable[Region]) -> list[Region]:
    """Returns one region for each box."""
    return list({_box(one): one for one in regions}.values())


def _agree(regions: Iterable[Region]) -> bool:
    """Whether regions of the same box have the same digest."""
    found: dict[Any, str] = {}
    return all(found.setdefault(_box(one), one.sum) == one.sum for one in regions)


def _total(regions: Iterable[Region]) -> sums.Lanes:
    total = sums.ZERO
    for one in _distinct(regions):
        total = sums.add(total, sums.lanes(one.sum))
    return total


def _missing(regions: list[Region]) -> str | None:
    """Returns what is wrong with the parts of a tensor; None if they are all of it."""
    if any((one.dtype, one.whole) != (regions[0].dtype, regions[0].whole) for one in regions):
        return "its parts are of different types or tensors"
    count, whole = sum(prod(one.shape) for one in _distinct(regions)), prod(regions[0].whole)
    if count < whole:
        return f"{whole - count} of {whole} elements are missing"
    return f"{count - whole} elements are in several parts" if count > whole else None


def merge(found: Iterable[Digests]) -> Digests:
    """Returns the digests of all ranks together."""
    return Digests(tuple(one for digests in found for one in digests.regions))


def digest(parameters: Any, layout: Layout | None = None) -> Digests:
    """Returns the digests of tensors, computed on their devices.

    Tensors on a CUDA device stay there, and one launch digests all of them: 32 bytes of each cross the bus.
    DTensors count as the shard that this rank holds. Parameters that are the same tensor, such as tied
    weights, are in `parameters` once, as `named_parameters` gives them.

    Args:
        parameters: tensors by name: a `state_dict`, `named_parameters()` or a tree, as in `gcodec.encode`.
        layout: what the parameters hold. Default: each is a tensor of the checkpoint with its own name.

    Raises:
        InputError: the layout names a parameter that is not there, or a part that does not fit.
        TypeError: gcodec has no digest of an element type on its device.
    """
    named = named_tensors(parameters)
    if missing := [name for name in layout or {} if name not in named]:
        raise InputError(f"the layout has {missing[0]!r}, which is no parameter")
    return _digested(piece for name, x in named.items() for piece in _pieces(name, x, layout, None))


def _digested(pieces: Iterable[sums.Piece]) -> Digests:
    own = list(pieces)
    regions = []
    for piece, (dtype, lanes) in zip(own, sums.shares(own), strict=True):
        shape = tuple(piece.tensor.shape)
        regions.append(Region(piece.name, dtype, tuple(piece.shape), tuple(piece.offsets), shape, sums.text(lanes)))
    return Digests(tuple(regions))


def _pieces(name: str, x: Any, layout: Layout | None, rows: tuple[str, int, int] | None) -> Iterator[sums.Piece]:
    """Returns the parts of a parameter. `rows`: only these rows of the tensor of this name."""
    place = place_of(name, x)
    for part in (layout or {}).get(name, [Part(name)]):
        if rows is not None and part.name != rows[0]:
            continue
        own = local(x)
        try:
            own = own[part.index] if part.index else own
            own = own if part.axes is None else _permuted(own, part.axes)
        except (IndexError, ValueError, RuntimeError, TypeError) as e:
            raise InputError(f"{part} does not fit the parameter {name!r} of shape {tuple(x.shape)}: {e}") from e
        shape = tuple(own.shape)
        whole, offsets = part.shape or shape, part.offsets or (0,) * len(shape)
        if place is not None and name not in (layout or {}):
            whole, offsets = tuple(place[0]), tuple(place[1])
        fits = len(whole) == len(offsets) == len(shape)
        if not fits or any(at < 0 or at + size > all for at, size, all in zip(offsets, shape, whole, strict=True)):
            raise InputError(f"a part of shape {shape} at {offsets} is not inside {part.name!r} of shape {whole}")
        if rows is not None and shape:
            first, end = max(rows[1], offsets[0]), min(rows[2], offsets[0] + shape[0])
            if first >= end:
                continue
            own = own[first - offsets[0] : end - offsets[0]]
            offsets = (first, *offsets[1:])
        yield sums.Piece(own, part.name, whole, offsets)


def views(parameters: Any, layout: Layout | None = None) -> dict[str, Any]:
    """Returns the tensors of the checkpoint that parameters hold, as views of their memory: what a
    `gcodec.sync.Receiver` changes in place.

    Raises:
        InputError: as `digest`; or a parameter holds only a part of a tensor.
    """
    found: dict[str, Any] = {}
    for own, x in named_tensors(parameters).items():
        for piece in _pieces(own, x, layout, None):
            if tuple(piece.shape) != tuple(piece.tensor.shape) or piece.name in found:
                raise InputError(f"{own!r} holds only a part of {piece.name!r} of shape {tuple(piece.shape)}")
            found[piece.name] = piece.tensor
    return found


def _permuted(x: Any, axes: tuple[int, ...]) -> Any:
    return x.permute(axes) if hasattr(x, "permute") else x.transpose(axes)


def rows(parameters: Any, name: str, first: int, end: int, layout: Layout | None = None) -> str:
    """Returns the digest of the rows `first` to `end` (exclusive) of a tensor of the checkpoint: its share of
    what these parameters hold.

    Raises:
        InputError: as `digest`.
    """
    named = named_tensors(parameters)
    found = _digested(piece for own, x in named.items() for piece in _pieces(own, x, layout, (name, first, end)))
    return sums.text(_total(found.regions))


def bisect(
    count: int, expected: Callable[[int, int], str], found: Callable[[int, int], str], *, most: int = 8
) -> list[tuple[int, int]]:
    """Returns the ranges of rows in which two tensors differ: first row, and end. Each range is one row, or
    several that differ one after another.

    The digests of two halves add up to that of the whole, so that each step asks for one half:
    2 log2(`count`) requests for a row.

    Args:
        count: rows of the tensor.
        expected, found: give the digest of the rows from the first to the end (exclusive), as `rows` does;
            that of several ranks is the sum of theirs (`add`).
        most: differing rows to look for one by one. Then ranges that differ are not divided any more.
    """
    differing: list[tuple[int, int]] = []
    steps = 0

    def walk(first: int, end: int, ours: sums.Lanes, theirs: sums.Lanes) -> None:
        nonlocal steps
        if ours == theirs:
            return
        if end - first == 1 or steps >= most:
            steps += 1
            if differing and differing[-1][1] == first:
                differing[-1] = (differing[-1][0], end)
            else:
                differing.append((first, end))
            return
        middle = (first + end) // 2
        left = [sums.lanes(ask(first, middle)) for ask in (expected, found)]
        walk(first, middle, *left)
        walk(middle, end, sums.subtract(ours, left[0]), sums.subtract(theirs, left[1]))

    if count > 0:
        walk(0, count, sums.lanes(expected(0, count)), sums.lanes(found(0, count)))
    return differing


def add(digests: Iterable[str]) -> str:
    """Returns the sum of digests."""
    total = sums.ZERO
    for one in digests:
        total = sums.add(total, sums.lanes(one))
    return sums.text(total)
