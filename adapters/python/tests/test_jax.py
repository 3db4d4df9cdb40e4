"""Compressed updates in JAX: the transformation for optax, and several processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from digits import digits

import gcodec
import gcodec.jax


def tree(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    return {"dense": {"kernel": normal(30, 40), "bias": normal(40)}, "scales": [normal(7), normal(3, 5)]}


@pytest.mark.parametrize("codec", [gcodec.TopK(density=0.05), "sbc:density=0.05", gcodec.Sign(), "raw"])
def test_it_is_the_librarys_feedback(codec: Any) -> None:
    transform = gcodec.jax.compress(codec, rules={"*bias": "lossless"})
    state, feedback = transform.init(tree(0)), gcodec.Feedback()
    for step in range(4):
        updates = tree(step)
        out, state = transform.update(updates, state)
        data = gcodec.encode(updates, codec, rules={"*bias": "lossless"}, feedback=feedback)
        expected = gcodec.decode(data, like=updates)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, out, expected))
    assert int(state.count) == 4
    residuals = gcodec.decode(gcodec.encode(state.residual, "raw"), framework="numpy")
    for name, kept in feedback.state_dict("numpy").items():
        assert np.array_equal(residuals[name], kept), name


def test_it_is_the_same_inside_of_jit() -> None:
    transform = gcodec.jax.compress("qsgd:bits=4,bucket=64")
    plain = jitted = transform.init(tree(0))
    update = jax.jit(transform.update)
    outs = []
    for step in range(3):
        one, plain = transform.update(tree(1), plain)
        two, jitted = update(tree(1), jitted)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, (one, plain), (two, jitted))), step
        outs.append(np.asarray(one["dense"]["kernel"]))
    assert not np.array_equal(outs[0], outs[1]), "each step rounds in its own way"


def test_bf16_updates_stay_bf16() -> None:
    transform = gcodec.jax.compress("topk:k=1")
    updates = {"w": jnp.asarray([1.0, -3.0, 0.5], jnp.bfloat16)}
    out, state = transform.update(updates, transform.init(updates))
    assert out["w"].dtype == jnp.bfloat16 and out["w"].tolist() == [0, -3, 0]
    assert state.residual["w"].dtype == jnp.float32 and state.residual["w"].tolist() == [1, 0, 0.5]


def test_what_is_refused() -> None:
    with pytest.raises(gcodec.InputError, match="base"):
        gcodec.jax.compress("topk", rules={"*": "delta"})
    with pytest.raises(gcodec.InputError, match="codec"):
        gcodec.jax.compress("no-such-codec")
    assert gcodec.jax.process_exchange(b"alone") == [b"alone"]


def test_codecs_with_state_of_their_own_are_refused() -> None:
    for codec in (gcodec.Dgc(), gcodec.Feedback()):
        with pytest.raises(gcodec.InputError, match=f"takes no {type(codec).__name__}, .* use gcodec.TopK with error feedback"):
            gcodec.jax.compress(codec)  # type: ignore[arg-type]


def test_rules_and_state_belong_to_the_model() -> None:
    transform = gcodec.jax.compress("topk", rules={"dense.bias": "lossless", "norm.*": "lossless"})
    with pytest.raises(gcodec.InputError, match=r"'norm\.\*' of gcodec\.jax\.compress matches no tensor: there are 'dense\.bias'"):
        transform.init(tree(0))
    transform = gcodec.jax.compress("topk", rules={"scales.1": "lossless"})
    state = jax.jit(transform.init)(tree(0))
    with pytest.raises(gcodec.InputError, match="of another model: its residuals have another structure"):
        transform.update({"w": jnp.ones(3)}, state)
    # Broadcasting would take this one.
    wrong = state._replace(residual={**state.residual, "scales": [jnp.zeros(7), jnp.zeros((1, 5))]})
    for update in (transform.update, jax.jit(transform.update)):
        with pytest.raises(gcodec.InputError, match=r"'scales\.1' has the shape \(1, 5\) there and \(3, 5\) here"):
            update(tree(1), wrong)


def test_vmap_compresses_each_member() -> None:
    transform = gcodec.jax.compress("topk:density=0.1")
    members = [tree(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    state = jax.vmap(transform.init)(stacked)
    outs, state = jax.jit(jax.vmap(transform.update))(stacked, state)
    outs, state = jax.vmap(transform.update)(stacked, state)
    for i, member in enumerate(members):
        alone = transform.init(member)
        for _ in range(2):
            out, alone = transform.update(member, alone)
        assert jax.tree.all(jax.tree.map(lambda one, many, i=i: jnp.array_equal(one, many[i]), (out, alone), (outs, state)))


@pytest.mark.parametrize("jitted", [False, True])
def test_an_update_that_is_not_finite_is_skipped(jitted: bool) -> None:
    transform = gcodec.jax.compress("topk:density=0.1", non_finite="propagate", rules={"dense.bias": "lossless"})
    update = jax.jit(transform.update) if jitted else transform.update
    _, before = update(tree(0), transform.init(tree(0)))
    broken = tree(1)
    broken["dense"]["bias"] = broken["dense"]["bias"].at[3].set(jnp.inf)
    out, after = update(broken, before)
    assert all(bool(jnp.isnan(leaf).all()) for leaf in jax.tree.leaves(out))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, before.residual, after.residual))
    optimizer = optax.apply_if_finite(optax.chain(transform, optax.sgd(1.0)), max_consecutive_errors=3)
    state = optimizer.init(tree(0))
    out, state = optimizer.update(broken, state)
    assert not any(bool(leaf.any()) for leaf in jax.tree.leaves(out)) and int(state.total_notfinite) == 1
    out, state = optimizer.update(tree(2), state)
    assert bool(out["dense"]["kernel"].any())


def trained(optimizer: Any, steps: int = 150) -> float:
    pixels, labels, _, _ = digits()
    rng = np.random.default_rng(5)
    params = {
        "first": {"kernel": jnp.asarray(rng.standard_normal((64, 32)) / 8, jnp.float32), "bias": jnp.zeros(32)},
        "second": {"kernel": jnp.asarray(rng.standard_normal((32, 10)) / 6, jnp.float32), "bias": jnp.zeros(10)},
    }

    def loss(params: Any, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ params["first"]["kernel"] + params["first"]["bias"])
        logits = hidden @ params["second"]["kernel"] + params["second"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(steps):
        chosen = rng.integers(len(labels), size=64)
        params, state = step(params, state, pixels[chosen], labels[chosen])
    return float(loss(params, pixels, labels))


def test_a_network_learns() -> None:
    sgd = optax.sgd(0.1, momentum=0.9)
    compressed = trained(optax.chain(gcodec.jax.compress(gcodec.TopK(density=0.05)), sgd))
    without = trained(optax.chain(gcodec.jax.compress(gcodec.TopK(density=0.005), feedback=False), sgd))
    # Guessing has a loss of log 10 = 2.30. One run each shows that training works, and that it needs
    # feedback.
    assert compressed < 0.3 < without, (trained(sgd), compressed, without)


SKIPPED = """
import sys, jax, jax.numpy as jnp, numpy as np, gcodec, gcodec.jax
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
me = jax.process_index()
said = []
for non_finite in ("propagate", "reject"):
    compress = gcodec.jax.compress("topk:k=2", exchange=gcodec.jax.process_exchange, non_finite=non_finite)
    state = compress.init({"w": jnp.zeros(20)})
    for step in range(3):
        gradient = jnp.arange(20.0) + me
        if (me, step) == (1, 1):
            gradient = gradient.at[4].set(jnp.nan)
        try:
            out, state = compress.update({"w": gradient}, state)
            said.append(f"{np.asarray(out['w'])[-1]:.1f} {float(state.residual['w'].sum()):.1f}")
        except gcodec.InputError as e:
            said.append(str(e))
