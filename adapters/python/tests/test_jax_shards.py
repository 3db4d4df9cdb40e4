"""JAX arrays on several devices, in a process of its own: the number of devices is fixed when JAX starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import gcodec, gcodec.jax

devices = jax.devices()
assert len(devices) == 4
mesh = Mesh(np.array(devices), ("data",))

# Arrays that are replicated and sharded, by one and two axes, there and back.
x = jnp.arange(64.0).reshape(8, 8)
square = Mesh(np.array(devices).reshape(2, 2), ("a", "b"))
places = [NamedSharding(mesh, P()), NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "data")), NamedSharding(square, P("b", "a"))]
for place in places:
    tree = {"w": jax.device_put(x, place), "b": jax.device_put(x[0].astype(jnp.bfloat16), NamedSharding(place.mesh, P()))}
    data = gcodec.encode(tree, "lossless")
    assert data == gcodec.encode({"w": x, "b": x[0].astype(jnp.bfloat16)}, "lossless")
    back = gcodec.decode(data, like=tree)
    assert back["w"].sharding == place and (back["w"] == x).all() and back["b"].dtype == jnp.bfloat16
    delta = gcodec.encode({"w": tree["w"] + 1, "b": tree["b"]}, "delta", base=tree)
    assert (gcodec.decode(delta, like=tree, base=tree)["w"] == x + 1).all()

# Each device is a sender: the mean of what receivers decode, and residuals of their own.
rng = np.random.default_rng(0)
parameters = {"w": jnp.zeros((20, 3)), "b": jnp.zeros(3)}
truth = rng.standard_normal((20, 3)).astype(np.float32)

def gradient(parameters, inputs):
    return jax.grad(lambda p: jnp.square(inputs @ p["w"] + p["b"] - inputs @ truth).mean())(parameters)

@jax.jit
def gradients(parameters, inputs):
    # With a first dimension for the devices.
    def of_device(parameters, inputs):
        # Without `pcast`, the gradient of replicated parameters would be summed over the devices.
        mine = jax.tree.map(lambda p: jax.lax.pcast(p, "data", to="varying"), parameters)
        return jax.tree.map(lambda g: g[None], gradient(mine, inputs))
    return jax.shard_map(of_device, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))(parameters, inputs)

def trainer(codec, **options):
    optimizer = optax.chain(gcodec.jax.compress(codec, senders=4, **options), optax.sgd(0.1))
    def step(parameters, state, inputs):
        updates, state = optimizer.update(gradients(parameters, inputs), state)
        return optax.apply_updates(parameters, updates), state
    return step, optimizer.init(parameters)

batches = rng.standard_normal((60, 64, 20)).astype(np.float32)
exact, exact_state = trainer("lossless")
one, _ = exact(parameters, exact_state, batches[0])
dense = gradient(parameters, batches[0])
assert all(np.allclose(one[n], -0.1 * dense[n], atol=1e-6) for n in one)

step, state = trainer(gcodec.TopK(density=0.2), rules={"b": "lossless"}, non_finite="propagate")
first, after = step(parameters, state, batches[0])
kept = after[0].residual["w"]
assert kept.shape == (4, 20, 3) and len({np.asarray(r).tobytes() for r in kept}) == 4
assert kept.sharding.spec == P("data"), "each residual stays on its device"
sums = gradients(parameters, batches[0])["w"].sum(0)
assert np.allclose(-10 * first["w"] * 4 + kept.sum(0), sums, atol=1e-5), "nothing is lost"
for leaf in jax.tree.leaves(first):
    assert len(leaf.addressable_shards) == 4 and len({np.asarray(s.data).tobytes() for s in leaf.addressable_shards}) == 1

bad = batches[1].copy()
bad[20, 3] = np.nan
nan, same = step(first, after, bad)
assert np.isnan(nan["w"]).all() and np.array_equal(same[0].residual["w"], kept)

now = parameters
for batch in batches:
    now, state = step(now, state, batch)
assert float(jnp.abs(now["w"] - truth).max()) < 0.2, float(jnp.abs(now["w"] - truth).max())

noisy, noisy_state = trainer("qsgd:bits=2")
drawn = noisy(parameters, noisy_state, np.tile(batches[0][:16], (4, 1)))[1][0].residual["w"]
assert len({np.asarray(r).tobytes() for r in drawn}) == 4, "senders draw independently"

def refused(text, call):
    try:
        call()
    except gcodec.InputError as e:
        assert text in str(e), e
    else:
        raise AssertionError("accepted")

refused("senders or exchange", lambda: gcodec.jax.compress("topk", senders=4, exchange=gcodec.jax.process_exchange))
refused("outside jax.jit", lambda: jax.jit(step)(parameters, state, batches[0]))
transform = gcodec.jax.compress("topk", senders=3)
refused("not the 3 senders", lambda: transform.update(gradients(parameters, batches[0]), transform.init(parameters)))
print("done")
"""


def test_four_devices() -> None:
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", PROGRAM]
    out = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, timeout=240)
    assert out.returncode == 0 and out.stdout == "done\n", out.stderr
