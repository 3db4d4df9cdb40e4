"""Flower with frames instead of arrays of floats.

    app = ClientApp(mods=[gcodec.flower.mod(gcodec.TopK(density=0.01))])        # the client
    strategy = gcodec.flower.Compressed(FedAvg(), gcodec.Int8())                # the server

A client then sends what training changed, compressed, with error feedback; a server sends its arrays compressed. Either side alone
works too if the other one is compressed or plain: clients that send plain arrays are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from gcodec.codecs import Codec, numbered, spec_of
from gcodec.errors import GcodecError, InputError
from gcodec.feedback import Feedback
from gcodec.limits import Limits
from gcodec.oneshot import decode, encode
from gcodec.stream import UpdateHeader

__all__ = ["STYPE", "Compressed", "Mod", "mod"]

STYPE = "gcodec"
"""How an `Array` says that its bytes are a stream; it is the only one of its `ArrayRecord`, under this key."""

_STATE = "gcodec"

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
"""A client mod."""


def _is_stream(record: ArrayRecord) -> bool:
    return [array.stype for array in record.values()] == [STYPE]


def _stream(data: bytes) -> ArrayRecord:
    return ArrayRecord({STYPE: Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)})


def _arrays(record: ArrayRecord) -> dict[str, Any]:
    return {name: array.numpy() for name, array in record.items()}


def _decoded(record: ArrayRecord, limits: Limits | None) -> dict[str, Any]:
    (array,) = record.values()
    tensors: dict[str, Any] = decode(array.data, framework="numpy", limits=limits)
    return tensors


def _record(arrays: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def _rules(arrays: Mapping[str, Any], rules: Mapping[str, Codec | str], number: int) -> dict[str, Codec | str]:
    """The caller's rules; and integers without loss, whatever those say."""
    out = {glob: numbered(rule, number) for glob, rule in rules.items()}
    for name, array in arrays.items():
        if not _is_float(array):
            # As a pattern: what has a meaning in patterns stands for itself.
            literal = "".join(f"[{c}]" if c in "*?[" else c for c in name)
            out[literal] = "lossless"
    return out


def _is_float(array: Any) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


def _is_changed(base: Any, array: Any) -> bool:
    """Whether a difference says what an array is. FedAvg makes floats of integers, which clients then make integers again."""
    return _is_float(array) and bool(array.dtype == base.dtype)


def _checked(codec: Codec | str, rules: Mapping[str, Codec | str] | None) -> dict[str, Codec | str]:
    for one in (codec, *(rules or {}).values()):
        if spec_of(one).partition(":")[0] == "delta":
            raise InputError("the codec delta needs a base that both sides have: take another")
    return dict(rules or {})


