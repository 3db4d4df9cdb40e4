"""Compressed gradients in FSDP2 (`fully_shard`), by its own extension points.

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = gcodec.torch.Sharded(model, gcodec.TopK(density=0.01))

With `replicas=group`, gradients are compressed between the replicas of a hybrid arrangement instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gcodec import _native
from gcodec._tensors.update import PART_BYTES, check_rules, native_update
from gcodec.codecs import Codec, numbered, spec_of
from gcodec.errors import InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.options import Options, resolve
from gcodec.reduction import reduce
from gcodec.shards import Place
from gcodec.torch.exchange import Exchange
from gcodec.torch.finite import NotFinite, is_finite
from gcodec.torch.handshake import check, greeting
from gcodec.torch.index_sets import SETS
from gcodec.torch.names import Tensors, described, plain
from gcodec.torch.ranks import Profile, Ranks
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

    If a gradient of a rank is not finite, all gradients of the module become NaN on all ranks, and residuals
    are those before the step: skip the step. An error of one rank is raised on all ranks.

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
        replicas: the group of the ranks that hold the same shard. Default: None.

    Raises:
        InputError: the model has no module under `fully_shard`, or an option or codec does not fit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        codec: Codec | str,
        *,
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
        self.step, self.rank = 0, dist.get_rank()
        self.profile = Profile()
        """Times and traffic so far."""
        self._skipped = False
        self._done: set[str] = set()
        named = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
        if not named:
            raise InputError("the model has no module under fully_shard: call it before Sharded")
        check_rules("gcodec.torch.Sharded", chosen.rules or {}, [n for m in named.values() for n, _ in _managed(model, m)])
        self._units: dict[str, _Scattered | _Replicated] = {}
        for name, module in named.items():
            parameters = dict(_managed(model, module))
            if not parameters:
                continue
            if replicas is None:
                scattered = _Scattered(self, name, parameters)
                module.set_custom_reduce_scatter(scattered)
                if scattered.hybrid:
                    module.set_all_reduce_hook(scattered.after_all_reduce)
                self._units[name] = scattered
            else:
                replicated = _Replicated(self, name, parameters, replicas)
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
        self._done.add(name)

    def end(self, name: str, finite: bool) -> None:
        """Notes whether the gradient of a module is finite. If one is not, the whole step is taken back."""
        self._skipped = self._skipped or not finite
        if self._skipped:
            for done in self._done:
                self._units[done].undo()

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


class _Scattered:
    """The reduce-scatter of one module, as `FSDPModule.set_custom_reduce_scatter` takes it."""

    def __init__(self, state: Sharded, name: str, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._state, self._name, self._parameters = state, name, parameters
        self._ranks: Ranks | None = None
        first = next(iter(parameters.values()))
        if not isinstance(first, DTensor):
            raise InputError("the parameters are not DTensors: call fully_shard before Sharded")
        # The last dimension of the mesh is the one of shards.
        self._world = first.device_mesh.size(first.device_mesh.ndim - 1)
        self.hybrid = first.device_mesh.ndim > 1
        """Whether an all-reduce between replicas follows."""
        self._parts = [dict(self._part(rank)) for rank in range(self._world)]
        self._feedback = [Feedback() for _ in range(self._world)] if state.options.feedback else []

    def _part(self, rank: int) -> Iterator[tuple[str, tuple[int, tuple[int, ...], Place]]]:
        """Yields the part of each parameter that belongs to a rank: padded elements, shape and place."""
        for name, parameter in self._parameters.items():
            shape = tuple(parameter.shape)
            if any(p.is_shard() and p.dim != 0 for p in parameter.placements):
                raise InputError(f"{name!r} is sharded in another dimension than its first")
            rows = -(-shape[0] // self._world)
            start = min(rank * rows, shape[0])
            own = (min(rows, shape[0] - start), *shape[1:])
            yield name, (rows * math.prod(shape[1:]), own, (list(shape), [start] + [0] * (len(shape) - 1)))

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for a gradient."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """Sums the parts of all ranks that belong to this one."""
        state = self._state
        state.begin(self._name)
        state.profile.exchanges += 1
        ranks = self._meet(group, input_tensor.dtype)
        ranks.use(input_tensor.device)
        mean, error = op == dist.ReduceOp.AVG, None
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            error = InputError("Sharded cannot be used with set_gradient_divide_factor")
        expected = sum(padded for padded, _, _ in self._parts[0].values()) * self._world
        if input_tensor.numel() != expected:
            error = InputError(
                f"the gradient of {self._name or 'the model'!r} has {input_tensor.numel()} elements, its parameters {expected}: "
                "call set_reduce_scatter_unused_params(True) if some parameters have no gradient"
            )
        encoded: list[memoryview] = [memoryview(b"")] * self._world
        if error is None:
            try:
                rows = input_tensor.view(self._world, -1)
                encoded = [memoryview(self._encoded(rows[to], to, ranks)) for to in range(self._world)]
            except Exception as e:
                error = e  # type: ignore[assignment]
        try:
            ranks.sizes(0, error, state.options.non_finite == "propagate")
        except NotFinite:
            output_tensor.fill_(float("nan"))
            state.profile.skipped += 1
            state.end(self._name, finite=False)
            return
        except BaseException:
            state.end(self._name, finite=False)
            raise
        total = reduce(ranks.swap(encoded), mean=mean, limits=state.options.limits or Limits()).tensors("torch")
        at, finite = 0, True
        output_tensor.zero_()
        for name, (padded, _, _) in self._parts[ranks.rank].items():
            one = total[name].reshape(-1)
            output_tensor[at : at + one.numel()].copy_(one)
            finite = finite and is_finite(one)
            at += padded
        state.end(self._name, finite)

    def after_all_reduce(self, reduced: torch.Tensor) -> None:
        """Takes the step back if another replica has a number that is not finite."""
        if not is_finite(reduced):
            self._state.end(self._name, finite=False)

    def _encoded(self, row: torch.Tensor, to: int, ranks: Ranks) -> _native.Encoded:
        """Returns the frames of the part that belongs to a rank."""
        state, at = self._state, 0
        tensors, places = {}, {}
        for name, (padded, shape, place) in self._parts[to].items():
            tensors[name] = row[at : at + math.prod(shape)].view(shape)
            places[name] = place
            at += padded
        number = state.number() * self._world + to
        options = replace(
            state.options,
            rules={glob: numbered(rule, number) for glob, rule in (state.options.rules or {}).items()},
            feedback=self._feedback[to] if self._feedback else None,
            header=UpdateHeader(step=state.step, sender=ranks.rank, world=ranks.world),
            non_finite=None if state.options.non_finite == "propagate" else state.options.non_finite,
        )
        codec = numbered(state.codec, number)
        update = native_update("gcodec.torch", tensors, codec, options, provisional=True, shards=places)
        return _native.Encoder(PART_BYTES, False, True).update(update, finish=True)

    def _meet(self, group: dist.ProcessGroup, dtype: torch.dtype) -> Ranks:
        """Compares the settings of the ranks, before the first exchange."""
        if self._ranks is None:
            ranks = Ranks(group)
            ranks.profile = self._state.profile
            check([bytes(one) for one in ranks.gather(_greeting(self._state, self._parameters, ranks.world, dtype))])
            self._ranks = ranks
        return self._ranks

    def commit(self) -> None:
        """Accepts the change of the residuals."""
        for feedback in self._feedback:
            feedback._native.commit()

    def undo(self) -> None:
        """Restores the residuals from before the step."""
        for feedback in self._feedback:
            feedback._native.undo()

    def residuals(self) -> dict[str, torch.Tensor]:
        """Returns the residuals, zeros where there are none yet."""
        out: dict[str, torch.Tensor] = {}
        for to, feedback in enumerate(self._feedback):
            have = feedback.state_dict("torch")
            for name, (_, shape, _) in self._parts[to].items():
                out[f"to{to}.{name}"] = have[name] if name in have else torch.zeros(shape)
        return out

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores residuals."""
        for to, feedback in enumerate(self._feedback):
            feedback.load_state_dict({name: state[f"to{to}.{name}"] for name in self._parts[to]})


