"""Compressed gradients between PyTorch's processes.

    ddp = DistributedDataParallel(model)
    state = gcodec.torch.State(model, gcodec.TopK(density=0.01))
    ddp.register_comm_hook(state, gcodec.torch.hook)

`State` and `hook` take the place of DistributedDataParallel's all-reduce; `DiLoCo` exchanges pseudo-gradients every so many steps.
All ranks get the same bits: each sums the same frames in the order of the ranks.

Any backend of `torch.distributed` will do. With NCCL what travels is copied to the GPU and back; gradients on a GPU are compressed there, if the codec can be.
"""

# No annotations as strings: DistributedDataParallel reads those of the hook.

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist

from gcodec import _native
from gcodec.codecs import Codec, TopK, numbered, spec_of
from gcodec.errors import GcodecError, InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.limits import Limits
from gcodec.reduction import reduce
from gcodec.stream import PART_BYTES, UpdateHeader, native_update
from gcodec.tensors import convert, given

__all__ = ["DiLoCo", "Profile", "ScaleCom", "State", "hook"]


@dataclass(frozen=True)
class ScaleCom:
    """ScaleCom's CLT-k (arXiv 2104.11125): one rank in turn chooses the elements, and all sum their values on them.

    It takes the place of a codec. The positions travel once, in the frame of an index set; the values by an all-reduce, so that
    what travels does not grow with the number of ranks. Gradients of f32 only.

    Attributes:
        density, k, scope: how many elements the leader chooses and among which, as in `TopK`.
        beta: weight of what is left over in the memory, more than 0, at most 1; 1 is plain error feedback.
    """

    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    scope: Literal["tensor", "global"] = field(default="tensor", kw_only=True)
    beta: float = field(default=1.0, kw_only=True)

    @property
    def spec(self) -> str:
        """The choice, as a codec."""
        return spec_of(TopK(self.density, k=self.k, scope=self.scope))


