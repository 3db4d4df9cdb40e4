"""Flower with compressed arrays.

    app = ClientApp(mods=[gcodec.engines.flower.mod(gcodec.TopK(density=0.01))])        # the client
    strategy = gcodec.engines.flower.Compressed(FedAvg(), gcodec.Int8())                # the server

The client sends the changes of training, compressed with error feedback. The server sends its arrays
compressed. Either side also works with an uncompressed other side: the arrays of plain clients pass
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from gcodec._tensors.update import check_codecs, check_rules
from gcodec.codecs import Codec, numbered
from gcodec.errors import GcodecError, InputError
from gcodec.feedback import Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.oneshot import decode, encode
from gcodec.options import Options, resolve, trainers_feedback

__all__ = ["STYPE", "Compressed", "Mod", "mod"]

STYPE = "gcodec"
"""Type of an `Array` whose bytes are a stream, and its key in the `ArrayRecord`, which holds no other."""

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
    """Returns the caller's rules for this exchange. Integers are lossless, whatever the rules say."""
    out = {glob: numbered(rule, number) for glob, rule in rules.items()}
    for name, array in arrays.items():
        if not _is_float(array):
            # The name as a pattern, with its special characters quoted.
            literal = "".join(f"[{c}]" if c in "*?[" else c for c in name)
            out[literal] = "lossless"
    return out


def _is_float(array: Any) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


def _is_changed(base: Any, array: Any) -> bool:
    """Whether an array is sent as its difference from `base`: floats of the same type as the base.

    FedAvg turns integers into floats, and clients turn them back.
    """
    return _is_float(array) and bool(array.dtype == base.dtype)


def mod(codec: Codec | str, **options: Unpack[Options]) -> Mod:
    """Returns a client mod: the app gets plain arrays, and the changes in the arrays of its reply are sent
    compressed.

    A float array is sent as its difference from the received array of that name. Integers, and arrays whose
    type changed, are sent whole. The residuals of a lossy codec are kept in the context's state.
    Replies without arrays of the received names, such as those of an evaluation, pass unchanged.

    Args:
        codec: any codec but `Delta`. Codecs that round or draw at random do so independently at each round
            and node.
        options: see `gcodec.Options`. Used: rules, feedback (True or False; default True), non_finite,
            limits (on the server's streams).
    """
    chosen = resolve("gcodec.engines.flower.mod", ("rules", "feedback", "non_finite", "limits"), options)
    own = dict(chosen.rules or {})
    check_codecs("gcodec.engines.flower.mod", codec, own)
    feedback = trainers_feedback("gcodec.engines.flower.mod", chosen.feedback)

    def compressing(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        came: dict[str, dict[str, Any]] = {}
        for key, record in message.content.array_records.items():
            came[key] = _decoded(record, chosen.limits) if _is_stream(record) else _arrays(record)
            message.content[key] = _record(came[key])
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        names = [name for record in reply.content.array_records.values() for name in record]
        if names:
            check_rules("gcodec.engines.flower.mod", own, names)
        for key, record in reply.content.array_records.items():
            base = next((arrays for arrays in came.values() if set(arrays) == set(record)), None)
            if base is not None:
                reply.content[key] = _stream(_update(_arrays(record), base, context))
        return reply

    def _update(arrays: dict[str, Any], base: dict[str, Any], context: Context) -> bytes:
        for name, array in arrays.items():
            if array.shape != base[name].shape:
                raise InputError(f"the app returns array {name!r} of shape {array.shape}; the server sent {base[name].shape}")
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
            non_finite=chosen.non_finite,
        )
        if feedback:
            context.state[kept] = _record(memory.state_dict("numpy"))
        context.state[_STATE] = ConfigRecord({"rounds": rounds + 1})
        return data

    return compressing


class Compressed(Strategy):  # type: ignore[misc]
    """A strategy that sends arrays compressed and takes compressed changes, around any strategy that
    aggregates arrays.

    The inner strategy sees plain arrays: its own arrays with the changes of a client added. Its weighting and
    its state are not affected. A client's reply that is not a stream within the limits, or does not fit the
    arrays that were sent, is left out with a warning.

    Args:
        strategy: the inner strategy, for instance Flower's `FedAvg`.
        codec: codec of the arrays that clients get: `lossless`, or `Int8()` at a quarter of the bytes.
            Changes are added to the arrays before compression, so losses do not accumulate. Default:
            `lossless`.
        options: see `gcodec.Options`. Used: rules, non_finite, limits (on the clients' streams).
    """

    def __init__(
        self, strategy: Strategy, codec: Codec | str = "lossless", **options: Unpack[Options]
    ) -> None:
        self._options = resolve("gcodec.engines.flower.Compressed", ("rules", "non_finite", "limits"), options)
        self._strategy, self._codec, self._rules = strategy, codec, dict(self._options.rules or {})
        check_codecs("gcodec.engines.flower.Compressed", codec, self._rules)
        self._sent: list[dict[str, Any]] = []

    def summary(self) -> None:
        """Logs the summary of the inner strategy."""
        self._strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the messages of the inner strategy, compressed."""
        messages = list(self._strategy.configure_train(server_round, arrays, config, grid))
        self._sent = self._compress(messages, server_round)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the result of the inner strategy for the clients' arrays."""
        left = [reply for reply in replies if self._expand(reply)]
        arrays, metrics = self._strategy.aggregate_train(server_round, left)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the messages of the inner strategy, compressed."""
        messages = list(self._strategy.configure_evaluate(server_round, arrays, config, grid))
        self._compress(messages, server_round)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Returns the result of the inner strategy."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def _compress(self, messages: list[Message], server_round: int) -> list[dict[str, Any]]:
        """Compresses the arrays of messages, each record once, and returns the arrays before compression."""
        sent: dict[int, tuple[ArrayRecord, dict[str, Any], ArrayRecord]] = {}
        records = [record for message in messages for record in message.content.array_records.values()]
        if names := {name for record in records for name in record}:
            check_rules("gcodec.engines.flower.Compressed", self._rules, names)
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
                        non_finite=self._options.non_finite,
                    )
                    sent[id(record)] = (record, arrays, _stream(data))
                content[key] = sent[id(record)][2]
            message.content = content
        return [arrays for _, arrays, _ in sent.values()]

    def _expand(self, reply: Message) -> bool:
        """Replaces a client's changes by arrays. Returns False if the reply is not usable."""
        if reply.has_error():
            return True
        try:
            for key, record in reply.content.array_records.items():
                if _is_stream(record):
                    changes = _decoded(record, self._options.limits)
                    base = next((arrays for arrays in self._sent if set(arrays) == set(changes)), None)
                    if base is None:
                        raise InputError("its arrays do not have the names that were sent")
                    reply.content[key] = _record(_added(base, changes))
        except GcodecError as e:
            log(WARNING, "gcodec: the reply of node %s is left out: %s", reply.metadata.src_node_id, e)
            return False
        return True


def _added(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for name, array in base.items():
        if array.shape != changes[name].shape:
            raise InputError(f"the client's array {name!r} has shape {changes[name].shape}; {array.shape} was sent")
    return {n: a + changes[n] if _is_changed(a, changes[n]) else changes[n] for n, a in base.items()}
