"""Sum digests of tensors (section 6.1 of the format's text), computed where the tensors are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gcodec import _native
from gcodec._tensors import devices
from gcodec._tensors.dlpack import readable

P = 2**31 - 1
LANES = 4
_BIAS = 2**16
_LEVEL = 2**16
_COLUMNS = 2**22
"""Units of a product: 2^15 of a unit, times 2^15 of half a key, times these, are exact in float64."""
_UNITS = 2**22
"""Units that are converted at a time: 32 MiB on the device."""

_SLOWER = "digests of CUDA tensors are computed by PyTorch's operations, which takes longer"

Lanes = tuple[int, ...]
ZERO: Lanes = (0,) * LANES


def add(one: Lanes, other: Lanes) -> Lanes:
    return tuple((a + b) % P for a, b in zip(one, other, strict=True))


def subtract(one: Lanes, other: Lanes) -> Lanes:
    return tuple((a - b) % P for a, b in zip(one, other, strict=True))


def text(lanes: Lanes) -> str:
    """Returns 32 hexadecimal digits, as `gcodec digest` prints them."""
    return b"".join(lane.to_bytes(4, "little") for lane in lanes).hex()


def lanes(text: str) -> Lanes:
    """Reads what `text` returns; ValueError if it is nothing of the kind."""
    data = bytes.fromhex(text)
    found = tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, 4 * LANES, 4))
    if len(data) != 4 * LANES or max(found) >= P:
        raise ValueError(f"{text!r} is no sum digest")
    return found


@dataclass(frozen=True)
class Piece:
    """A part of a tensor, where it is."""

    tensor: Any
    name: str
    """Name of the whole tensor."""
    shape: Sequence[int]
    """Dimensions of the whole tensor."""
    offsets: Sequence[int]
    """First index of the part in each dimension."""


def shares(pieces: Sequence[Piece]) -> list[tuple[str, Lanes]]:
    """Returns, for each piece, its element type and its share in a sum over several tensors. Those on one
    CUDA device are digested by one launch there."""
    found: dict[int, tuple[str, Lanes]] = {}
    by_device: dict[int, list[int]] = {}
    for at, piece in enumerate(pieces):
        device = devices.cuda_device(piece.tensor)
        # A tensor without elements may name no device, and can be lent to any.
        if device is None or not devices.can_open(max(device, 0), _SLOWER):
            found[at] = _share(piece)
        else:
            by_device.setdefault(max(device, 0), []).append(at)
    for device, own in by_device.items():
        lent = devices.lend({str(at): pieces[at].tensor for at in own}, device, None)
        given = [(lent[str(at)], pieces[at].name, list(pieces[at].shape), list(pieces[at].offsets)) for at in own]
        found |= zip(own, _native.cuda_sum_shares(given), strict=True)
    return [found[at] for at in range(len(pieces))]


def _share(piece: Piece) -> tuple[str, Lanes]:
    if not _is_on_device(piece.tensor):
        tensor, declared = readable(piece.tensor)
        return _native.sum_share((piece.name, tensor, declared), list(piece.shape), list(piece.offsets))
    part = piece.tensor.detach()
    dtype = _name_of(part.dtype)
    own = of_torch(part, piece.offsets)
    weight = _native.sum_weight(piece.name, dtype, list(piece.shape))
    return dtype, tuple(a * b % P for a, b in zip(own, weight, strict=True))


def _name_of(dtype: Any) -> str:
    name = devices.name_of_torch(dtype)
    if name is None:
        raise TypeError(f"gcodec has no sum digest of elements of type {dtype} on a device: copy the tensor to the host")
    return name


def _is_on_device(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor) and x.device.type != "cpu"


def of_torch(x: Any, offsets: Sequence[int]) -> Lanes:
    """Returns the digest of a part of a tensor, computed by PyTorch on the part's device: for devices that
    are not CUDA's, and drivers too old for the kernels.

    The units of a row times the keys of their axis are a matrix product. Each key is two halves of 16 bits,
    so that float64 holds every sum exactly.
    """
    import torch

    if x.dim() == 0:
        x, offsets = x.reshape(1), (0,)
    per = max(x.element_size() // 2, 1)
    columns, device = x.shape[-1] * per, x.device
    if x.numel() == 0:
        return ZERO
    rows = _row_keys(x.shape[:-1], offsets[:-1], device)
    total = torch.zeros(LANES, dtype=torch.int64, device=device)
    for at in range(0, x.shape[-1], max(_COLUMNS // per, 1)):
        piece = x[..., at : at + max(_COLUMNS // per, 1)]
        place = (offsets[-1] + at) * per + torch.arange(piece.shape[-1] * per, device=device)
        keys = torch.stack([_keys(0, place, lane) for lane in range(LANES)], 1)
        # Half a key is from -2^15 to 2^15.
        low = (keys + 2**15 & 2**16 - 1) - 2**15
        halves = torch.cat([low, keys - low >> 16], 1).double()
        biased = keys.sum(0) % P * _BIAS % P
        flat = piece.reshape(-1, piece.shape[-1])
        step = max(1, _UNITS // (piece.shape[-1] * per))
        for row in range(0, flat.shape[0], step):
            own = flat[row : row + step]
            own = own.view(torch.int8) if own.element_size() == 1 else own.contiguous().view(torch.int16)
            products = (own.double() @ halves).long()
            sums = (products[:, :LANES] % P + products[:, LANES:] % P * 2**16 + biased) % P
            total = (total + (sums * rows[row : row + step] % P).sum(0)) % P
    return tuple(total.tolist())


def _row_keys(shape: Sequence[int], offsets: Sequence[int], device: Any) -> Any:
    """Returns the product of the keys of all axes but the last, for each row in row-major order."""
    import torch

    keys = torch.ones(1, LANES, dtype=torch.int64, device=device)
    for place, (size, first) in enumerate(zip(shape, offsets, strict=True)):
        axis, index = len(shape) - place, first + torch.arange(size, device=device)
        own = torch.stack([_keys(axis, index, lane) for lane in range(LANES)], 1)
        keys = (keys[:, None] * own[None] % P).reshape(-1, LANES)
    return keys


def _keys(axis: int, index: Any, lane: int) -> Any:
    """Returns the keys of indices on an axis, in one lane."""
    low, high = (index & _LEVEL - 1, 0), (index >> 16, 1)
    factors = [1 + _mixed(_wrapped(((2 * axis + level) * LANES + lane) << 56) + place) % (P - 1) for place, level in (low, high)]
    return factors[0] * factors[1] % P


def _mixed(n: Any) -> Any:
    """Returns output n of SplitMix64 with the seed 0, divided by 2. Products of int64 wrap."""
    z = (n + 1) * _wrapped(0x9E3779B97F4A7C15)
    z = (z ^ (z >> 30 & 2**34 - 1)) * _wrapped(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27 & 2**37 - 1)) * _wrapped(0x94D049BB133111EB)
    return (z ^ (z >> 31 & 2**33 - 1)) >> 1 & 2**63 - 1


def _wrapped(n: int) -> int:
    """Returns the int64 with the bits of a u64."""
    n %= 2**64
    return n - 2**64 if n >= 2**63 else n
