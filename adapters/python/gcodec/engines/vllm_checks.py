"""Do vLLM's workers hold the trainer's weights, bit for bit? Each worker digests its own, on its device.

    llm = LLM(model=.., worker_extension_cls="gcodec.engines.vllm_checks.Worker")
    for line in differences(llm, trainer.state_dict()):
        print(line)        # model.layers.3.self_attn.k_proj.weight: other elements in rows 17 to 18

The digests cross the wire, the weights do not. The layout of a model is taken from its vLLM layers
(`gcodec.engines.vllm_layouts`). Layers that are not known there are an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gcodec import check
from gcodec._tensors.trees import named_tensors
from gcodec.engines.vllm_layouts import UNUSED, held, layout

_ROWS_SHOWN = 4


class Worker:
    """Methods of vLLM's workers, by `worker_extension_cls`, or as a further base of a class for `worker_cls`
    or of another extension."""

    model_runner: Any

    def gcodec_digests(self) -> list[dict[str, Any]]:
        """Returns the digests of the weights that this worker holds."""
        model = self.model_runner.get_model()
        own = layout(model)
        return [asdict(one) for one in check.digest({name: held(model, name) for name in own}, own).regions]

    def gcodec_rows(self, name: str, first: int, end: int) -> str:
        """Returns the digest of some rows of a tensor of the checkpoint, as far as this worker holds them."""
        model = self.model_runner.get_model()
        own = {parameter: parts for parameter, parts in layout(model).items() if any(part.name == name for part in parts)}
        return check.rows({parameter: held(model, parameter) for parameter in own}, name, first, end, own)


def digests(llm: Any) -> check.Digests:
    """Returns the digests of the weights that the workers of an `LLM` hold.

    Raises:
        InputError: a worker's model has a layer whose layout is not known.
    """
    return merged(llm.collective_rpc("gcodec_digests"))


def merged(found: Iterable[list[dict[str, Any]]]) -> check.Digests:
    """Returns the digests of what `gcodec_digests` returned on each worker, also as JSON."""
    return check.merge(check.Digests(tuple(map(check.region, rank))) for rank in found)


def differences(llm: Any, weights: Any) -> list[str]:
    """Returns a line for each tensor that the workers of an `LLM` hold with other elements than `weights`, or
    not at all, with the ranges of rows that differ; none if all are equal.

    Args:
        llm: made with `worker_extension_cls="gcodec.engines.vllm_checks.Worker"`.
        weights: the checkpoint's tensors by name, as the trainer has them, on any device.

    Raises:
        InputError: as `digests`.
    """
    named = {name: x for name, x in named_tensors(weights).items() if not name.endswith(UNUSED)}
    return [_with_rows(llm, named, line) for line in check.digest(named).differences(digests(llm))]


def _with_rows(llm: Any, weights: dict[str, Any], line: str) -> str:
    name, _, what = line.rpartition(": ")
    if what != "other elements" or not weights[name].shape:
        return line

    def theirs(first: int, end: int) -> str:
        return check.add(llm.collective_rpc("gcodec_rows", args=(name, first, end)))

    own = {name: weights[name]}
    found = check.bisect(weights[name].shape[0], lambda first, end: check.rows(own, name, first, end), theirs, most=_ROWS_SHOWN)
    ranges = [str(first) if end == first + 1 else f"{first} to {end - 1}" for first, end in found]
    return f"{line} in rows {', '.join(ranges)}" if ranges else line
