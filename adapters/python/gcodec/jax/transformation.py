"""The optax transformation, and what processes send each other in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from gcodec._tensors.trees import ROOT, path_name
from gcodec._tensors.update import check_codecs, check_rules
from gcodec.codecs import Codec, numbered
from gcodec.errors import InputError
from gcodec.header import UpdateHeader
from gcodec.oneshot import decode, encode
from gcodec.options import Options, resolve, trainers_feedback
from gcodec.reduction import reduce

Exchange = Callable[[bytes], Sequence[bytes]]
"""A function that sends this process's stream to all, and returns all streams in the same order
everywhere."""

# What a process sends instead of a stream, which begins with another byte.
_NOT_FINITE, _FAILED = b"\0", b"\1"


class _NotFinite(Exception):
    """An update is not finite, or the mean is not."""


class CompressState(NamedTuple):
    """The state of `compress`: a pytree, for checkpoints and `jax.jit`."""

    count: Any
    """Number of updates so far: a scalar."""
    residual: Any
    """Residuals: a tree with the structure of the updates, in f32; `()` without error feedback."""


def compress(
    codec: Codec | str, *, exchange: Exchange | None = None, senders: int | None = None, **options: Unpack[Options]
) -> Any:
    """Returns an `optax.GradientTransformation` that replaces each update by its decoded form, with error
    feedback.

    Put it first in an `optax.chain`. Without `exchange` it shows the effect of compression on training in one
    process, also inside `jax.jit` and `jax.vmap`, which compresses one member after the other. With
    `exchange` the result is the mean of the updates of all processes, the same bits everywhere; call it
    outside `jax.jit`, because the exchange runs on the host. If one process cannot compress, all raise.

    With `senders`, each leaf of the updates has a first dimension of that size: the gradients of as many
    devices, as `jax.shard_map` returns them. Each is compressed separately, with its own residual, and the
    result is their mean, replicated over the mesh. This too runs on the host, outside
    `jax.jit`.

    Args:
        codec: any codec but `Delta`. Codecs that round or draw at random do so independently at each step and
            process.
        options: see `gcodec.Options`. Used: rules (each must match a parameter), feedback (True or False;
            default True), non_finite (`propagate`: all updates become NaN in all processes and the residuals
            stay, for `optax.apply_if_finite` around the chain, or a loss scale), order, limits (on the
            streams of other processes).
        exchange: a function that exchanges streams between processes, such as `process_exchange`. Default:
            None, one process.
        senders: the number of senders whose updates one call gets. Default: None, one sender.

    Raises:
        InputError: the codec is `Delta`, or one with state of its own (`Dgc`, `ScaleCom`); a rule matches no
            parameter; the state is of another model; `exchange` is called inside a traced function; or the
            codec cannot take an update.
    """
    import optax  # type: ignore[import-untyped]

    chosen = resolve("gcodec.jax.compress", ("rules", "feedback", "non_finite", "order", "limits"), options)
    feedback = trainers_feedback("gcodec.jax.compress", chosen.feedback)
    propagate = chosen.non_finite == "propagate"
    rules = chosen.rules or {}
    check_codecs("gcodec.jax.compress", codec, rules)
    if senders is not None and exchange is not None:
        raise InputError("gcodec.jax.compress takes senders or exchange: the mean is over devices or over processes")

    def init(params: Any) -> CompressState:
        check_rules("gcodec.jax.compress", rules, _shapes(params))
        stack = () if senders is None else (senders,)
        zeros = jax.tree.map(lambda p: jnp.zeros((*stack, *jnp.shape(p)), jnp.float32), params)
        return CompressState(jnp.zeros((), jnp.int32), zeros if feedback else ())

    def encoded(count: Any, updates: Any, sender: int = 0, world: int = 1) -> bytes:
        number = int(count) * world + sender
        return encode(
            updates,
            numbered(codec, number),
            rules={glob: numbered(rule, number) for glob, rule in rules.items()},
            header=UpdateHeader(step=int(count), sender=sender),
            order=chosen.order,
            non_finite=None if propagate else chosen.non_finite,
        )

    def callback(count: Any, updates: Any) -> Any:
        """Returns this process's update as a receiver decodes it, in NumPy arrays."""
        return decode(encoded(count, jax.tree.map(jax.device_get, updates)), like=updates, framework="numpy")

    def exchanged(exchange: Exchange, count: Any, updates: Any) -> tuple[Any, Any]:
        """Returns this process's update as a receiver decodes it, and the mean of all processes, in NumPy
        arrays."""
        error = None
        if propagate and not _is_finite(updates):
            data = _NOT_FINITE
        else:
            try:
                data = encoded(count, updates, jax.process_index(), jax.process_count())
            except Exception as e:
                error, data = e, _FAILED + str(e).encode()
        streams = [bytes(stream) for stream in exchange(data)]
        if error is not None:
            raise error
        for process, stream in enumerate(streams):
            if stream.startswith(_FAILED):
                raise InputError(f"process {process} could not compress its update: {stream[1:].decode(errors='replace')}")
        if _NOT_FINITE in streams:
            raise _NotFinite
        mean = reduce(streams, mean=True, limits=chosen.limits).tree(updates, "numpy")
        if propagate and not _is_finite(mean):
            raise _NotFinite
        return decode(data, like=updates, framework="numpy"), mean

    def together(world: int, count: Any, updates: Any) -> tuple[Any, Any]:
        """Returns the update of each sender as receivers decode it, and their mean, in NumPy arrays."""
        import numpy as np

        if propagate and not _is_finite(updates):
            raise _NotFinite
        host = jax.tree.map(jax.device_get, updates)
        each = [jax.tree.map(lambda u: u[i], host) for i in range(world)]  # noqa: B023
        streams = [encoded(count, one, i, world) for i, one in enumerate(each)]
        mean = reduce(streams, mean=True, limits=chosen.limits).tree(each[0], "numpy")
        if propagate and not _is_finite(mean):
            raise _NotFinite
        own = [decode(stream, like=one, framework="numpy") for stream, one in zip(streams, each, strict=True)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *own), mean

    def update(updates: Any, state: CompressState, params: Any = None, **_: Any) -> tuple[Any, CompressState]:
        del params
        if senders is not None:
            _check_senders(updates, senders)
        wanted = jax.tree.map(lambda u: jnp.asarray(u, jnp.float32), updates)
        if feedback:
            _check_state(wanted, state.residual)
            wanted = jax.tree.map(jnp.add, wanted, state.residual)
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((updates, state)))
        finite: Any = True
        if senders is not None:
            if traced:
                raise InputError("senders are compressed on the host: call update outside jax.jit")
            try:
                own, mean = together(senders, state.count, wanted)
            except _NotFinite:
                own, mean, finite = wanted, jax.tree.map(lambda w: w[0], wanted), False
            own, mean = jax.tree.map(_split_like, own, wanted), jax.tree.map(_replicated_like, mean, wanted)
        elif exchange is None:
            if propagate:
                finite = jnp.array([jnp.isfinite(w).all() for w in jax.tree.leaves(wanted)]).all()
            shapes = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), wanted)
            sent = jax.tree.map(lambda w: jnp.where(finite, w, 0), wanted)
            own = mean = jax.pure_callback(callback, shapes, state.count, sent, vmap_method="sequential")
        elif traced:
            raise InputError("the exchange runs on the host: call update outside jax.jit")
        else:
            try:
                own, mean = exchanged(exchange, state.count, wanted)
            except _NotFinite:
                own, mean, finite = wanted, wanted, False
        residual = state.residual
        if feedback:
            residual = jax.tree.map(lambda w, o, r: jnp.where(finite, w - o, r), wanted, own, state.residual)
        out = jax.tree.map(lambda m, u: jnp.asarray(jnp.where(finite, m, jnp.nan), jnp.asarray(u).dtype), mean, updates)
        return out, CompressState(state.count + 1, residual)

    return optax.GradientTransformation(init, update)


