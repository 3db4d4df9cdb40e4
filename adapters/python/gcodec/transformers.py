"""Weight sync of Hugging Face models: a callback that publishes, and a follower that pulls.

    trainer = Trainer(.., callbacks=[gcodec.transformers.Publish(publisher)])      # TRL's trainers, too

    follower = gcodec.transformers.Follower(model, gcodec.sync.Folder("weights"))  # a model that serves
    follower.pull()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback

from gcodec.patches import Patch, Patches
from gcodec.sources import Source
from gcodec.sync import Publisher, Receiver
from gcodec.torch.names import plain


class Publish(TrainerCallback):
    """Publishes the weights after every `every`-th optimizer step.

    Args:
        publisher: where versions go; ranks other than 0 need none.
        every: optimizer steps between versions. Default: 1.
    """

    def __init__(self, publisher: Publisher | None, *, every: int = 1) -> None:
        self.publisher, self.every = publisher, every

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Publishes."""
        del args, control
        if state.global_step % self.every:
            return
        # Every rank takes part in gathering shards.
        weights = {name: _whole(tensor) for name, tensor in weights_of(model).items()}
        if state.is_world_process_zero and self.publisher is not None:
            self.publisher.publish(weights)


class Follower:
    """A model that follows versions of its weights.

    Between two calls of the model, `pull` brings it to the newest version. Weights on the host change in
    place, without a copy; for weights on a device, a copy is kept on the host.

    Args:
        model: the model, with the weights of `version`.
        source: where versions come from.
        version: Default: 0.
    """

    def __init__(self, model: torch.nn.Module, source: Source, version: int = 0) -> None:
        self._weights, self._source = weights_of(model), source
        on_host = all(tensor.device.type == "cpu" for tensor in self._weights.values())
        self._in_place = on_host
        copies = {name: tensor if on_host else tensor.to("cpu") for name, tensor in self._weights.items()}
        self.receiver = Receiver(copies, version)

    @property
    def version(self) -> int:
        """The version of the weights."""
        return self.receiver.version

    def pull(self, target: int | None = None) -> int:
        """Goes to version `target`, or the newest, and returns it.

        Raises:
            InputError, FormatError, PoisonedError: as `gcodec.sync.Receiver.stage`. The model has the last
                version that was whole, unless it is poisoned.
        """
        after = None if self.receiver.poisoned else self.receiver.version
        for data in self._source.streams(after, target):
            self.receiver.stage(data).commit(None if self._in_place else self._load)
        return self.version

    def _load(self, patches: Mapping[str, Patch]) -> None:
        assert isinstance(patches, Patches)
        patches.apply_(self._weights)


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns parameters and persistent buffers, each tensor once, by their names in a checkpoint."""
    out: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            out[plain(name).removeprefix("module.")] = tensor.detach()
    return out


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    gather = getattr(tensor, "full_tensor", None)
    return gather() if gather is not None else tensor
