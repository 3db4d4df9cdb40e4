"""Compressed updates in JAX: a transformation for optax, and an exchange between processes.

    optimizer = optax.chain(gcodec.jax.compress(gcodec.TopK(density=0.01)), optax.sgd(0.1))

`gcodec.encode` and `gcodec.decode` take and give pytrees; nothing here is needed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gcodec.codecs import Codec, numbered, spec_of
from gcodec.errors import InputError
from gcodec.limits import Limits
from gcodec.oneshot import decode, encode
from gcodec.reduction import reduce
from gcodec.stream import Order, UpdateHeader

__all__ = ["CompressState", "Exchange", "compress", "process_exchange"]

Exchange = Callable[[bytes], Sequence[bytes]]
"""Gives this process's stream to all, and gives all streams, in the same order everywhere."""


class CompressState(NamedTuple):
    """The state of `compress`: a pytree, for checkpoints and `jax.jit`."""

    count: Any
    """Updates so far: a scalar."""
    residual: Any
    """What was left out so far: a tree such as the updates, of f32; or `()` without error feedback."""


def compress(
    codec: Codec | str,
    *,
    rules: Mapping[str, Codec | str] | None = None,
    feedback: bool = True,
    exchange: Exchange | None = None,
    order: Order = None,
    limits: Limits | None = None,
) -> Any:
    """An `optax.GradientTransformation`: updates as a receiver gets them, with error feedback.

    Put it first in an `optax.chain`. Without `exchange` it does to training what compression does, in one process, also inside
    `jax.jit`. With it, the result is the mean of all processes' updates, the same bits everywhere; it is then to be called
    outside of `jax.jit`, as an exchange takes place on the host.

    Args:
        codec: any codec but `Delta`. Those that round or draw at random do so independently at each step and process.
        rules: other codecs for the tensors whose names match a pattern (`*.bias`); the last that matches counts.
        feedback: whether what a lossy codec leaves out is added at the next step.
        exchange: how streams travel, for instance `process_exchange`.
        order: of the tensors in the stream, as in `encode`: for an exchange with trainers that do not sort names as JAX does.
        limits: what to allow to other processes.

    Raises:
        InputError: the codec `Delta`; `exchange` inside a traced function; updates that the codec cannot take.
    """
    import optax  # type: ignore[import-untyped]

    for one in (codec, *(rules or {}).values()):
        if spec_of(one).partition(":")[0] == "delta":
            raise InputError("the codec delta needs a base: an update has none")

    def init(params: Any) -> CompressState:
        zeros = jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params)
        return CompressState(jnp.zeros((), jnp.int32), zeros if feedback else ())

    def host(count: Any, updates: Any) -> tuple[Any, Any]:
        """What this process's update is to a receiver, and the mean of all: of NumPy."""
        sender, world = (jax.process_index(), jax.process_count()) if exchange else (0, 1)
        number = int(count) * world + sender
        data = encode(
            updates,
            numbered(codec, number),
            rules={glob: numbered(rule, number) for glob, rule in (rules or {}).items()},
            header=UpdateHeader(step=int(count), sender=sender),
            order=order,
        )
        own = decode(data, like=updates, framework="numpy")
        if exchange is None:
            return own, own
        return own, reduce(exchange(data), mean=True, limits=limits).tree(updates, "numpy")

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
            raise InputError("updates are exchanged on the host: call update outside of jax.jit")
        else:
            own, mean = host(state.count, wanted)
        residual = jax.tree.map(jnp.subtract, wanted, own) if feedback else ()
        out = jax.tree.map(lambda m, u: jnp.asarray(m, jnp.asarray(u).dtype), mean, updates)
        return out, CompressState(state.count + 1, residual)

    return optax.GradientTransformation(init, update)


def process_exchange(data: bytes) -> list[bytes]:
    """An exchange between the processes of `jax.distributed`, in their order."""
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return [data]
    sizes = multihost_utils.process_allgather(np.array([len(data)], np.int32)).reshape(-1).tolist()
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    gathered = multihost_utils.process_allgather(padded)
    return [row[:size].tobytes() for row, size in zip(gathered, sizes, strict=True)]