np.savez(sys.argv[3], said=said)
"""

DAMAGED = """
import sys, jax, jax.numpy as jnp, numpy as np, gcodec, gcodec.jax
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
me = jax.process_index()
said, kept, calls = [], [], 0

def exchange(data):
    # Process 1 gets a damaged stream of process 0 in the second step, and another head in the fourth.
    global calls
    calls += 1
    messages = gcodec.jax.process_exchange(data)
    at = {3: -9, 7: 5}.get(calls)
    if me == 1 and at is not None:
        first = bytearray(messages[0])
        first[at] ^= 0x40
        messages[0] = bytes(first)
    return messages

for jitted in (False, True):
    compress = gcodec.jax.compress("topk:k=2", exchange=exchange)
    update = jax.jit(compress.update) if jitted else compress.update
    state, calls = compress.init({"w": jnp.zeros(20)}), 0
    for step in range(5):
        before = state
        try:
            out, state = update({"w": jnp.arange(20.0) + me}, state)
            jax.block_until_ready(out)
            said.append(f"{np.abs(np.asarray(out['w'])).sum():.1f}")
        except Exception as e:
            said.append(str(e))
            kept.append(state is before)
            # The head was compared in one more exchange.
            calls = 2 * (step + 1)
np.savez(sys.argv[3], said=said, kept=kept)
"""

PROCESS = """
import os, sys, jax, jax.numpy as jnp, numpy as np, optax, gcodec, gcodec.jax
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
optimizer = optax.chain(gcodec.jax.compress("topk:k=20", exchange=gcodec.jax.process_exchange), optax.sgd(1.0))
params = {"w": jnp.zeros((20, 30))}
state = optimizer.init(params)
rng = np.random.default_rng(jax.process_index())
given = np.zeros((20, 30))
for _ in range(5):
    gradients = {"w": jnp.asarray(rng.standard_normal((20, 30)), jnp.float32)}
    given += np.asarray(gradients["w"], np.float64)
    updates, state = optimizer.update(gradients, state, params)
    params = optax.apply_updates(params, updates)