class _Replicated:
    """The mean over replicas of one module's shard."""

    def __init__(
        self, state: Sharded, name: str, parameters: Mapping[str, torch.nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        self._state, self._name = state, name
        self._locals = {n: p.to_local() for n, p in parameters.items() if isinstance(p, DTensor)}
        self._padded = {n: _rows(p) * math.prod(p.shape[1:]) for n, p in parameters.items()}
        options = replace(state.options, rules=_matching(state.options.rules, self._locals))
        described_here: Tensors = described(self._locals)
        self._exchange = Exchange("gcodec.torch.Sharded", state.codec, options, described_here, group, 0)
        self._exchange.share(state.profile)

    def __call__(self, reduced: torch.Tensor) -> None:
        """Replaces the gradient of this rank's shard by its mean over the replicas."""
        state, at = self._state, 0
        state.begin(self._name)
        gradients = {}
        for name, local in self._locals.items():
            gradients[name] = reduced[at : at + local.numel()].view(local.shape).to(local.dtype)
            at += self._padded[name]
        error = None
        if at != reduced.numel():
            error = InputError(
                f"the gradient of {self._name or 'the model'!r} has {reduced.numel()} elements, its parameters {at}: "
                "call set_reduce_scatter_unused_params(True) if some parameters have no gradient"
            )
        try:
            means = self._exchange.mean(gradients, device=reduced.device, error=error, provisional=True)
        except NotFinite:
            reduced.fill_(float("nan"))
            state.end(self._name, finite=False)
            return
        at = 0
        for name, local in self._locals.items():
            reduced[at : at + local.numel()].copy_(means[name].reshape(-1))
            at += self._padded[name]
        state.end(self._name, finite=True)

    def commit(self) -> None:
        """Accepts the change of the residuals."""
        self._exchange.commit()

    def undo(self) -> None:
        """Restores the residuals from before the step."""
        self._exchange.undo()

    def residuals(self) -> dict[str, torch.Tensor]:
        """Returns the residuals, zeros where there are none yet."""
        feedback = self._exchange.feedback
        if feedback is None:
            return {}
        have = feedback.state_dict("torch")
        return {f"mean.{n}": have[n] if n in have else torch.zeros(x.shape) for n, x in self._locals.items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores residuals."""
        if self._exchange.feedback is not None:
            self._exchange.feedback.load_state_dict({key.removeprefix("mean."): x for key, x in state.items()})
        self._exchange.step = self._state.step


def _rows(parameter: torch.nn.Parameter) -> int:
    """Returns the rows of each rank's part, with padding."""
    if not isinstance(parameter, DTensor):
        raise InputError("the parameters are not DTensors: call fully_shard before Sharded")
    shards: int = parameter.device_mesh.size(parameter.device_mesh.ndim - 1)
    return -(-int(parameter.shape[0]) // shards)


def _matching(rules: Mapping[str, Any] | None, names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rules that match a name; those of other modules stay out."""
    from fnmatch import fnmatchcase

    return {glob: rule for glob, rule in (rules or {}).items() if any(fnmatchcase(name, glob) for name in names)}


def _greeting(state: Sharded, parameters: Mapping[str, torch.nn.Parameter], world: int, dtype: torch.dtype) -> bytes:
    tensors: Tensors = {name: (str(dtype), tuple(p.shape)) for name, p in parameters.items()}
    return greeting(
        tensors,
        world=world,
        codec=spec_of(state.codec),
        rules=[(glob, spec_of(rule)) for glob, rule in (state.options.rules or {}).items()],
        feedback=bool(state.options.feedback),
        non_finite=state.options.non_finite,
        step=state.step,
    )
