"""A worker in JAX: `python jax_worker.py --connect ADDRESS --name jax`."""

from __future__ import annotations

import os

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from session import train

import gcodec

Tree = dict[str, jax.Array]

SHAPES = {"hidden.weight": (512, 64), "hidden.bias": (512,), "output.weight": (10, 512), "output.bias": (10,)}
tree: Tree = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


def loss_of(tree: Tree, pixels: jax.Array, labels: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(pixels @ tree["hidden.weight"].T + tree["hidden.bias"])
    outputs = jax.nn.log_softmax(hidden @ tree["output.weight"].T + tree["output.bias"])
    return -jnp.take_along_axis(outputs, labels[:, None], axis=1).mean()


loss_and_gradient = jax.jit(jax.value_and_grad(loss_of))


def start(update: gcodec.Update) -> None:
    # Copies: the update owns its memory.
    tree.update({name: jnp.array(tensor) for name, tensor in update.tensors("jax").items()})


def gradient(pixels: np.ndarray, labels: np.ndarray) -> tuple[float, Tree]:
    loss, gradients = loss_and_gradient(tree, pixels, labels.astype(np.int32))
    return float(loss), gradients


def subtract(update: gcodec.Update) -> None:
    # A separate operation: in a larger program XLA might fuse it with another and round once for both.
    tree.update({name: tree[name] - step for name, step in update.tensors("jax").items()})


train(f"JAX {jax.__version__}", start, gradient, subtract, lambda: tree)
