"""Does an SGLang server hold the trainer's weights, bit for bit? Each rank digests its own, on its device.

    GCODEC_CHECKS=/shared/checks.json python -m sglang.launch_server --model /models/m \\
        --custom-weight-loader gcodec.engines.sglang_checks.check

A trainer then sends a request that updates weights, with `load_format="gcodec.engines.sglang_checks.check"`
and the tensors of `request`: digests, a few bytes for each weight. Nothing is loaded. The answer is in the
server's log, and in the file of `GCODEC_CHECKS` (`read`). SGLang's own check compares an engine with itself.

Linear layers, embeddings and norms are known here; a model with other layers is reported as such.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gcodec import check as checks
from gcodec.engines.vllm_layouts import kinds_of, linear, vocabulary
from gcodec.errors import InputError

DIGESTS = "gcodec.digests"
"""The name of the tensor with the expected digests (uint8): what `gcodec digest --json` prints."""
REPORT = "GCODEC_CHECKS"
"""The variable with the file for the result of the last check: on each server its own. It is replaced."""

_FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
"""The tensors in fused layers, as SGLang's models load them, unless a model has its own list."""

_log = logging.getLogger(__name__)


def request(weights: Any) -> list[tuple[str, torch.Tensor]]:
    """Returns the digests of a trainer's weights, or those given, as the tensors of a request to SGLang."""
    expected = weights if isinstance(weights, checks.Digests) else checks.digest(weights)
    return [(DIGESTS, torch.frombuffer(bytearray(expected.json().encode()), dtype=torch.uint8))]


def check(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Compares the weights of all ranks with the digests of a request, and reports the result. SGLang calls
    it on every rank.

    It raises nothing: SGLang's scheduler would end.
    """
    given = dict(named_tensors)
    try:
        if given.keys() != {DIGESTS} or given[DIGESTS].dtype != torch.uint8:
            raise InputError(f"the check takes one tensor of bytes called {DIGESTS!r}, and got {sorted(given)}")
        expected = checks.Digests.from_json(given[DIGESTS].detach().cpu().numpy().tobytes())
    except InputError as e:
        _report({"error": str(e)})
        return
    try:
        found = differences(model, expected)
        _report({"expected": expected.sum, "differences": found})
    except InputError as e:
        _report({"expected": expected.sum, "error": str(e)})


def read(path: str | os.PathLike[str]) -> list[str]:
    """Returns the differences of the last check, a line for each tensor; none if all weights were equal.

    Raises:
        InputError: the check could not be made.
    """
    found = json.loads(Path(path).read_text())
    if "error" in found:
        raise InputError(found["error"])
    return list(found["differences"])


def differences(model: torch.nn.Module, expected: checks.Digests) -> list[str]:
    """Returns a line for each tensor that the ranks of a model hold with other elements, or not at all. Every
    rank calls it.

    Raises:
        InputError: a layer is not known here.
    """
    try:
        own: Any = [asdict(one) for one in checks.digest(dict(model.named_parameters()), layout(model)).regions]
    except InputError as e:
        # The other ranks wait for this one.
        own = str(e)
    ranks = [own]
    if torch.distributed.is_initialized():
        ranks = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(ranks, own)
    if errors := [one for one in ranks if isinstance(one, str)]:
        raise InputError(errors[0])
    return expected.differences(checks.merge(checks.Digests(tuple(map(checks.region, rank))) for rank in ranks))


def layout(model: torch.nn.Module) -> checks.Layout:
    """Returns what the parameters of an SGLang model on this rank hold of the checkpoint.

    Raises:
        InputError: a layer is not known here, or is quantised.
    """
    packed = _FUSED | dict(getattr(model, "packed_modules_mapping", {}))
    return {name: list(_parts(model, name, parameter, packed)) for name, parameter in model.named_parameters()}


def _parts(model: torch.nn.Module, name: str, parameter: Any, packed: dict[str, list[str]]) -> Iterator[checks.Part]:
    path = name.rpartition(".")[0]
    module: Any = model.get_submodule(path)
    kinds, method = kinds_of(module), getattr(module, "quant_method", None)
    if method is not None and not any(kind.startswith("Unquantized") for kind in kinds_of(method)):
        raise InputError(f"{name}: the layout of {type(method).__name__} is not known: the layer is quantised")
    if "VocabParallelEmbedding" in kinds:
        yield vocabulary(name, parameter, module)
    elif "LinearBase" in kinds:
        yield from linear(name, tuple(parameter.shape), path, module, packed, _rank(module, "tp_group"), _rank(module, "kv_tp_group"))
    elif "FusedMoE" in kinds:
        raise InputError(f"{name}: the layout of {type(module).__name__} is not known")
    else:
        yield checks.Part(name)


def _rank(module: Any, group: str) -> tuple[int, int]:
    """Returns the rank and the size of a layer's group; without one, the layer is whole on each rank."""
    found = getattr(module, group, None)
    return (0, 1) if found is None else (found.rank_in_group, found.world_size)


def _report(result: dict[str, Any]) -> None:
    if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    wrong = result.get("error") or "; ".join(result["differences"])
    _log.log(logging.ERROR if wrong else logging.INFO, "gcodec's check of the weights: %s", wrong or "all are equal")
    if path := os.environ.get(REPORT):
        with tempfile.NamedTemporaryFile("w", dir=Path(path).parent, delete=False) as file:
            json.dump(result, file)
        Path(file.name).replace(path)
