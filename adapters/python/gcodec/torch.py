"""Compressed gradients between the processes of PyTorch.

    ddp = DistributedDataParallel(model)
    state = gcodec.torch.State(model, gcodec.TopK(density=0.01))
    ddp.register_comm_hook(state, gcodec.torch.hook)

`State` and `hook` replace DistributedDataParallel's all-reduce. `DiLoCo` exchanges pseudo-gradients after a
number of local steps. Each rank sums the same frames in the order of the ranks, so all ranks get the same
bits.

Any backend of `torch.distributed` works. With NCCL, frames are copied to the GPU to travel, and back.
Gradients on a GPU are compressed there if the codec runs on devices.
"""

# DistributedDataParallel reads the hook's annotations, which therefore are not strings.

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

import torch
import torch.distributed as dist

from gcodec import _native
from gcodec.codecs import Codec, TopK, numbered, spec_of
from gcodec.errors import GcodecError, InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.options import OptionKeywords, Options, resolve
from gcodec.reduction import reduce
from gcodec.tensors import convert, given
from gcodec.update import PART_BYTES, native_update

__all__ = ["DiLoCo", "Profile", "ScaleCom", "State", "hook"]


@dataclass(frozen=True)
class ScaleCom:
    """ScaleCom's CLT-k (arXiv 2104.11125): one rank in turn chooses elements, and all ranks sum their values
    there.

    It replaces a codec. The positions travel once, in the frame of an index set, and the values by an
    all-reduce, so traffic per rank does not grow with the number of ranks. Gradients are f32.

    Attributes:
        density, k, scope: number of chosen elements, and the scope of the choice, as in `TopK`.
        beta: weight of the residual in the memory, more than 0, at most 1; 1 is plain error feedback.
    """

    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    scope: Literal["tensor", "global"] = field(default="tensor", kw_only=True)
    beta: float = field(default=1.0, kw_only=True)

    @property
    def spec(self) -> str:
        """Specification of the top-k codec that makes the choice."""
        return spec_of(TopK(self.density, k=self.k, scope=self.scope))


@dataclass
class Profile:
    """Times and traffic of the exchanges of one rank: sums over all exchanges, in seconds and bytes."""

    exchanges: int = 0
    """Number of exchanges."""
    selection: float = 0.0
    """Seconds for making blocks: error feedback, selection, quantisation."""
    coding: float = 0.0
    """Seconds for writing frames and for summing them."""
    communication: float = 0.0
    """Seconds in collectives, including the wait for other ranks."""
    other: float = 0.0
    """Seconds for the rest: copies, and Python."""
    sent: int = 0
    """Bytes of this rank's frames, and of the values of its all-reduces."""
    received: int = 0
    """Bytes from other ranks: sizes, padded frames, and 2 (n - 1) / n of the values of an all-reduce, as in a
    ring."""

    def __str__(self) -> str:
        times = ", ".join(
            f"{name} {1e3 * getattr(self, name) / max(self.exchanges, 1):.2f} ms"
            for name in ("selection", "coding", "communication", "other")
        )
        return (
            f"gcodec: {self.exchanges} exchanges; each {times}; "
            f"sent {self.sent / max(self.exchanges, 1):.0f} bytes, received {self.received / max(self.exchanges, 1):.0f}"
        )


