"""Compressed updates in JAX: an optax transformation, and an exchange between processes.

    optimizer = optax.chain(gcodec.jax.compress(gcodec.TopK(density=0.01)), optax.sgd(0.1))

`gcodec.encode` and `gcodec.decode` handle pytrees without this module.
"""

from gcodec.jax.processes import Exchange, process_exchange
from gcodec.jax.transformation import CompressState, compress

__all__ = ["CompressState", "Exchange", "compress", "process_exchange"]