def _is_finite(tree: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def _check_senders(updates: Any, senders: int) -> None:
    for name, shape in _shapes(updates).items():
        if not shape or shape[0] != senders:
            raise InputError(f"the update {name!r} has the shape {shape}, and its first dimension is not the {senders} senders")


def _split_like(new: Any, old: Any) -> Any:
    """Returns an array on the devices of another, split in the same way."""
    return jax.device_put(new, old.sharding)


def _replicated_like(new: Any, old: Any) -> Any:
    """Returns an array on all devices of another's mesh."""
    if isinstance(old.sharding, jax.sharding.NamedSharding):
        return jax.device_put(new, jax.sharding.NamedSharding(old.sharding.mesh, jax.sharding.PartitionSpec()))
    return jnp.asarray(new)


def _check_state(updates: Any, residual: Any) -> None:
    """Raises InputError unless the residuals are those of these updates."""
    if jax.tree.structure(updates) != jax.tree.structure(residual):
        raise InputError("the state of gcodec.jax.compress is of another model: its residuals have another structure")
    there = _shapes(residual)
    for name, shape in _shapes(updates).items():
        if shape != there[name]:
            raise InputError(
                f"the state of gcodec.jax.compress is of another model: {name!r} has the shape {there[name]} there and {shape} here"
            )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of leaves, which may be traced, by the names that `encode` gives them."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {path_name(path) or ROOT: jnp.shape(leaf) for path, leaf in leaves}


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
