"""Quantised weights: which tensors of a checkpoint are one unit, a weight and what is needed to read it.

    for unit, names in gcodec.units.find(checkpoint).items():
        print(unit, names)      # model.layers.0.mlp.down_proj, ('..weight', '..weight_scale_inv')

New elements with an old scale are wrong weights, and nothing fails. A `gcodec.sync.Receiver` therefore takes
a unit whole, and `gcodec.check.Digests.units` has one digest for it. Scales of activations are no part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["find", "unit_of"]

_WEIGHTS = ("weight", "weight_packed", "qweight", "blocks")
"""Last parts of the names of elements: floats or packed nibbles."""

_COMPANIONS = (
    # fp8, int8 and int4 of compressed-tensors; its nvfp4 has a scale of scales.
    "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale",
    # fp8 with a scale per block, as DeepSeek-V3 has it, and the scale of scales of ModelOpt's nvfp4.
    "weight_scale_inv", "weight_scale_2",
    # GPTQ and AWQ; mxfp4, as gpt-oss has it.
    "qzeros", "scales", "g_idx",
)  # fmt: skip
"""Last parts of the names of what is needed to read these elements."""

# A stem ends with a point (`q_proj.weight`) or with a line (`experts.w13_weight`, `gate_up_proj_blocks`).
_NAME = re.compile(rf"(?P<stem>.*[._]|)(?P<leaf>{'|'.join((*_WEIGHTS, *_COMPANIONS))})")


def unit_of(name: str) -> str | None:
    """Returns the unit that a tensor of this name would be in; None if its name is of no such kind."""
    found = _NAME.fullmatch(name)
    return None if found is None else found["stem"][:-1]


def find(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Returns the tensors of each unit, in the order of `names`, by the name that they share.

    A weight without scales is no unit, and scales without a weight are none.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        if (unit := unit_of(name)) is not None:
            found.setdefault(unit, []).append(name)
    return {unit: tuple(own) for unit, own in found.items() if len(own) > 1 and any(map(_is_weight, own))}


def _is_weight(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and found["leaf"] in _WEIGHTS
