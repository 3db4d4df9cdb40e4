"""Errors of an exchange inside a backward pass."""

from __future__ import annotations

import torch


def raise_after_backward(error: BaseException) -> None:
    """Raises at the end of the running backward pass.

    An error that is raised by a hook leaves DistributedDataParallel and FSDP2 in the middle of their step, so
    that no further step is possible. DistributedDataParallel ends its step in a callback of the backward pass
    that it adds after its last hook, FSDP2 in one that it adds before. So this callback adds another one,
    which comes after both.
    """
    engine = torch.autograd.Variable._execution_engine

    def raise_it() -> None:
        raise error

    engine.queue_callback(lambda: engine.queue_callback(raise_it))
