"""The libraries that tensors belong to, and their element types that DLPack or NumPy has no name for."""

from __future__ import annotations

import functools
import sys
from typing import Any, Literal

Framework = Literal["numpy", "torch", "jax"]
"""The library of resulting tensors."""

# Element types of ml_dtypes, which NumPy does not export through DLPack, and their names here.
ML_DTYPES = {
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz",
}


def framework_of(x: Any) -> Framework | None:
    """Returns the library of a tensor; None for `gcodec.Tensor` and for other libraries."""
    kind: type = type(x)
    return _framework_of_type(kind)


@functools.lru_cache(maxsize=64)
def _framework_of_type(kind: type) -> Framework | None:
    module = kind.__module__.partition(".")[0]
    if module in ("jaxlib", "jax"):
        return "jax"
    if "torch" in sys.modules and issubclass(kind, sys.modules["torch"].Tensor):
        return "torch"
    return "numpy" if module in ("numpy", "ml_dtypes") else None
