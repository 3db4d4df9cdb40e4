"""Wrappers of optax around compressed updates, and processes of JAX with different settings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_jax import processes, tree

import gcodec
import gcodec.jax

CODEC = "topk:density=0.1"


def chain(**options: Any) -> Any:
    return optax.chain(gcodec.jax.compress(CODEC, exchange=gcodec.jax.process_exchange, **options), optax.sgd(1.0))


def run(optimizer: Any, steps: int = 4) -> list[Any]:
    state = optimizer.init(tree(0))
    outs = []
    for step in range(steps):
        out, state = optimizer.update(tree(step), state, tree(0))
        outs.append(out)
    return outs


def same(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(jnp.array_equal, one, other))


@pytest.mark.parametrize("wrapper", ["finite", "multi", "conditional", "cond", "jit", "scan"])
def test_wrappers_change_nothing(wrapper: str) -> None:
    plain = run(chain())
    if wrapper == "finite":
        assert same(run(optax.apply_if_finite(chain(non_finite="propagate"), 3)), plain)
    elif wrapper == "multi":
        # Each update is the mean of two.
        outs = run(optax.MultiSteps(chain(), 2), 8)
        assert not any(bool(leaf.any()) for leaf in jax.tree.leaves(outs[::2]))
        transform, expected = chain(), []
        state = transform.init(tree(0))
        for step in range(0, 8, 2):
            mean = jax.tree.map(lambda a, b: (a + b) / 2, tree(step), tree(step + 1))
            out, state = transform.update(mean, state)
            expected.append(out)
        assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), outs[1::2], expected))
    elif wrapper == "conditional":
        assert same(run(optax.transforms.conditionally_transform(chain(), lambda step: step < 2))[:2], plain[:2])
    elif wrapper == "cond":
        transform, outs = chain(), []
        state = transform.init(tree(0))
        for step in range(4):
            keep = lambda u, s: (u, s)  # noqa: E731
            out, state = jax.lax.cond(jnp.array(True), transform.update, keep, tree(step), state)
            outs.append(out)
        assert same(outs, plain)
    elif wrapper == "jit":
        transform = chain()
        assert same(run(optax.GradientTransformation(transform.init, jax.jit(transform.update))), plain)
    else:
        transform = chain()
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[tree(step) for step in range(4)])
        _, outs = jax.lax.scan(lambda s, u: transform.update(u, s)[::-1], transform.init(tree(0)), stacked)
        assert same([jax.tree.map(lambda leaf, i=i: leaf[i], outs) for i in range(4)], plain)


def test_an_update_that_is_not_finite_is_skipped_inside_a_wrapper() -> None:
    optimizer = optax.apply_if_finite(chain(non_finite="propagate"), 3)
    state = optimizer.init(tree(0))
    _, state = optimizer.update(tree(0), state)
    kept = state.inner_state[0].residual
    broken = tree(1)
    broken["scales"][0] = broken["scales"][0].at[0].set(jnp.nan)
    out, state = optimizer.update(broken, state)
    assert not any(bool(leaf.any()) for leaf in jax.tree.leaves(out)) and same(state.inner_state[0].residual, kept)
    # Compressed first, so that all processes skip the same step.
    inner = gcodec.jax.compress(CODEC, exchange=gcodec.jax.process_exchange, non_finite="propagate")
    behind = optax.chain(inner, optax.apply_if_finite(optax.adam(1.0), 3))
    state = behind.init(tree(0))
    out, state = behind.update(broken, state)
    assert not any(bool(leaf.any()) for leaf in jax.tree.leaves(out)) and int(state[1].total_notfinite) == 1


def test_what_cannot_be_wrapped_says_so() -> None:
    transform = gcodec.jax.compress(CODEC, exchange=gcodec.jax.process_exchange)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), tree(0))
    for update in (jax.vmap(transform.update), jax.jit(jax.vmap(transform.update))):
        with pytest.raises(gcodec.InputError, match=r"an exchange cannot run under jax\.vmap"):
            update(stacked, jax.vmap(transform.init)(stacked))
    senders = optax.chain(gcodec.jax.compress(CODEC, senders=2), optax.sgd(1.0))
    optimizer = optax.apply_if_finite(senders, 3)
    with pytest.raises(gcodec.InputError, match=r"outside jax\.jit and lax\.cond.*behind compress in the chain"):
        optimizer.update(stacked, optimizer.init(tree(0)))


WRAPPED = """
import sys, jax, jax.numpy as jnp, numpy as np, optax, gcodec, gcodec.jax
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
me, saved = jax.process_index(), {}
wrappers = {
    "plain": lambda o: o,
    "finite": lambda o: optax.apply_if_finite(o, 3),
    "multi": lambda o: optax.MultiSteps(o, 1),
    "jit": lambda o: optax.GradientTransformation(o.init, jax.jit(o.update)),
}
for name, wrap in wrappers.items():
    compress = gcodec.jax.compress("topk:k=20", exchange=gcodec.jax.process_exchange)
    optimizer = wrap(optax.chain(compress, optax.sgd(1.0)))
    params = {"w": jnp.zeros((20, 30))}
    state, rng = optimizer.init(params), np.random.default_rng(me)
    for _ in range(5):
        gradients = {"w": jnp.asarray(rng.standard_normal((20, 30)), jnp.float32)}
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    saved[name] = np.asarray(params["w"])
np.savez(sys.argv[3], **saved)
"""


def test_processes_exchange_inside_wrappers(tmp_path: Any) -> None:
    one, two = processes(WRAPPED, tmp_path)
    assert np.count_nonzero(one["plain"]) > 20
    for name in ("plain", "finite", "multi", "jit"):
        assert one[name].tobytes() == two[name].tobytes() == one["plain"].tobytes(), name


DIFFERENT = """
import sys, jax, jax.numpy as jnp, numpy as np, gcodec, gcodec.jax
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
odd, ex, said = jax.process_index() == 1, gcodec.jax.process_exchange, {}
w = {"w": jnp.arange(20.0)}
def attempt(name, codec, updates=w, steps=1, **options):
    transform = gcodec.jax.compress(codec, exchange=ex, **options)
    try:
        state = transform.init(updates)
        for step in range(steps):
            out, state = transform.update(updates if step == 0 or not odd else {"w": updates["w"].astype(jnp.bfloat16)}, state)
        said[name] = "accepted"
    except gcodec.InputError as e:
        said[name] = str(e)
