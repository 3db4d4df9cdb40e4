"""Compressed updates in JAX: an optax transformation, and an exchange between processes.

    optimizer = optax.chain(gcodec.jax.compress(gcodec.TopK(density=0.01)), optax.sgd(0.1))

`gcodec.encode` and `gcodec.decode` handle pytrees without this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from gcodec.codecs import Codec, numbered, spec_of
from gcodec.errors import InputError
from gcodec.header import UpdateHeader
from gcodec.oneshot import decode, encode
from gcodec.options import OptionKeywords, Options, resolve, trainers_feedback
from gcodec.reduction import reduce

__all__ = ["CompressState", "Exchange", "compress", "process_exchange"]

Exchange = Callable[[bytes], Sequence[bytes]]
"""A function that sends this process's stream to all, and returns all streams in the same order
everywhere."""


class CompressState(NamedTuple):
    """The state of `compress`: a pytree, for checkpoints and `jax.jit`."""

    count: Any
    """Number of updates so far: a scalar."""
    residual: Any
    """Residuals: a tree with the structure of the updates, in f32; `()` without error feedback."""


def compress(
    codec: Codec | str,
    options: Options | None = None,
    *,
    exchange: Exchange | None = None,
    **keywords: Unpack[OptionKeywords],
) -> Any:
    """Returns an `optax.GradientTransformation` that gives each update as a receiver decodes it, with error
    feedback.

    Put it first in an `optax.chain`. Without `exchange` it shows the effect of compression on training in one
    process, also inside `jax.jit`. With `exchange` the result is the mean of the updates of all processes,
    the same bits everywhere; call it outside `jax.jit`, because the exchange runs on the host.

    Args:
        codec: any codec but `Delta`. Codecs that round or draw at random do so independently at each step and
            process.
        options, keywords: see `gcodec.Options`. Used: rules, feedback (True or False; default True), order,
            limits (on the streams of other processes).
        exchange: how streams travel, for instance `process_exchange`. Default: None, one process.

    Raises:
        InputError: the codec is `Delta`; `exchange` is called inside a traced function; or the codec cannot
            take an update.
    """
    import optax  # type: ignore[import-untyped]

    chosen = resolve("gcodec.jax.compress", ("rules", "feedback", "order", "limits"), options, keywords)
    feedback = trainers_feedback("gcodec.jax.compress", chosen.feedback)
    rules = chosen.rules or {}
    for one in (codec, *rules.values()):
        if spec_of(one).partition(":")[0] == "delta":
            raise InputError("the codec delta needs a base, which an update does not have: use another codec")

    def init(params: Any) -> CompressState:
        zeros = jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params)
        return CompressState(jnp.zeros((), jnp.int32), zeros if feedback else ())

    def host(count: Any, updates: Any) -> tuple[Any, Any]:
        """Returns this process's update as a receiver decodes it, and the mean of all processes: NumPy
        arrays."""
        sender, world = (jax.process_index(), jax.process_count()) if exchange else (0, 1)
        number = int(count) * world + sender
        data = encode(
            updates,
            numbered(codec, number),
            rules={glob: numbered(rule, number) for glob, rule in rules.items()},
            header=UpdateHeader(step=int(count), sender=sender),
            order=chosen.order,
        )
        own = decode(data, like=updates, framework="numpy")
        if exchange is None:
            return own, own
        return own, reduce(exchange(data), mean=True, limits=chosen.limits).tree(updates, "numpy")

    def callback(count: Any, updates: Any) -> Any:
        return host(count, jax.tree.map(jax.device_get, updates))[0]

    def update(updates: Any, state: CompressState, params: Any = None, **_: Any) -> tuple[Any, CompressState]:
        del params
        wanted = jax.tree.map(lambda u: jnp.asarray(u, jnp.float32), updates)
        if feedback:
            wanted = jax.tree.map(jnp.add, wanted, state.residual)
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((updates, state)))
        if exchange is None:
            shapes = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), wanted)
            own = mean = jax.pure_callback(callback, shapes, state.count, wanted)
        elif traced:
            raise InputError("the exchange runs on the host: call update outside jax.jit")
        else:
            own, mean = host(state.count, wanted)
        residual = jax.tree.map(jnp.subtract, wanted, own) if feedback else ()
        out = jax.tree.map(lambda m, u: jnp.asarray(m, jnp.asarray(u).dtype), mean, updates)
        return out, CompressState(state.count + 1, residual)

    return optax.GradientTransformation(init, update)


def process_exchange(data: bytes) -> list[bytes]:
    """Exchanges streams between the processes of `jax.distributed`, in the order of their numbers."""
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return [data]
    sizes = multihost_utils.process_allgather(np.array([len(data)], np.int32)).reshape(-1).tolist()
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    gathered = multihost_utils.process_allgather(padded)
    return [row[:size].tobytes() for row, size in zip(gathered, sizes, strict=True)]
