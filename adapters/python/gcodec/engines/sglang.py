"""Weight sync into SGLang: a function for `--custom-weight-loader`.

    GCODEC_CHECKPOINT=/models/m python -m sglang.launch_server --model /models/m \\
        --custom-weight-loader gcodec.engines.sglang.load

A sender then updates the weights with `load_format="gcodec.engines.sglang.load"` and one tensor, named by
`STREAM`:
the bytes of a stream, as `gcodec.sync.Sender` makes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gcodec.engines.checkpoints import checkpoint
from gcodec.errors import InputError
from gcodec.patches import Patch
from gcodec.sync import Receiver

STREAM = "gcodec.stream"
"""The name of the tensor with the bytes of a stream (uint8)."""
CHECKPOINT = "GCODEC_CHECKPOINT"
"""The variable with the folder of the checkpoint that the server has loaded, which is version 0."""

_receivers: WeakKeyDictionary[torch.nn.Module, Receiver] = WeakKeyDictionary()


def named_tensors(data: bytes) -> list[tuple[str, torch.Tensor]]:
    """Returns a stream as the tensors of a request to SGLang."""
    return [(STREAM, torch.frombuffer(bytearray(data), dtype=torch.uint8))]


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Verifies a version, and loads the tensors that it changes through the model's own `load_weights`.

    Raises:
        PoisonedError: `load_weights` failed half-way. Send an anchor, or restart the server.
        InputError, FormatError: as `gcodec.sync.Receiver.stage`. The model is unchanged.
    """
    receiver = receiver_of(model)
    for name, tensor in named_tensors:
        if name != STREAM or tensor.dtype != torch.uint8:
            raise InputError(f"the loader takes one tensor of bytes called {STREAM!r}, and got {name!r}")
        data = tensor.detach().cpu().contiguous().numpy()
        receiver.stage(data).commit(lambda patches: _load(model, receiver, patches))


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
