"""The mean of updates over processes, each of which sends its stream to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import jax

from gcodec._handshake import COMPRESS, FINISH, Tensors, check, failed, greeting, text_of
from gcodec.codecs import Codec, spec_of
from gcodec.errors import InputError
from gcodec.limits import Limits
from gcodec.oneshot import decode
from gcodec.options import Chosen
from gcodec.reduction import reduce

Exchange = Callable[[bytes], Sequence[bytes]]
"""A function that sends this process's bytes to all, and returns those of all, everywhere in the same
order."""

# A message is this byte, a digest of the settings of its process, and a stream or one of the two others,
# which begin with another byte than a stream.
_MARK, _DIGEST = b"\2", 16
_NOT_FINITE, _FAILED = b"\0", b"\1"
# The second message of a step, unless the process has failed: whether it has the mean, or messages that do
# not begin as its own.
_DONE, _DIFFERS = b"\2", b"\3"


class NotFinite(Exception):
    """An update is not finite, or the mean is not."""


class Settings:
    """What must be the same in all processes, beside the tensors and the step."""

    def __init__(self, codec: Codec | str, chosen: Chosen, feedback: bool) -> None:
        order = chosen.order
        self._settings: dict[str, Any] = {
            "codec": spec_of(codec),
            "rules": [(glob, spec_of(rule)) for glob, rule in (chosen.rules or {}).items()],
            "feedback": feedback,
            "non_finite": chosen.non_finite,
            "order": order if order is None or isinstance(order, str) else list(order),
            "limits": asdict(chosen.limits or Limits()),
        }

    def greeting(self, tensors: Tensors, step: int) -> bytes:
        """Returns the message by which processes compare their settings."""
        return greeting(tensors, world=jax.process_count(), step=step, **self._settings)


def mean_of(
    exchange: Exchange, hello: bytes, made: Callable[[], bytes | None], like: Any, limits: Limits | None
) -> tuple[Any, Any]:
    """Returns this process's update as a receiver decodes it, and the mean of all processes, in NumPy arrays.

    Args:
        hello: what `Settings.greeting` returned.
        made: returns this process's stream; None if its update is not finite, and that is to be propagated.
        like: a tree with the structure of the updates.

    Raises:
        NotFinite: the update of a process is not finite. All processes raise.
        InputError: the settings of a process differ, or it could not compress its update or decode those of
            all. All processes raise.
    """
    head = _MARK + blake2b(hello, digest_size=_DIGEST).digest()
    error: Exception | None = None
    try:
        stream = made()
        data = _NOT_FINITE if stream is None else stream
    except Exception as e:
        error, data = e, _FAILED + text_of(e)
    messages = [bytes(one) for one in exchange(head + data)]
    result, vote = None, _DONE
    if not all(one.startswith(head) for one in messages):
        vote = _DIFFERS
    elif error is None:
        streams = [one[len(head) :] for one in messages]
        try:
            if all(one[:1] not in (_NOT_FINITE, _FAILED) for one in streams):
                mean = reduce(streams, mean=True, limits=limits).tree(like, "numpy")
                result = decode(data, like=like, framework="numpy"), mean
        except Exception as e:
            # The others may have decoded them.
            error = e
    if error is not None:
        vote = _FAILED + text_of(error)
    votes = [bytes(one) for one in exchange(vote)]
    if _DIFFERS in votes:
        # All processes see that, and say more.
        check([bytes(one) for one in exchange(hello)], "process")
        raise InputError(f"process {votes.index(_DIFFERS)} received other bytes than were sent to it")
    if error is not None:
        raise error
    for process, (one, message) in enumerate(zip(votes, messages, strict=True)):
        if one != _DONE:
            doing = COMPRESS if message[len(head) :].startswith(_FAILED) else FINISH
            raise failed(process, doing, one[1:], "process")
    if result is None:
        raise NotFinite
    return result


def process_exchange(data: bytes) -> list[bytes]:
    """Exchanges bytes between the processes of `jax.distributed`, in the order of their numbers."""
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return [data]
    sizes = multihost_utils.process_allgather(np.array([len(data)], np.int32)).reshape(-1).tolist()
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    gathered = multihost_utils.process_allgather(padded)
    return [row[:size].tobytes() for row, size in zip(gathered, sizes, strict=True)]
