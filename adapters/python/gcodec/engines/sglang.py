"""Weight sync into SGLang: a function for `--custom-weight-loader`.

    GCODEC_CHECKPOINT=/models/m python -m sglang.launch_server --model /models/m \\
        --custom-weight-loader gcodec.engines.sglang.load

A sender then updates the weights with `load_format="gcodec.engines.sglang.load"` and one tensor, named by
`STREAM`:
the bytes of a stream, as `gcodec.sync.Sender` makes them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gcodec.engines.checkpoints import checkpoint
from gcodec.errors import GcodecError, InputError
from gcodec.patches import Patch
from gcodec.sync import Receiver, Staged

STREAM = "gcodec.stream"
"""The name of the tensor with the bytes of a stream (uint8)."""
CHECKPOINT = "GCODEC_CHECKPOINT"
"""The variable with the folder of the checkpoint that the server has loaded, which is version 0."""

_log = logging.getLogger(__name__)
_receivers: WeakKeyDictionary[torch.nn.Module, Receiver] = WeakKeyDictionary()


def named_tensors(data: bytes) -> list[tuple[str, torch.Tensor]]:
    """Returns a stream as the tensors of a request to SGLang."""
    return [(STREAM, torch.frombuffer(bytearray(data), dtype=torch.uint8))]


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Verifies a version, and loads the tensors that it changes through the model's own `load_weights`.
    SGLang calls it on every rank.

    A version that a rank refuses is loaded by none, and is an error in the log, with the rank, the tensor and
    the reason: an exception would end SGLang's scheduler. The server goes on with the weights that it has,
    which `gcodec.engines.sglang_checks` tells from the sender's.

    Raises:
        PoisonedError: `load_weights` failed half-way. The server must not go on: its weights are neither
            version.
    """
    staged, refused = _stage(model, named_tensors)
    if refused:
        _log.error("gcodec loads nothing, and the weights stay as they are: %s", "; ".join(refused))
        return
    receiver = receiver_of(model)
    for one in staged:
        one.commit(lambda patches: _load(model, receiver, patches))


def _stage(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[Staged], list[str]]:
    """Verifies a version. Returns it, and why ranks refuse it."""
    staged, refused = [], None
    try:
        streams = list(named_tensors)
        if [(name, tensor.dtype) for name, tensor in streams] != [(STREAM, torch.uint8)]:
            raise InputError(f"the loader takes one tensor of bytes called {STREAM!r}, and got {[name for name, _ in streams]}")
        data = streams[0][1].detach().cpu().contiguous().numpy()
        staged.append(receiver_of(model).stage(data))
    except Exception as e:
        # The other ranks wait for this one.
        refused = str(e) if isinstance(e, GcodecError) else f"{type(e).__name__}: {e}"
    ranks = [refused]
    if torch.distributed.is_initialized():
        ranks = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(ranks, refused)
    return staged, [f"rank {rank}: {why}" for rank, why in enumerate(ranks) if why is not None]


def receiver_of(model: torch.nn.Module) -> Receiver:
    """Returns the receiver of a model, which begins with the checkpoint."""
    if model not in _receivers:
        folder = os.environ.get(CHECKPOINT)
        if not folder:
            raise InputError(f"set {CHECKPOINT} to the folder of the checkpoint that the server has loaded")
        _receivers[model] = Receiver(checkpoint(folder))
    return _receivers[model]


def _load(model: Any, receiver: Receiver, patches: Mapping[str, Patch]) -> None:
    def whole() -> Iterator[tuple[str, torch.Tensor]]:
        for name, patch in patches.items():
            tensor = receiver.weights[name].clone()
            patch.apply_(tensor)
            yield name, tensor

    model.load_weights(whole())