class _Exchange:
    """The mean over ranks of named tensors, exchanged compressed."""

    def __init__(
        self,
        codec: Codec | str | Dgc | ScaleCom,
        options: Options,
        group: dist.ProcessGroup | None,
        profile: int,
    ) -> None:
        self._codec, self._options, self._group, self._every = codec, options, group, profile
        self._rules, self._limits = dict(options.rules or {}), options.limits or Limits()
        self._feedback: Feedback | None = None
        if isinstance(codec, (Dgc, ScaleCom)):
            if isinstance(options.feedback, Feedback):
                raise InputError(f"{type(codec).__name__} holds its own residuals: it takes no feedback")
        elif options.feedback is not False:
            self._feedback = options.feedback if isinstance(options.feedback, Feedback) else Feedback()
        # A ScaleCom worker is made at the first exchange, which brings names and shapes. It then loads its
        # memory.
        self._scalecom: _native.ScaleCom | None = None
        self._memory: dict[str, Any] = {}
        if isinstance(codec, ScaleCom):
            if self._rules:
                raise InputError("ScaleCom takes no rules: one choice gives the elements of all tensors")
            if not 0 < codec.beta <= 1:
                raise InputError(f"beta of ScaleCom is {codec.beta}: use more than 0, at most 1")
            _ = codec.spec
        elif not isinstance(codec, Dgc):
            for one in (codec, *self._rules.values()):
                if spec_of(one).partition(":")[0] == "delta":
                    raise InputError("deltas have no mean: use another codec than delta")
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.step = 0
        self.profile = Profile()

    def __getstate__(self) -> dict[str, Any]:
        if self._group is not None:
            raise TypeError("a process group cannot be pickled or copied: use the default group, or save state_dict()")
        # `kept` has the residuals and the codec's state.
        options = replace(self._options, feedback=self._feedback is not None)
        settings = (self._codec, options, None, self._every)
        return {"settings": settings, "kept": self.state_dict(), "profile": self.profile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _Exchange.__init__(self, *state["settings"])
        self.load_state_dict(state["kept"])
        self.profile = state["profile"]

    def mean(self, tensors: dict[str, torch.Tensor], inner_steps: int = 0) -> dict[str, torch.Tensor]:
        """Returns the mean over all ranks of tensors of the same names. `inner_steps`: local steps that they
        cover."""
        start, known = time.perf_counter(), self._accounted()
        on = next(iter(tensors.values())).device
        # NCCL sends from device memory, gloo from host memory.
        self._device = on if "nccl" in str(dist.get_backend(self._group)) else torch.device("cpu")
        if isinstance(self._codec, ScaleCom):
            out = self._by_set(self._codec, tensors)
        else:
            out = self._by_frames(self._codec, tensors, inner_steps)
        self.step += 1
        self.profile.exchanges += 1
        self.profile.other += time.perf_counter() - start - (self._accounted() - known)
        if self._every and self.step % self._every == 0 and self.rank == 0:
            print(self.profile, file=sys.stderr, flush=True)
        return out

    def _accounted(self) -> float:
        return self.profile.selection + self.profile.coding + self.profile.communication

    def _by_frames(
        self, codec: Codec | str | Dgc, tensors: dict[str, torch.Tensor], inner_steps: int
    ) -> dict[str, torch.Tensor]:
        encoded, error = None, None
        try:
            encoded = self._encoded(codec, tensors, inner_steps)
        except (GcodecError, TypeError) as e:
            error = e
        # The preamble and the manifest are the same on all ranks, so they are not sent. If a rank's manifest
        # differs, decoding fails because the update names another one.
        frames = memoryview(encoded or b"")
        head = bytes(frames[: _native.head_bytes(frames)]) if encoded else b""
        sizes = self._sizes(len(frames) - len(head), error)
        streams = self._gathered(head, frames[len(head) :], sizes)
        start = time.perf_counter()
        mean = reduce(streams, mean=True, limits=self._limits)
        self.profile.coding += time.perf_counter() - start
        return mean.tensors("torch")

    def _encoded(
        self, codec: Codec | str | Dgc, tensors: dict[str, torch.Tensor], inner_steps: int
    ) -> _native.Encoded:
        """Returns this rank's frames."""
        # Ranks and steps round and draw independently.
        number = self.step * self.world + self.rank
        chosen = codec if isinstance(codec, Dgc) else numbered(codec, number)
        header = UpdateHeader(
            step=self.step,
            sender=self.rank,
            world=self.world,
            inner_steps=inner_steps,
            label="dgc" if isinstance(codec, Dgc) else spec_of(codec).partition(":")[0],
        )
        rules = {glob: numbered(rule, number) for glob, rule in self._rules.items()}
        options = replace(self._options, rules=rules, feedback=self._feedback, header=header)
        update = native_update("gcodec.torch", tensors, chosen, options)
        encoded = _native.Encoder(PART_BYTES, False, True).update(update, finish=True)
        self.profile.selection += encoded.seconds[0]
        self.profile.coding += encoded.seconds[1]
        return encoded

    def _gathered(self, head: bytes, frames: memoryview, sizes: list[int]) -> list[memoryview]:
        """Sends this rank's frames, and returns the streams of all ranks, each with `head` before its
        frames."""
        buffers = [bytearray(len(head) + max(sizes)) for _ in sizes]
        for buffer in buffers:
            buffer[: len(head)] = head
        bodies = [torch.frombuffer(buffer, dtype=torch.uint8, offset=len(head)) for buffer in buffers]
        bodies[self.rank][: sizes[self.rank]] = torch.frombuffer(bytearray(frames), dtype=torch.uint8)
        start = time.perf_counter()
        moved = [body.to(self._device) for body in bodies]
        dist.all_gather(moved, moved[self.rank].clone(), group=self._group)
        for body, there in zip(bodies, moved, strict=True):
            if there is not body:
                body.copy_(there)
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += sizes[self.rank]
        self.profile.received += (self.world - 1) * max(sizes)
        return [memoryview(buffer)[: len(head) + size] for buffer, size in zip(buffers, sizes, strict=True)]

    def _by_set(self, codec: ScaleCom, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found, error = None, None
        start = time.perf_counter()
        try:
            worker = self._worker(codec, tensors)
            found = worker.begin(self.step, given(tensors))
        except (GcodecError, TypeError) as e:
            error = e
        self.profile.selection += time.perf_counter() - start
        try:
            index_set = self._broadcast(memoryview(found or b""), error)
            start = time.perf_counter()
            values: torch.Tensor = worker.take_set(index_set, self._limits).torch()
            self.profile.coding += time.perf_counter() - start
            mean = self._mean_of(values)
            start = time.perf_counter()
            out = {name: convert(tensor, "torch") for name, tensor in worker.finish(given({"mean": mean}))}
            self.profile.coding += time.perf_counter() - start
            return out
        except BaseException:
            if self._scalecom is not None:
                self._scalecom.abort()
            raise

    def _broadcast(self, frames: memoryview, error: Exception | None) -> bytearray:
        """Returns the frames of the step's leader, whose own are `frames`."""
        leader = self.step % self.world
        size = self._sizes(len(frames), error)[leader]
        buffer = bytearray(frames) if self.rank == leader else bytearray(size)
        start = time.perf_counter()
        there = torch.frombuffer(buffer, dtype=torch.uint8)
        moved = there.to(self._device)
        source = leader if self._group is None else dist.get_global_rank(self._group, leader)
        dist.broadcast(moved, source, group=self._group)
        there.copy_(moved)
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += len(frames)
        self.profile.received += 0 if self.rank == leader else size
        return buffer

    def _mean_of(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the mean over all ranks of one tensor, by an all-reduce."""
        start = time.perf_counter()
        total = values.to(self._device, copy=True)
        dist.all_reduce(total, group=self._group)
        mean = (total / self.world).cpu()
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += values.nbytes
        self.profile.received += 2 * (self.world - 1) * values.nbytes // self.world
        return mean

    def _worker(self, codec: ScaleCom, tensors: dict[str, torch.Tensor]) -> _native.ScaleCom:
        if self._scalecom is None:
            shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
            worker = _native.ScaleCom(shapes, self.rank, self.world, codec.spec, codec.beta)
            worker.load(given(self._memory))
            self._scalecom, self._memory = worker, {}
        return self._scalecom

    def _sizes(self, size: int, error: Exception | None) -> list[int]:
        """Returns the number of bytes that each rank sends.

        If `error` is set on one rank, all ranks raise, so that none waits for it.
        """
        start = time.perf_counter()
        mine = torch.tensor([size if error is None else -1], dtype=torch.int64, device=self._device)
        all_sizes = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(all_sizes, mine, group=self._group)
        sizes = [int(size) for size in all_sizes]
        self.profile.communication += time.perf_counter() - start
        self.profile.received += 8 * (self.world - 1)
        if error is not None:
            raise error
        failed = [rank for rank, size in enumerate(sizes) if size < 0]
        if failed:
            raise InputError(f"rank {failed[0]} could not compress its tensors: see the error on that rank")
        return sizes

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"step": self.step}
        if self._feedback is not None:
            state["feedback"] = self._feedback.state_dict("torch")
        elif isinstance(self._codec, Dgc):
            state["dgc"] = self._codec.state_dict("torch")
        elif isinstance(self._codec, ScaleCom):
            saved = {n: convert(t, "torch") for n, t in self._scalecom.save()} if self._scalecom else self._memory
            state["scalecom"] = saved
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kinds = {"feedback": self._feedback is not None, "dgc": isinstance(self._codec, Dgc)}
        kinds["scalecom"] = isinstance(self._codec, ScaleCom)
        expected = {"step"} | {kind for kind, used in kinds.items() if used}
        if set(state) != expected:
            raise InputError(f"the state has {sorted(state)}, but this codec needs {sorted(expected)}: use the codec that saved it")
        if self._feedback is not None:
            self._feedback.load_state_dict(state["feedback"])
        elif isinstance(self._codec, Dgc):
            self._codec.load_state_dict(state["dgc"])
        elif isinstance(self._codec, ScaleCom):
            memory = dict(state["scalecom"])
            if self._scalecom is not None:
                self._scalecom.load(given(memory))
            else:
                self._memory = memory
        self.step = int(state["step"])


def _names(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Returns the trainable parameters, by their names in the model inside DistributedDataParallel."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


_USED = ("rules", "feedback", "non_finite", "limits")
"""The options that `State` and `DiLoCo` use."""


class State:
    """The state of `hook` for a model: the codec, the residuals by parameter name, and a profile.

    All gradients of a step form one update, which is sent when the last bucket is ready. So residuals,
    `scope="global"` and Deep Gradient Compression cover the whole model, and the arrangement of buckets has
    no effect. Compression does not overlap with the backward pass.

    Save `state_dict()` in a checkpoint. The object can also be pickled and copied, as part of a
    DistributedDataParallel model, which holds it; register the hook again afterwards. A copy belongs to the
    copied parameters.

    Args:
        model: the model, with or without DistributedDataParallel around it.
        codec: any codec but `Delta`; or a `Dgc` of this rank; or a `ScaleCom`. Codecs that round or draw at
            random do so independently at each step and rank.
        options, keywords: see `gcodec.Options`. Used: rules, feedback (True, False, or a `Feedback` to use;
            default True; `Dgc` and `ScaleCom` hold their own residuals), non_finite (on `reject` all ranks
            raise), limits (on the streams of other ranks).
        group: the process group. Default: None, the default group.
        profile: number of steps between prints of the profile, on rank 0, to standard error. Default: 0,
            never.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        codec: Codec | str | Dgc | ScaleCom,
        options: Options | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        profile: int = 0,
        **keywords: Unpack[OptionKeywords],
    ) -> None:
        chosen = resolve("gcodec.torch.State", _USED, options, keywords)
        self._exchange = _Exchange(codec, chosen, group, profile)
        self._watch(_names(model))

    @property
    def profile(self) -> Profile:
        """Times and traffic so far."""
        return self._exchange.profile

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals and step, for its part of a checkpoint."""
        return self._exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned on this rank."""
        self._exchange.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        return {"exchange": self._exchange, "parameters": self._parameters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._exchange = state["exchange"]
        self._watch(state["parameters"])

    def _watch(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._order = {id(parameter): (i, name) for i, (name, parameter) in enumerate(parameters.items())}
        self._waiting: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = []
        self._gradients: list[tuple[int, str, torch.Tensor]] = []

    def _take(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if bucket.index() == 0:
            # An earlier backward pass that failed may have left gradients.
            self._waiting, self._gradients = [], []
        devices = [buffer.device] if buffer.device.type != "cpu" else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._waiting.append((future, buffer))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if id(parameter) not in self._order:
                raise InputError("a parameter of DistributedDataParallel is not in the model given to State: give it this model")
            self._gradients.append((*self._order[id(parameter)], gradient.view(parameter.shape)))
        if bucket.is_last():
            waiting, gradients = self._waiting, sorted(self._gradients, key=lambda entry: entry[0])
            self._waiting, self._gradients = [], []
            try:
                means = self._exchange.mean({name: gradient for _, name, gradient in gradients})
                for _, name, gradient in gradients:
                    gradient.copy_(means[name])
            except BaseException as e:
                for other, _ in waiting[:-1]:
                    other.set_exception(e if isinstance(e, Exception) else RuntimeError(str(e)))
                raise
            for other, filled in waiting:
                other.set_result(filled)
        return future


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook for DistributedDataParallel:
    `ddp.register_comm_hook(state, gcodec.torch.hook)`."""
    return state._take(bucket)


class DiLoCo:
    """Exchanges pseudo-gradients after a number of local steps (DiLoCo, arXiv 2311.08105, algorithm 1).

    Each rank trains alone with an inner optimizer. The pseudo-gradient of a rank is its parameters at the
    last exchange minus its parameters now. At every `every`-th `step()` the pseudo-gradients are compressed
    and exchanged, and the outer optimizer applies their mean to the parameters of the last exchange. All
    ranks then have the same parameters. Buffers, such as running means, are not exchanged.

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        diloco = gcodec.torch.DiLoCo(model, outer, gcodec.Chunked(), every=50)
        for batch in data:
            ...; inner.step(); diloco.step()

    The model is not in DistributedDataParallel. All ranks must start with the same parameters.

    Args:
        model: the model.
        outer: a PyTorch optimizer over the model's parameters.
        codec, options, keywords, group, profile: as in `State`.
        every: inner steps between exchanges, at least 1.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        outer: torch.optim.Optimizer,
        codec: Codec | str | Dgc | ScaleCom,
        options: Options | None = None,
        *,
        every: int,
        group: dist.ProcessGroup | None = None,
        profile: int = 0,
        **keywords: Unpack[OptionKeywords],
    ) -> None:
        if every < 1:
            raise InputError(f"every of DiLoCo is {every}: use at least 1")
        chosen = resolve("gcodec.torch.DiLoCo", _USED, options, keywords)
        self._exchange = _Exchange(codec, chosen, group, profile)
        self._parameters, self._outer, self._every = _names(model), outer, every
        mine = {id(p) for p in self._parameters.values()}
        if mine != {id(p) for settings in outer.param_groups for p in settings["params"] if p.requires_grad}:
            raise InputError("the outer optimizer does not have exactly the model's trainable parameters")
        self._anchor = self._now()
        self._inner = 0

    def _now(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self._parameters.items()}

    @property
    def profile(self) -> Profile:
        """Times and traffic so far."""
        return self._exchange.profile

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> bool:
        """Counts a step of the inner optimizer, and exchanges after every `every`-th. Returns whether it
        exchanged.

        An exchange sets the gradients to None. If it raises, the parameters are those of the inner optimizer.
        """
        self._inner += 1
        if self._inner < self._every:
            return False
        pseudo = {name: self._anchor[name] - p for name, p in self._parameters.items()}
        try:
            means = self._exchange.mean(pseudo, self._inner)
        except BaseException:
            self._inner -= 1
            raise
        for name, p in self._parameters.items():
            p.copy_(self._anchor[name])
            p.grad = means[name].to(p.device)
        with torch.enable_grad():
            self._outer.step()
        self._outer.zero_grad(set_to_none=True)
        self._anchor, self._inner = self._now(), 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's part of a checkpoint, apart from the model's and the optimizers' states."""
        return {"exchange": self._exchange.state_dict(), "anchor": dict(self._anchor), "inner": self._inner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned on this rank."""
        anchor = state["anchor"]
        wrong = [n for n, p in self._parameters.items() if n not in anchor or anchor[n].shape != p.shape]
        if wrong or len(anchor) != len(self._parameters):
            raise InputError(f"the state is of another model: {wrong or sorted(anchor)}")
        self._exchange.load_state_dict(state["exchange"])
        self._anchor = {name: anchor[name].to(p.device, copy=True) for name, p in self._parameters.items()}
        self._inner = int(state["inner"])