@dataclass
class Profile:
    """Where the time of the exchanges of one rank went, in seconds, and what it sent and received, in bytes."""

    exchanges: int = 0
    selection: float = 0.0
    """Making blocks of gradients: error feedback, choosing elements, quantising."""
    coding: float = 0.0
    """Frames of blocks, and sums of frames."""
    communication: float = 0.0
    """Collectives, and waiting in them for other ranks."""
    other: float = 0.0
    """The rest: copies, and Python."""
    sent: int = 0
    """Frames that this rank made, and the values of its all-reduces."""
    received: int = 0
    """What came from other ranks: sizes, padded frames, and what a ring all-reduce moves, 2 (n - 1) / n of its values."""

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
    """The mean of all ranks' tensors, compressed."""

    def __init__(
        self,
        codec: Codec | str | Dgc | ScaleCom,
        rules: Mapping[str, Codec | str] | None,
        feedback: bool,
        group: dist.ProcessGroup | None,
        non_finite: Literal["reject", "zero"],
        limits: Limits | None,
        profile: int,
    ) -> None:
        self._codec, self._rules, self._group = codec, dict(rules or {}), group
        self._non_finite, self._limits, self._every = non_finite, limits or Limits(), profile
        self._feedback = Feedback() if feedback and not isinstance(codec, (Dgc, ScaleCom)) else None
        # A worker of ScaleCom's needs the names and shapes, and takes up its memory when it has them.
        self._scalecom: _native.ScaleCom | None = None
        self._memory: dict[str, Any] = {}
        if isinstance(codec, ScaleCom):
            if self._rules:
                raise InputError("ScaleCom takes no rules: its elements are those of one choice")
            if not 0 < codec.beta <= 1:
                raise InputError(f"beta of ScaleCom is {codec.beta}: more than 0, at most 1")
            _ = codec.spec
        elif not isinstance(codec, Dgc):
            for one in (codec, *self._rules.values()):
                if spec_of(one).partition(":")[0] == "delta":
                    raise InputError("the codec delta needs a base, and differences from a base have no mean")
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.step = 0
        self.profile = Profile()

    def __getstate__(self) -> dict[str, Any]:
        if self._group is not None:
            raise TypeError("only with the default process group it is pickled or copied, as DistributedDataParallel: save its state_dict()")
        # The codec has its own state in `kept`, or none.
        settings = (self._codec, self._rules, self._feedback is not None, None, self._non_finite, self._limits, self._every)
        return {"settings": settings, "kept": self.state_dict(), "profile": self.profile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _Exchange.__init__(self, *state["settings"])
        self.load_state_dict(state["kept"])
        self.profile = state["profile"]

    def mean(self, tensors: dict[str, torch.Tensor], inner_steps: int = 0) -> dict[str, torch.Tensor]:
        start, known = time.perf_counter(), self._accounted()
        on = next(iter(tensors.values())).device
        # NCCL moves what is on its device; gloo what is on the host.
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
        # Ranks and steps round at random, and draw, independently.
        number = self.step * self.world + self.rank
        chosen = codec if isinstance(codec, Dgc) else numbered(codec, number)
        header = UpdateHeader(
            step=self.step,
            sender=self.rank,
            world=self.world,
            inner_steps=inner_steps,
            label="dgc" if isinstance(codec, Dgc) else spec_of(codec).partition(":")[0],
        )
        try:
            update = native_update(
                tensors,
                chosen,
                rules={glob: numbered(rule, number) for glob, rule in self._rules.items()},
                feedback=self._feedback,
                header=header,
                non_finite=self._non_finite,
            )
            encoded = _native.Encoder(PART_BYTES, False, True).update(update, finish=True)
        except (GcodecError, TypeError) as e:
            error = e
        if encoded is not None:
            self.profile.selection += encoded.seconds[0]
            self.profile.coding += encoded.seconds[1]
        # The preamble and the manifest are the same on all ranks: they stay at home, and a reader would notice another one.
        frames = memoryview(encoded or b"")
        head = bytes(frames[: _native.head_bytes(frames)]) if encoded else b""
        sizes = self._sizes(len(frames) - len(head), error)
        buffers = [bytearray(len(head) + max(sizes)) for _ in sizes]
        for buffer in buffers:
            buffer[: len(head)] = head
        bodies = [torch.frombuffer(buffer, dtype=torch.uint8, offset=len(head)) for buffer in buffers]
        bodies[self.rank][: sizes[self.rank]] = torch.frombuffer(bytearray(frames[len(head) :]), dtype=torch.uint8)
        start = time.perf_counter()
        moved = [body.to(self._device) for body in bodies]
        dist.all_gather(moved, moved[self.rank].clone(), group=self._group)
        for body, there in zip(bodies, moved, strict=True):
            if there is not body:
                body.copy_(there)
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += sizes[self.rank]
        self.profile.received += (self.world - 1) * max(sizes)
        start = time.perf_counter()
        streams = [memoryview(buffer)[: len(head) + size] for buffer, size in zip(buffers, sizes, strict=True)]
        mean = reduce(streams, mean=True, limits=self._limits)
        self.profile.coding += time.perf_counter() - start
        return mean.tensors("torch")

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
            frames = memoryview(found or b"")
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
            start = time.perf_counter()
            values: torch.Tensor = worker.take_set(buffer, self._limits).torch()
            self.profile.coding += time.perf_counter() - start
            start = time.perf_counter()
            total = values.to(self._device, copy=True)
            dist.all_reduce(total, group=self._group)
            mean = (total / self.world).cpu()
            self.profile.communication += time.perf_counter() - start
            self.profile.sent += len(frames) + values.nbytes
            moved_values = 2 * (self.world - 1) * values.nbytes // self.world
            self.profile.received += moved_values + (0 if self.rank == leader else size)
            start = time.perf_counter()
            out = {name: convert(tensor, "torch") for name, tensor in worker.finish(given({"mean": mean}))}
            self.profile.coding += time.perf_counter() - start
            return out
        except BaseException:
            if self._scalecom is not None:
                self._scalecom.abort()
            raise

    def _worker(self, codec: ScaleCom, tensors: dict[str, torch.Tensor]) -> _native.ScaleCom:
        if self._scalecom is None:
            shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
            worker = _native.ScaleCom(shapes, self.rank, self.world, codec.spec, codec.beta)
            worker.load(given(self._memory))
            self._scalecom, self._memory = worker, {}
        return self._scalecom

    def _sizes(self, size: int, error: Exception | None) -> list[int]:
        """What every rank will send. A rank that cannot says so, and all ranks raise: none waits for it."""
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
            raise InputError(f"rank {failed[0]} could not compress its tensors: the cause is in its own error")
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
            raise InputError(f"a state of {sorted(state)}, where this codec has {sorted(expected)}")
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
    """The parameters that are trained, by their names in the model inside DistributedDataParallel."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


class State:
    """What `hook` keeps for a model: the codec, the residuals of error feedback by parameter name, and a profile.

    All gradients of a step are one update, sent when the last bucket is ready: so residuals, `scope="global"` and Deep Gradient
    Compression mean the whole model, and it does not matter how DistributedDataParallel arranges its buckets. Compression does not
    overlap with the backward pass.

    For a checkpoint save `state_dict()`. It is also pickled and copied: DistributedDataParallel keeps a hook's state, so that saving or copying that whole does
    so (its hook is then to be registered anew). A copy belongs to the parameters that were copied with it.

    Args:
        model: the model, before or after DistributedDataParallel has it.
        codec: any codec but `Delta`; a `Dgc` of this rank; or a `ScaleCom`. Codecs that round or draw at random do so independently
            at each step and rank.
        rules: other codecs for the parameters whose names match a pattern (`*.bias`); the last that matches counts.
        feedback: whether what a lossy codec leaves out is added at the next step. `Dgc` and `ScaleCom` have their own way.
        group: the process group; None is the default one.
        non_finite: what a lossy codec does with NaN and infinity: `reject` them, at which all ranks raise, or take them for `zero`.
        limits: what to allow to other ranks.
        profile: on rank 0, print the profile to standard error every so many steps; 0: never.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        codec: Codec | str | Dgc | ScaleCom,
        *,
        rules: Mapping[str, Codec | str] | None = None,
        feedback: bool = True,
        group: dist.ProcessGroup | None = None,
        non_finite: Literal["reject", "zero"] = "reject",
        limits: Limits | None = None,
        profile: int = 0,
    ) -> None:
        self._exchange = _Exchange(codec, rules, feedback, group, non_finite, limits, profile)
        self._of(_names(model))

    @property
    def profile(self) -> Profile:
        """Where the time went so far."""
        return self._exchange.profile

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals, for its part of a checkpoint: each rank has its own."""
        return self._exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave on this rank."""
        self._exchange.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        return {"exchange": self._exchange, "parameters": self._parameters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._exchange = state["exchange"]
        self._of(state["parameters"])

    def _of(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._order = {id(parameter): (i, name) for i, (name, parameter) in enumerate(parameters.items())}
        self._waiting: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = []
        self._gradients: list[tuple[int, str, torch.Tensor]] = []

    def _take(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if bucket.index() == 0:
            # What a backward pass that failed has left.
            self._waiting, self._gradients = [], []
        devices = [buffer.device] if buffer.device.type != "cpu" else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._waiting.append((future, buffer))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if id(parameter) not in self._order:
                raise InputError("DistributedDataParallel has a parameter that is not of the model given to State: make a State for it")
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
    """A communication hook of DistributedDataParallel: `ddp.register_comm_hook(state, gcodec.torch.hook)`."""
    return state._take(bucket)


class DiLoCo:
    """Exchanges pseudo-gradients every so many steps (DiLoCo, arXiv 2311.08105, algorithm 1).

    Each rank trains by itself with an inner optimizer. At every `every`-th `step()` each rank's pseudo-gradient, where the
    parameters were at the last exchange less where they are now, is compressed; the outer optimizer takes the mean of all ranks from
    where they were. After that all ranks have the same parameters. Buffers, such as running means, are each rank's own.

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        diloco = gcodec.torch.DiLoCo(model, outer, gcodec.Chunked(), every=50)
        for batch in data:
            ...; inner.step(); diloco.step()

    The model is not in DistributedDataParallel. All ranks must begin with the same parameters.

    Args:
        model: the model.
        outer: an optimizer of PyTorch's over the model's parameters.
        codec, rules, feedback, group, non_finite, limits, profile: as in `State`.
        every: inner steps between exchanges, at least 1.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        outer: torch.optim.Optimizer,
        codec: Codec | str | Dgc | ScaleCom,
        *,
        every: int,
        rules: Mapping[str, Codec | str] | None = None,
        feedback: bool = True,
        group: dist.ProcessGroup | None = None,
        non_finite: Literal["reject", "zero"] = "reject",
        limits: Limits | None = None,
        profile: int = 0,
    ) -> None:
        if every < 1:
            raise InputError(f"every of DiLoCo is {every}: at least 1")
        self._exchange = _Exchange(codec, rules, feedback, group, non_finite, limits, profile)
        self._parameters, self._outer, self._every = _names(model), outer, every
        mine = {id(p) for p in self._parameters.values()}
        if mine != {id(p) for settings in outer.param_groups for p in settings["params"] if p.requires_grad}:
            raise InputError("the outer optimizer is not over the model's parameters")
        self._anchor = self._now()
        self._inner = 0

    def _now(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self._parameters.items()}

    @property
    def profile(self) -> Profile:
        """Where the time went so far."""
        return self._exchange.profile

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> bool:
        """After each step of the inner optimizer. Whether there was an exchange: gradients are None then.

        If it raises, the parameters are where the inner optimizer left them.
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
        """This rank's part of a checkpoint, beside the model's and the optimizers' own."""
        return {"exchange": self._exchange.state_dict(), "anchor": dict(self._anchor), "inner": self._inner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave on this rank."""
        anchor = state["anchor"]
        wrong = [n for n, p in self._parameters.items() if n not in anchor or anchor[n].shape != p.shape]
        if wrong or len(anchor) != len(self._parameters):
            raise InputError(f"a state of another model: {wrong or sorted(anchor)}")
        self._exchange.load_state_dict(state["exchange"])
        self._anchor = {name: anchor[name].to(p.device, copy=True) for name, p in self._parameters.items()}
        self._inner = int(state["inner"])