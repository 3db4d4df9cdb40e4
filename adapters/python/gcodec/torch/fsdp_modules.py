"""The exchanges of one module under `fully_shard`: between shards, and between replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from gcodec import _native
from gcodec._handshake import Tensors, check, greeting
from gcodec._tensors.update import PART_BYTES, native_update
from gcodec.codecs import numbered, spec_of
from gcodec.errors import InputError
from gcodec.feedback import Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.reduction import reduce
from gcodec.shards import Place
from gcodec.torch.exchange import Exchange
from gcodec.torch.finite import NotFinite, is_finite
from gcodec.torch.names import described
from gcodec.torch.pairs import all_reals, joined
from gcodec.torch.ranks import Ranks
from gcodec.torch.scaling import divided_all, is_scaled, scaled

if TYPE_CHECKING:
    from gcodec.torch.fsdp import Sharded


class Scattered:
    """The reduce-scatter of one module, as `FSDPModule.set_custom_reduce_scatter` takes it."""

    def __init__(self, state: Sharded, name: str, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._state, self._name, self._parameters = state, name, parameters
        self._ranks: Ranks | None = None
        first = _first(parameters)
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
        mean, error = op == dist.ReduceOp.AVG, None
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            error = InputError("Sharded cannot be used with set_gradient_divide_factor")
        expected = sum(padded for padded, _, _ in self._parts[0].values()) * self._world
        if input_tensor.numel() != expected:
            error = InputError(
                f"the gradient of {self._name or 'the model'!r} has {input_tensor.numel()} elements, its parameters {expected}: "
                "call set_reduce_scatter_unused_params(True) if some parameters have no gradient"
            )
        propagate = state.options.non_finite == "propagate"
        try:
            ranks = self._meet(group, input_tensor.dtype)
            ranks.use(input_tensor.device)
            encoded = [memoryview(b"")] * self._world
            try:
                if error is None:
                    rows = input_tensor.view(self._world, -1)
                    encoded = [memoryview(self._encoded(rows[to], to, ranks)) for to in range(self._world)]
            except Exception as e:
                error = e  # type: ignore[assignment]
            ranks.sizes(0, error, propagate)
            streams = ranks.swap(encoded)
            parts = ranks.together(lambda: self._reduced(streams, mean, input_tensor.dtype), propagate)
        except Exception as e:
            state.profile.skipped += isinstance(e, NotFinite)
            state.fail(self._name, output_tensor, e)
            return
        at = 0
        output_tensor.zero_()
        for name, (padded, _, _) in self._parts[ranks.rank].items():
            output_tensor[at : at + parts[name].numel()].copy_(parts[name].reshape(-1))
            at += padded
        state.end(self._name, finite=True)

    def _reduced(self, streams: list[memoryview], mean: bool, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Returns this rank's parts of the sum or mean of all streams, in the scale of the step."""
        state = self._state
        total = reduce(streams, mean=mean, limits=state.options.limits or Limits()).tensors("torch")
        dtypes = {} if state.scale == 1 else dict.fromkeys(total, dtype.to_real())
        total = scaled(total, dtypes, state.scale, state.options.non_finite == "propagate")
        return joined(total, total if dtype.is_complex else ())

    def after_all_reduce(self, reduced: torch.Tensor) -> None:
        """Takes the step back if another replica has a number that is not finite."""
        assert self._ranks is not None, "the ranks have met before"
        if _any_not_finite(self._ranks, reduced):
            reduced.fill_(float("nan"))
            self._state.end(self._name, finite=False)

    def _encoded(self, row: torch.Tensor, to: int, ranks: Ranks) -> _native.Encoded:
        """Returns the frames of the part that belongs to a rank."""
        state, at = self._state, 0
        tensors, places = {}, {}
        for name, (padded, shape, place) in self._parts[to].items():
            tensors[name] = row[at : at + math.prod(shape)].view(shape)
            places[name] = place if not row.is_complex() else ([*place[0], 2], [*place[1], 0])
            at += padded
        tensors, _ = divided_all(all_reals(tensors), state.scale)
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
            check(ranks.greetings(_greeting(self._state, self._parameters, ranks.world, dtype)))
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
                pair = (2,) if self._parameters[name].is_complex() else ()
                out[f"to{to}.{name}"] = have[name] if name in have else torch.zeros(*shape, *pair)
        return out

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores residuals."""
        for to, feedback in enumerate(self._feedback):
            feedback.load_state_dict({name: state[f"to{to}.{name}"] for name in self._parts[to]})


class Replicated:
    """The mean over replicas of one module's shard."""

    def __init__(
        self, state: Sharded, name: str, parameters: Mapping[str, torch.nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        self._state, self._name = state, name
        self._locals = {n: p.to_local() for n, p in parameters.items() if isinstance(p, DTensor)}
        self._padded = {n: _rows(p) * math.prod(p.shape[1:]) for n, p in parameters.items()}
        # The ranks of the other shards, which share the steps of this one.
        self._shards = Ranks(_first(parameters).device_mesh.get_group(_first(parameters).device_mesh.ndim - 1))
        self._shards.profile = state.profile
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
        means: dict[str, torch.Tensor] = {}
        failed: Exception | None = None
        try:
            means = self._exchange.mean(gradients, device=reduced.device, scale=state.scale, error=error, provisional=True)
        except Exception as e:
            failed = e
        try:
            self._shards.use(reduced.device)
            self._shards.agree(failed, state.options.non_finite == "propagate")
        except Exception as e:
            state.fail(self._name, reduced, e)
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
        shapes = {n: shape for n, (_, shape) in described(self._locals).items()}
        return {f"mean.{n}": have[n] if n in have else torch.zeros(shape) for n, shape in shapes.items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores residuals."""
        if self._exchange.feedback is not None:
            self._exchange.feedback.load_state_dict({key.removeprefix("mean."): x for key, x in state.items()})
        self._exchange.step = self._state.step


def _first(parameters: Mapping[str, torch.nn.Parameter]) -> DTensor:
    first = next(iter(parameters.values()))
    if not isinstance(first, DTensor):
        raise InputError("the parameters are not DTensors: call fully_shard before Sharded")
    return first


def _any_not_finite(ranks: Ranks, tensor: torch.Tensor) -> bool:
    """Whether a rank's tensor is not finite."""
    try:
        ranks.agree(None if is_finite(tensor) else NotFinite(), propagate=True)  # type: ignore[arg-type]
    except NotFinite:
        return True
    return False


def _rows(parameter: torch.nn.Parameter) -> int:
    """Returns the rows of each rank's part, with padding."""
    if not isinstance(parameter, DTensor):
        raise InputError("the parameters are not DTensors: call fully_shard before Sharded")
    shards: int = parameter.device_mesh.size(parameter.device_mesh.ndim - 1)
    return -(-int(parameter.shape[0]) // shards)


def _matching(rules: Mapping[str, Any] | None, names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rules that match a name; those of other modules stay out."""
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
        limits=asdict(state.options.limits or Limits()),
        scaler=is_scaled(state.scaler),
        step=state.step,
    )
