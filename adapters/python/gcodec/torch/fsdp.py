"""Compressed gradients in FSDP2 (`fully_shard`), by its own extension points.

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = gcodec.torch.Sharded(model, gcodec.TopK(density=0.01))

With `replicas=group`, gradients are compressed between the replicas of a hybrid arrangement instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from gcodec._tensors.update import check_rules
from gcodec.codecs import Codec, spec_of
from gcodec.errors import InputError
from gcodec.feedback import Dgc
from gcodec.options import Options, resolve
from gcodec.torch.backward import raise_after_backward
from gcodec.torch.finite import NotFinite
from gcodec.torch.fsdp_modules import Replicated, Scattered
from gcodec.torch.index_sets import SETS
from gcodec.torch.names import plain
from gcodec.torch.ranks import Profile
from gcodec.torch.scaling import scale_of
from gcodec.torch.schedule import Schedule

USED = ("rules", "feedback", "non_finite", "limits")


class Sharded:
    """Compresses the gradients of a model under `fully_shard`.

    Each rank compresses the parts of its gradient that belong to other ranks, and sends each to its rank: a
    reduce-scatter of frames. Residuals are added to the next step. Each rank sums the frames for its own
    part in the order of the ranks. With HSDP, the all-reduce between replicas that follows is not
    compressed.

    With `replicas`, `fully_shard` gets the mesh of one replica; its reduce-scatter is not compressed, but the
    mean over the replicas is. This suits replicas with slow links between them.

    If a gradient of a rank is not finite, or a mean, all gradients of the module become NaN on all ranks, and
    residuals are those before the step: skip the step. An error of one rank is raised on all ranks.

    `state_dict()` and `load_state_dict()` make it a `Stateful` of `torch.distributed.checkpoint`: put it
    into the checkpoint's dict beside model and optimizer. Residuals belong to a rank, so a checkpoint is
    loaded with as many ranks as it was saved with.

    Args:
        model: the model, after `fully_shard`.
        codec: a codec that keeps no state of its own. Codecs that round or draw at random do so independently
            at each step and rank.
        options: see `gcodec.Options`. Used: rules (by the names of parameters; each must match one),
            feedback (True or False; default True), non_finite (`reject`: all ranks raise; default
            `propagate`), limits.
        scaler: the `GradScaler` of the loss, as in `State`. Default: None, no loss scaling.
        replicas: the group of the ranks that hold the same shard. Default: None.

    Raises:
        InputError: the model has no module under `fully_shard`, or an option or codec does not fit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        codec: Codec | str,
        *,
        scaler: torch.amp.GradScaler | None = None,
        replicas: dist.ProcessGroup | None = None,
        **options: Unpack[Options],
    ) -> None:
        chosen = resolve("gcodec.torch.Sharded", USED, options)
        chosen = replace(chosen, non_finite=chosen.non_finite or "propagate", feedback=chosen.feedback is not False)
        if isinstance(codec, (Dgc, *SETS, Schedule)):
            raise InputError(f"Sharded takes no {type(codec).__name__}, which keeps state of its own: use gcodec.TopK")
        for one in (codec, *(chosen.rules or {}).values()):
            if spec_of(one).partition(":")[0] == "delta":
                raise InputError("deltas have no mean: use another codec than delta")
        self.codec, self.options, self.replicas = codec, chosen, replicas
        self.scaler = scaler
        """The scaler of the loss."""
        self.scale = 1.0
        """The scale of the gradients of this step."""
        self.step = 0
        self.profile = Profile()
        """Times and traffic so far."""
        self._skipped = False
        self._done: set[str] = set()
        named = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
        if not named:
            raise InputError("the model has no module under fully_shard: call it before Sharded")
        self.rank = dist.get_rank()
        check_rules("gcodec.torch.Sharded", chosen.rules or {}, [n for m in named.values() for n, _ in _managed(model, m)])
        self._units: dict[str, Scattered | Replicated] = {}
        for name, module in named.items():
            parameters = dict(_managed(model, module))
            if not parameters:
                continue
            if replicas is None:
                scattered = Scattered(self, name, parameters)
                module.set_custom_reduce_scatter(scattered)
                if scattered.hybrid:
                    module.set_all_reduce_hook(scattered.after_all_reduce)
                self._units[name] = scattered
            else:
                replicated = Replicated(self, name, parameters, replicas)
                module.set_all_reduce_hook(replicated)
                self._units[name] = replicated

    def begin(self, name: str) -> None:
        """Notes that a module exchanges; the first that does so again begins a step."""
        if name in self._done:
            for unit in self._units.values():
                unit.commit()
            self.step += 1
            self._skipped = False
            self._done.clear()
        if not self._done:
            self.scale = scale_of(self.scaler)
        self._done.add(name)

    def end(self, name: str, finite: bool) -> None:
        """Notes whether the gradient of a module is finite. If one is not, the whole step is taken back."""
        self._skipped = self._skipped or not finite
        if self._skipped:
            for done in self._done:
                self._units[done].undo()

    def fail(self, name: str, gradient: torch.Tensor, error: Exception) -> None:
        """Takes the whole step back, which failed on all ranks at a module, and makes its gradient NaN. The
        backward pass raises the error unless it is NotFinite."""
        gradient.fill_(complex("nan+nanj") if gradient.is_complex() else float("nan"))
        self.end(name, finite=False)
        if not isinstance(error, NotFinite):
            raise_after_backward(error)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals and the step, by keys that differ from rank to rank."""
        for unit in self._units.values():
            unit.commit()
        kept = {f"rank{self.rank}.{key}": x for unit in self._units.values() for key, x in unit.residuals().items()}
        return {f"rank{self.rank}.step": torch.tensor([self.step, dist.get_world_size()]), **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned on this rank.

        Raises:
            InputError: the state is of another model, rank or number of ranks. Nothing is changed.
        """
        prefix = f"rank{self.rank}."
        mine = {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
        if "step" not in mine or int(mine["step"][1]) != dist.get_world_size():
            raise InputError(f"the state is not of rank {self.rank} of {dist.get_world_size()}")
        step = int(mine.pop("step")[0])
        expected = {key: x for unit in self._units.values() for key, x in unit.residuals().items()}
        for key in {*mine, *expected}:
            if key not in mine or key not in expected or mine[key].shape != expected[key].shape:
                raise InputError(f"the state is of another model or arrangement: {key!r} differs")
        for unit in self._units.values():
            unit.load({key: mine[key] for key in unit.residuals()})
        self.step, self._skipped = step, False
        self._done.clear()

    def number(self) -> int:
        """Returns a number that differs between steps and ranks, for codecs that draw at random."""
        return int(self.step * dist.get_world_size() + self.rank)


def _managed(model: torch.nn.Module, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields the trainable parameters that a module under `fully_shard` communicates, in its order."""
    names = {id(p): plain(name) for name, p in model.named_parameters(remove_duplicate=False)}
    seen: set[int] = set()

    def walk(inner: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
        for child in inner.children():
            if not isinstance(child, FSDPModule) and id(child) not in seen:
                yield from walk(child)
        seen.add(id(inner))
        yield from inner.parameters(recurse=False)

    for parameter in walk(module):
        if parameter.requires_grad and id(parameter) not in seen:
            seen.add(id(parameter))
            yield names[id(parameter)], parameter
