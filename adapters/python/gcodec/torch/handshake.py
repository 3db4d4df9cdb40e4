"""The first message between ranks: what each of them is going to send.

Ranks with different settings would wait for each other, or fail in the middle of a stream.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from gcodec._native import __version__
from gcodec.errors import InputError
from gcodec.torch.names import Tensors

# In the order in which differences are reported.
_FIELDS = {
    "version": "the version of gcodec",
    "world": "the number of ranks",
    "codec": "the codec",
    "rules": "the value of rules",
    "feedback": "the value of feedback",
    "non_finite": "the value of non_finite",
    "step": "the step",
}


def greeting(tensors: Tensors, **settings: Any) -> bytes:
    """Returns this rank's message."""
    listed = [[name, dtype, list(shape)] for name, (dtype, shape) in tensors.items()]
    return json.dumps({"version": __version__, **settings, "tensors": listed}, sort_keys=True).encode()


def check(greetings: list[bytes]) -> None:
    """Raises InputError if the messages of all ranks, in their order, are not the same."""
    usual = Counter(greetings).most_common(1)[0][0]
    odd = next((rank for rank, greeting in enumerate(greetings) if greeting != usual), None)
    if odd is not None:
        like = greetings.index(usual)
        there, here = (_read(greetings, rank) for rank in (odd, like))
        what = _difference(there, here, f"on rank {odd}", f"on rank {like}")
        raise InputError(f"rank {odd} cannot train with rank {like}: {what}")


def _read(greetings: list[bytes], rank: int) -> dict[str, Any]:
    try:
        fields = json.loads(greetings[rank])
        if isinstance(fields, dict) and isinstance(fields.get("tensors"), list):
            return fields
    except ValueError:
        pass
    raise InputError(f"rank {rank} does not begin as this version of gcodec does: use one version on all ranks")


def _difference(one: dict[str, Any], other: dict[str, Any], on_one: str, on_other: str) -> str:
    for field, named in _FIELDS.items():
        if one.get(field) != other.get(field):
            return f"{named} is {one.get(field)} {on_one} and {other.get(field)} {on_other}"
    for number, (tensor, usual) in enumerate(zip(one["tensors"], other["tensors"], strict=False)):
        if tensor != usual:
            return f"tensor {number} is {_tensor(tensor)} {on_one} and {_tensor(usual)} {on_other}"
    return f"there are {len(one['tensors'])} tensors {on_one} and {len(other['tensors'])} {on_other}"


def _tensor(entry: list[Any]) -> str:
    name, dtype, shape = entry
    return f"{name!r} ({dtype}, {' x '.join(map(str, shape)) or 'scalar'})"