def mod(
    codec: Codec | str,
    *,
    rules: Mapping[str, Codec | str] | None = None,
    feedback: bool = True,
    limits: Limits | None = None,
) -> Mod:
    """A client mod: the app gets arrays, whatever the server sent, and of the arrays that it answers with the changes are sent.

    Floats are sent as their difference from what came, under the same names; integers, and what came as another type, as they are. What a lossy codec leaves
    out is kept in the context's state and added in the next round. Answers without arrays of the names that came, such as those
    of an evaluation, pass as they are.

    Args:
        codec: any codec but `Delta`. Those that round or draw at random do so independently at each round and node.
        rules: other codecs for the arrays whose names match a pattern (`*.bias`); the last that matches counts.
        feedback: whether what is left out is added in the next round.
        limits: what to allow to the server.
    """
    own = _checked(codec, rules)

    def compressing(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        came: dict[str, dict[str, Any]] = {}
        for key, record in message.content.array_records.items():
            came[key] = _decoded(record, limits) if _is_stream(record) else _arrays(record)
            message.content[key] = _record(came[key])
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        for key, record in reply.content.array_records.items():
            base = next((arrays for arrays in came.values() if set(arrays) == set(record)), None)
            if base is not None:
                reply.content[key] = _stream(_update(_arrays(record), base, context))
        return reply

    def _update(arrays: dict[str, Any], base: dict[str, Any], context: Context) -> bytes:
        for name, array in arrays.items():
            if array.shape != base[name].shape:
                raise InputError(f"array {name!r} has shape {array.shape}, where {base[name].shape} came")
        changes = {n: a - base[n] if _is_changed(base[n], a) else a for n, a in arrays.items()}
        memory, kept = Feedback(), f"{_STATE}.residuals"
        if feedback and kept in context.state:
            memory.load_state_dict(_arrays(context.state.array_records[kept]))
        settings = context.state.config_records.get(_STATE, ConfigRecord({"rounds": 0}))
        rounds = int(settings["rounds"])  # type: ignore[arg-type]
        number = context.node_id + rounds
        data = encode(
            changes,
            numbered(codec, number),
            rules=_rules(changes, own, number),
            feedback=memory if feedback else None,
            header=UpdateHeader(round=rounds, sender=context.node_id % (1 << 64)),
        )
        if feedback:
            context.state[kept] = _record(memory.state_dict("numpy"))
        context.state[_STATE] = ConfigRecord({"rounds": rounds + 1})
        return data

    return compressing


class Compressed(Strategy):  # type: ignore[misc]
    """A strategy that sends its arrays compressed and takes compressed changes: around any strategy that aggregates arrays.

    The strategy inside sees plain arrays: its own, to which the changes of a client were added. So its weighting and its state
    are its own affair. A client's answer that is not a stream within the limits, or does not fit the arrays that were sent, is left
    out with a warning, as one that did not come.

    Args:
        strategy: Flower's `FedAvg`, for instance.
        codec: how arrays travel to the clients: `lossless`, or `Int8()` at a quarter of the bytes. The changes are added to the
            arrays as they were before that, so its losses do not add up.
        rules: other codecs for the arrays whose names match a pattern (`*.bias`); the last that matches counts.
        limits: what to allow to clients.
    """

    def __init__(
        self,
        strategy: Strategy,
        codec: Codec | str = "lossless",
        *,
        rules: Mapping[str, Codec | str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._strategy, self._codec, self._rules, self._limits = strategy, codec, _checked(codec, rules), limits
        self._sent: list[dict[str, Any]] = []

    def summary(self) -> None:
        """Says what the strategy inside says."""
        self._strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, compressed."""
        messages = list(self._strategy.configure_train(server_round, arrays, config, grid))
        self._sent = self._compress(messages, server_round)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy inside makes of the clients' arrays."""
        left = [reply for reply in replies if self._expand(reply)]
        arrays, metrics = self._strategy.aggregate_train(server_round, left)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, compressed."""
        messages = list(self._strategy.configure_evaluate(server_round, arrays, config, grid))
        self._compress(messages, server_round)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the strategy inside makes of it."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def _compress(self, messages: list[Message], server_round: int) -> list[dict[str, Any]]:
        """Compresses the arrays of messages, each record once; gives them as they were."""
        sent: dict[int, tuple[ArrayRecord, dict[str, Any], ArrayRecord]] = {}
        for message in messages:
            content = RecordDict(dict(message.content))
            for key, record in content.array_records.items():
                if id(record) not in sent:
                    arrays = _arrays(record)
                    data = encode(
                        arrays,
                        numbered(self._codec, server_round),
                        rules=_rules(arrays, self._rules, server_round),
                        header=UpdateHeader(round=server_round),
                    )
                    sent[id(record)] = (record, arrays, _stream(data))
                content[key] = sent[id(record)][2]
            message.content = content
        return [arrays for _, arrays, _ in sent.values()]

    def _expand(self, reply: Message) -> bool:
        """Makes arrays of a client's changes; False if they are none."""
        if reply.has_error():
            return True
        try:
            for key, record in reply.content.array_records.items():
                if _is_stream(record):
                    changes = _decoded(record, self._limits)
                    base = next((arrays for arrays in self._sent if set(arrays) == set(changes)), None)
                    if base is None:
                        raise InputError("its arrays have other names than those that were sent")
                    reply.content[key] = _record(_added(base, changes))
        except GcodecError as e:
            log(WARNING, "gcodec: the reply of node %s is left out: %s", reply.metadata.src_node_id, e)
            return False
        return True


def _added(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for name, array in base.items():
        if array.shape != changes[name].shape:
            raise InputError(f"array {name!r} has shape {changes[name].shape}, where {array.shape} was sent")
    return {n: a + changes[n] if _is_changed(a, changes[n]) else changes[n] for n, a in base.items()}
