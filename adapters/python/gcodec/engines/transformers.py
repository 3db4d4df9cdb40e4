"""Weight sync of Hugging Face models through a store: a callback that publishes, and a follower that pulls.

    store = gcodec.store.Store("s3://bucket/run")
    trainer = Trainer(.., callbacks=[gcodec.engines.transformers.Publish(store)])  # TRL's trainers, too

    follower = gcodec.engines.transformers.Follower(model, store)  # a model that serves
    follower.pull()
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from gcodec.store import Follower as StoreFollower
from gcodec.store import Store, Update
from gcodec.torch.names import plain


class Publish(TrainerCallback):
    """Publishes the weights after every `every`-th optimizer step, with the step as `meta["step"]`.

    If the store is empty, the weights before training are its first version: engines that have loaded the
    same checkpoint can begin there.

    Args:
        store: the store of the versions; only rank 0 needs one.
        every: optimizer steps between versions. Default: 1.
    """

    def __init__(self, store: Store | None, *, every: int = 1) -> None:
        self.store, self.every = store, every

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Publishes the first version."""
        del args, control
        # Every rank takes part in gathering shards, and only rank 0 may know the store.
        weights = _gathered(model)
        if state.is_world_process_zero and self.store is not None and self.store.latest() == 0:
            self.store.publish(weights, meta={"step": str(state.global_step)})

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Publishes."""
        del args, control
        if state.global_step % self.every:
            return
        weights = _gathered(model)
        if state.is_world_process_zero and self.store is not None:
            self.store.publish(weights, meta={"step": str(state.global_step)})


class Follower:
    """A model that follows a store.

    Args:
        model: the model.
        store: the store.
        version: the version of the model's weights. Default: None; the first `pull` loads all weights.
    """

    def __init__(self, model: torch.nn.Module, store: Store, version: int | None = None) -> None:
        self._weights = weights_of(model)
        self._follower = StoreFollower(store, None if version is None else self._weights, version)

    @property
    def version(self) -> int | None:
        """The version of the weights; None before the first, and after a load that failed."""
        return self._follower.version

    def stage(self, version: int | None = None) -> Update | None:
        """Downloads and verifies a version, or the latest, while the model serves; None if it has it."""
        update = self._follower.stage(version)
        if update is not None:
            _ = update.patches
        return update

    def commit(self, update: Update) -> int:
        """Writes what changes into the model, in place, and returns the version. The model must not run."""
        return update.commit(lambda patches: patches.apply_(self._weights))

    def pull(self, version: int | None = None) -> int | None:
        """Loads a version, or the latest, and returns its number.

        Raises:
            InputError, FormatError, PoisonedError: as `gcodec.store.Follower`. The model keeps its weights,
                unless it is poisoned.
        """
        update = self.stage(version)
        return self.version if update is None else self.commit(update)


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns parameters and persistent buffers, each tensor once, by their names in a checkpoint."""
    out: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            out[plain(name).removeprefix("module.")] = tensor.detach()
    return out


def _gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns `weights_of`, with the shards of `fully_shard` gathered."""
    weights = weights_of(model)
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in weights.items()}
