"""The optax transformation."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax.experimental import io_callback

from gcodec._handshake import Tensors
from gcodec._tensors.trees import ROOT, path_name
from gcodec._tensors.update import check_codecs, check_rules
from gcodec.codecs import Codec, numbered
from gcodec.errors import InputError
from gcodec.header import UpdateHeader
from gcodec.jax.processes import Exchange, NotFinite, Settings, mean_of
from gcodec.oneshot import decode, encode
from gcodec.options import Options, resolve, trainers_feedback
from gcodec.reduction import reduce

_BEHIND = "optax.apply_if_finite and optax.MultiSteps use lax.cond: put them behind compress in the chain"


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
    `exchange` the result is the mean of the updates of all processes, the same bits everywhere. The exchange
    runs on the host: call `update` outside `jax.jit`, or in a program of one device, which calls back. So
    wrappers that use `lax.cond` (`optax.apply_if_finite`, `optax.MultiSteps`) may be around the chain, if all
    processes take the same branch. Processes compare their settings, names, shapes and types in each step. If
    one process cannot compress its update, or decode those of all, all raise: it is called twice in a step.

    With `senders`, each leaf of the updates has a first dimension of that size: the gradients of as many
    devices, as `jax.shard_map` returns them. Each is compressed separately, with its own residual, and the
    result is their mean, replicated over the mesh. This too runs on the host, outside `jax.jit` and
    `lax.cond`.

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
            parameter; the state is of another model; processes do not have the same settings; or the codec
            cannot take an update.
    """
    import optax  # type: ignore[import-untyped]

    chosen = resolve("gcodec.jax.compress", ("rules", "feedback", "non_finite", "order", "limits"), options)
    feedback = trainers_feedback("gcodec.jax.compress", chosen.feedback)
    propagate = chosen.non_finite == "propagate"
    rules = chosen.rules or {}
    check_codecs("gcodec.jax.compress", codec, rules)
    if senders is not None and exchange is not None:
        raise InputError("gcodec.jax.compress takes senders or exchange: the mean is over devices or over processes")

    settings = Settings(codec, chosen, feedback)

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

    def alone(count: Any, updates: Any) -> Any:
        """Returns this process's update as a receiver decodes it, in NumPy arrays."""
        return decode(encoded(count, jax.tree.map(jax.device_get, updates)), like=updates, framework="numpy")

    def between(tensors: Tensors, count: Any, updates: Any) -> tuple[Any, Any]:
        """Returns this process's update as a receiver decodes it, and the mean of all processes."""
        assert exchange is not None, "it is only called with an exchange"
        updates = jax.tree.map(jax.device_get, updates)

        def made() -> bytes | None:
            if propagate and not _is_finite(updates):
                return None
            return encoded(count, updates, jax.process_index(), jax.process_count())

        return mean_of(exchange, settings.greeting(tensors, int(count)), made, updates, chosen.limits)

    def together(world: int, count: Any, updates: Any) -> tuple[Any, Any]:
        """Returns the update of each sender as receivers decode it, and their mean, in NumPy arrays."""
        import numpy as np

        host = jax.tree.map(jax.device_get, updates)
        if propagate and not _is_finite(host):
            raise NotFinite
        each = [jax.tree.map(lambda u: u[i], host) for i in range(world)]  # noqa: B023
        streams = [encoded(count, one, i, world) for i, one in enumerate(each)]
        mean = reduce(streams, mean=True, limits=chosen.limits).tree(each[0], "numpy")
        own = [decode(stream, like=one, framework="numpy") for stream, one in zip(streams, each, strict=True)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *own), mean

    def on_host(tensors: Tensors, count: Any, updates: Any) -> tuple[Any, Any, Any]:
        """Returns the decoded update, the mean, and whether all is finite; zeros if not."""
        import numpy as np

        try:
            own, mean = between(tensors, count, updates) if senders is None else together(senders, count, updates)
            if propagate and not _is_finite(mean):
                raise NotFinite
        except NotFinite:
            zeros = jax.tree.map(lambda u: np.zeros(u.shape, np.float32), updates)
            return zeros, zeros if senders is None else jax.tree.map(lambda z: z[0], zeros), np.bool_(False)
        return own, mean, np.bool_(True)

    def update(updates: Any, state: CompressState, params: Any = None, **_: Any) -> tuple[Any, CompressState]:
        del params
        if senders is not None:
            _check_senders(updates, senders)
        wanted = jax.tree.map(lambda u: jnp.asarray(u, jnp.float32), updates)
        if feedback:
            _check_state(wanted, state.residual)
            wanted = jax.tree.map(jnp.add, wanted, state.residual)
        # Inside of `lax.cond`, also outside of `jax.jit`, sums are traced although the updates are not.
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((updates, state, wanted)))
        finite: Any = True
        if exchange is None and senders is None:
            if propagate:
                finite = jnp.array([jnp.isfinite(w).all() for w in jax.tree.leaves(wanted)]).all()
            sent = jax.tree.map(lambda w: jnp.where(finite, w, 0), wanted)
            own = mean = jax.pure_callback(alone, _structs(wanted), state.count, sent, vmap_method="sequential")
        else:
            host = functools.partial(on_host, _tensors(updates))
            if traced and senders is not None:
                raise InputError(f"senders are compressed on the host: call update outside jax.jit and lax.cond. {_BEHIND}")
            if traced:
                own, mean, finite = _called_back(host, state.count, wanted, updates)
            else:
                own, mean, finite = host(state.count, wanted)
                if senders is not None:
                    own, mean = jax.tree.map(_split_like, own, wanted), jax.tree.map(_replicated_like, mean, wanted)
        residual = state.residual
        if feedback:
            residual = jax.tree.map(lambda w, o, r: jnp.where(finite, w - o, r), wanted, own, state.residual)
        out = jax.tree.map(lambda m, u: jnp.asarray(jnp.where(finite, m, jnp.nan), jnp.asarray(u).dtype), mean, updates)
        return out, CompressState(state.count + 1, residual)

    return optax.GradientTransformation(init, update)


def _called_back(host: Any, count: Any, wanted: Any, updates: Any) -> tuple[Any, Any, Any]:
    """Returns the results of a function on the host, which a traced program calls.

    Raises:
        InputError: the program runs on several devices, or under `jax.vmap`.
    """
    given = [u for u in jax.tree.leaves(updates) if isinstance(u, jax.Array) and not isinstance(u, jax.core.Tracer)]
    if any(len(u.sharding.device_set) > 1 for u in given):
        raise InputError(
            "updates on several devices are compressed on the host, and a callback of a program on several devices can end the "
            f"process: call update outside jax.jit and lax.cond. {_BEHIND}"
        )
    results = (_structs(wanted), _structs(wanted), jax.ShapeDtypeStruct((), jnp.bool_))
    try:
        # All processes exchange in the same order.
        return tuple(io_callback(host, results, count, wanted, ordered=True))
    except ValueError as e:
        if "vmap" not in str(e):
            raise
        raise InputError(f"an exchange cannot run under jax.vmap: call update for one member after the other ({e})") from e


def _structs(tree: Any) -> Any:
    return jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), tree)


def _is_finite(tree: Any) -> bool:
    import numpy as np

    return all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def _tensors(updates: Any) -> Tensors:
    """Returns the types and shapes of leaves by name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(updates)
    return {path_name(path) or ROOT: (str(jnp.asarray(leaf).dtype), tuple(jnp.shape(leaf))) for path, leaf in leaves}


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