attempt("codec", "topk:k=3" if odd else "topk:k=2")
attempt("feedback", "topk:k=2", feedback=not odd)
attempt("rules", "topk:k=2", rules={"w": "raw"} if odd else None)
attempt("non_finite", "topk:k=2", non_finite="zero" if odd else "propagate")
attempt("limits", "topk:k=2", limits=gcodec.Limits(max_elements=5) if odd else None)
attempt("dtype", "topk:k=2", {"w": w["w"].astype(jnp.bfloat16)} if odd else w)
attempt("name", "topk:k=2", {"v": w["w"]} if odd else w)
attempt("more", "topk:k=2", {**w, "x": w["w"]} if odd else w)
attempt("shape", "topk:k=2", {"w": jnp.zeros((4, 5))} if odd else w)
attempt("later", "topk:k=2", steps=2)
attempt("same", "topk:k=2")
np.savez(sys.argv[3], **said)
"""


def test_processes_that_do_not_fit_say_so(tmp_path: Any) -> None:
    one, two = ({name: str(saved[name]) for name in saved} for saved in processes(DIFFERENT, tmp_path))
    assert one == two
    odd, here, there = "process 1 cannot train with process 0: ", " on process 1 and ", " on process 0"
    assert "the codec is topk:" in one["codec"] and odd in one["codec"]
    assert one["feedback"] == f"{odd}the value of feedback is False{here}True{there}"
    assert one["rules"] == f"{odd}the value of rules is [['w', 'raw']]{here}[]{there}"
    assert one["non_finite"] == f"{odd}the value of non_finite is zero{here}propagate{there}"
    assert one["limits"].startswith(f"{odd}the value of limits (max_elements) is 5{here}")
    usual = f"{here}'w' (float32, 20){there}"
    assert one["dtype"] == f"{odd}tensor 0 is 'w' (bfloat16, 20){usual}"
    assert one["name"] == f"{odd}tensor 0 is 'v' (float32, 20){usual}"
    assert one["more"] == f"{odd}only on process 1 is there 'x': there are 2 tensors{here}1{there}"
    assert one["shape"] == f"{odd}tensor 0 is 'w' (float32, 4 x 5){usual}"
    assert one["later"] == one["dtype"] and one["same"] == "accepted"
