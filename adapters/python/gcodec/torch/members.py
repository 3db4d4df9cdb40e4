"""The parameters of a model that take part in an exchange."""

from __future__ import annotations

import torch

from gcodec.torch.names import all_parameters_of, trainable


class Members:
    """Parameters that are or were trainable, by name, in the order of the model."""

    def __init__(self, model: torch.nn.Module) -> None:
        # Not the model: a state is pickled and copied with its DistributedDataParallel, which holds it.
        self._every = all_parameters_of(model)
        self.known = trainable(self._every)

    def join(self) -> bool:
        """Adds parameters that have become trainable, and returns whether there are any. Parameters that are
        frozen now stay, because they have residuals."""
        if all(name in self.known or not parameter.requires_grad for name, parameter in self._every.items()):
            return False
        self.known = {n: p for n, p in self._every.items() if n in self.known or p.requires_grad}
        return True
