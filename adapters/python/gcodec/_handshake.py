"""Messages between processes that train together: first what each of them is going to send, and later why one
cannot go on.

Processes with different settings would wait for each other, or fail in the middle of a stream.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from gcodec._native import __version__
from gcodec.errors import InputError

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Element types and shapes of tensors, by name."""

COMPRESS, FINISH = "compress its tensors", "decode the updates of this step"
"""The work of a process, for `failed`."""

# Bytes of an error's text that other processes get.
_TEXT = 2000

# In the order in which differences are reported.
_FIELDS = {
    "version": "the version of gcodec",
    "world": "the number of processes",
    "codec": "the codec",
    "rules": "the value of rules",
    "feedback": "the value of feedback",
    "non_finite": "the value of non_finite",
    "order": "the value of order",
    "limits": "the value of limits",
    "scaler": "the use of a scaler",
    "step": "the step",
}


def greeting(tensors: Tensors, **settings: Any) -> bytes:
    """Returns this process's message."""
    listed = [[name, dtype, list(shape)] for name, (dtype, shape) in tensors.items()]
    return json.dumps({"version": __version__, **settings, "tensors": listed}, sort_keys=True).encode()


def check(greetings: list[bytes], who: str = "rank") -> None:
    """Raises InputError if the messages of all processes, in their order, are not the same.

    who: the word for a process.
    """
    usual = Counter(greetings).most_common(1)[0][0]
    odd = next((rank for rank, greeting in enumerate(greetings) if greeting != usual), None)
    if odd is not None:
        like = greetings.index(usual)
        there, here = (_read(greetings, rank, who) for rank in (odd, like))
        what = _difference(there, here, f"on {who} {odd}", f"on {who} {like}")
        raise InputError(f"{who} {odd} cannot train with {who} {like}: {what}")


def text_of(error: BaseException) -> bytes:
    """Returns what other processes get of an error."""
    return (str(error) or type(error).__name__).encode()[:_TEXT]


def failed(process: int, doing: str, text: bytes, who: str = "rank") -> InputError:
    """Returns the error of the other processes when one has failed.

    doing: COMPRESS or FINISH. text: what `text_of` returned there. who: the word for a process.
    """
    return InputError(f"{who} {process} could not {doing}: {text.decode(errors='replace')}")


def _read(greetings: list[bytes], rank: int, who: str) -> dict[str, Any]:
    try:
        fields = json.loads(greetings[rank])
        if isinstance(fields, dict) and isinstance(fields.get("tensors"), list):
            return fields
    except ValueError:
        pass
    raise InputError(f"{who} {rank} does not begin as this version of gcodec does: use one version on all of them")


def _difference(one: dict[str, Any], other: dict[str, Any], on_one: str, on_other: str) -> str:
    for field, named in _FIELDS.items():
        mine, usual = one.get(field), other.get(field)
        if mine == usual:
            continue
        if isinstance(mine, dict) and isinstance(usual, dict):
            # Only what differs of several numbers.
            [key, *_] = [key for key in {**mine, **usual} if mine.get(key) != usual.get(key)]
            named, mine, usual = f"{named} ({key})", mine.get(key), usual.get(key)
        return f"{named} is {mine} {on_one} and {usual} {on_other}"
    names, others = ({entry[0] for entry in fields["tensors"]} for fields in (one, other))
    for more, fewer, on in ((names - others, others - names, on_one), (others - names, names - others, on_other)):
        if more and not fewer:
            return f"only {on} is there {min(more)!r}: there are {len(names)} tensors {on_one} and {len(others)} {on_other}"
    for number, (tensor, usual) in enumerate(zip(one["tensors"], other["tensors"], strict=False)):
        if tensor != usual:
            return f"tensor {number} is {_tensor(tensor)} {on_one} and {_tensor(usual)} {on_other}"
    return f"there are {len(one['tensors'])} tensors {on_one} and {len(other['tensors'])} {on_other}"


def _tensor(entry: list[Any]) -> str:
    name, dtype, shape = entry
    return f"{name!r} ({dtype}, {' x '.join(map(str, shape)) or 'scalar'})"