np.savez(sys.argv[3], params=params["w"], sent=given - np.asarray(state[0].residual["w"], np.float64))
"""


def processes(program: str, tmp_path: Path) -> list[Any]:
    """Returns what two processes saved."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [tmp_path / f"{i}.npz" for i in range(2)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(port), str(i), str(file)],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i, file in enumerate(files)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=120)[0] for process in running]
    finally:
        [process.kill() for process in running]
    assert all(file.exists() for file in files), "\n".join(said)
    return [np.load(file) for file in files]


def test_no_process_is_left_alone_with_an_update_that_is_not_finite(tmp_path: Path) -> None:
    one, two = ([str(line) for line in saved["said"]] for saved in processes(SKIPPED, tmp_path))
    # The sums of 18 of 20 numbers stay.
    assert one[:2] == ["19.5 153.0", "nan 153.0"] and two[:2] == ["19.5 171.0", "nan 171.0"], (one, two)
    assert one[2].split()[0] == two[2].split()[0] != "nan"
    fault = 'tensor "w": element 4 is NaN or infinite (tensor 0)'
    assert one[4] == f"process 1 could not compress its tensors: {fault}", one
    assert two[4] == fault, two
    assert one[5].split()[0] == two[5].split()[0] == one[2].split()[0]


def test_what_one_process_cannot_decode_fails_the_step_of_all(tmp_path: Path) -> None:
    one, two = processes(DAMAGED, tmp_path)
    for at in (0, 5):
        first, second = ([str(line) for line in saved["said"][at : at + 5]] for saved in (one, two))
        steps = [float(first[i]) for i in (0, 2, 4)]
        assert steps == [float(second[i]) for i in (0, 2, 4)] and all(steps), (first, second)
        fault = "process 1 could not decode the updates of this step: "
        assert fault in first[1] and fault not in second[1] and "checksum" in first[1], (first, second)
        assert first[1].partition(fault)[2].splitlines()[0] in second[1], (first, second)
        for said in (first, second):
            assert "process 1 received other bytes than were sent to it" in said[3], said
    assert one["kept"].all() and two["kept"].all() and len(one["kept"]) == 4


def test_processes_end_with_the_same_bits(tmp_path: Path) -> None:
    one, two = processes(PROCESS, tmp_path)
    assert one["params"].tobytes() == two["params"].tobytes()
    # Minus the mean of both updates, with the rounding of 5 f32 sums of numbers below 16.
    assert np.abs(one["params"] + (one["sent"] + two["sent"]) / 2).max() < 5 * 4 * 2.0**-20
    assert np.count_nonzero(one["params"]) > 20
