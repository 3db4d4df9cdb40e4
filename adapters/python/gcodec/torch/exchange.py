"""The mean over ranks of named tensors, exchanged compressed."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gcodec import _native
from gcodec._tensors.dlpack import convert, given
from gcodec._tensors.update import PART_BYTES, check_rules, native_update
from gcodec.codecs import Codec, numbered, spec_of
from gcodec.errors import InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.oneshot import decode
from gcodec.options import Chosen
from gcodec.reduction import reduce
from gcodec.torch.handshake import check, greeting
from gcodec.torch.lgc import Lgc
from gcodec.torch.names import Tensors, own
from gcodec.torch.ranks import NotFinite, Profile, Ranks, Sending
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.schedule import Schedule
from gcodec.torch.sets import SharedSet

SETS = (ScaleCom, SharedSet, Lgc)
"""Codecs whose leader in turn sends positions for all ranks; they hold their own residuals."""

USED = ("rules", "feedback", "non_finite", "limits")
"""The options that an exchange uses."""


@dataclass
class Part:
    """A part of a step's tensors, whose frames are on their way."""

    which: tuple[int, int]
    """Its number in its step, and its number of elements."""
    dtypes: dict[str, torch.dtype]
    """The types of its tensors, if they were divided by the scale."""
    scale: float
    """The scale of its tensors."""
    head: bytes
    """The bytes that every rank has before its frames."""
    sending: Sending
    """The frames on their way."""


class Exchange:
    """The mean over ranks of named tensors, exchanged compressed.

    owner: the entry point, for messages. tensors: those that ranks exchange, in their order.
    """

    def __init__(
        self,
        owner: str,
        codec: Codec | str | Dgc | ScaleCom | SharedSet | Lgc | Schedule,
        options: Chosen,
        tensors: Tensors,
        group: dist.ProcessGroup | Ranks | None,
        profile: int,
    ) -> None:
        self._settings = (owner, codec, options, tensors, None, profile)
        self._codec, self._options, self._tensors, self._every = codec, options, tensors, profile
        self._rules, self._limits = dict(options.rules or {}), options.limits or Limits()
        self._propagate = options.non_finite == "propagate"
        self._ranks = group if isinstance(group, Ranks) else Ranks(group)
        self._met = False
        self._sent = [memoryview(b"")]
        # Bytes of the longest frames of each part in its last step.
        self._longest: dict[tuple[int, int], int] = {}
        self.step = 0
        stages = list(codec.stages.values()) if isinstance(codec, Schedule) else [codec]
        for stage in stages:
            self._check_codec(stage)
        check_rules(owner, self._rules, tensors)
        # Tensors that a codec with sets leaves to codecs of their own.
        self._ruled = {name for name in tensors if any(fnmatchcase(name, glob) for glob in self._rules)}
        self._has_sets = any(isinstance(stage, SETS) for stage in stages)
        # The name of their residuals in a saved state.
        self._sets = "scalecom" if any(isinstance(stage, ScaleCom) for stage in stages) else "sets"
        has_frames = bool(self._rules) or not all(isinstance(stage, (Dgc, *SETS)) for stage in stages)
        self._feedback: Feedback | None = None
        if has_frames and options.feedback is not False:
            self._feedback = options.feedback if isinstance(options.feedback, Feedback) else Feedback()
            # Residuals that the caller gives must be of this model too.
            known = self._feedback.state_dict()
            if list(renamed := own(known, tensors)) != list(known):
                self._feedback.load_state_dict(renamed)
        # A worker of a codec with sets is made at its first exchange, and then loads its memory.
        self._worker: tuple[ScaleCom | SharedSet | Lgc, _SetWorker] | None = None
        self._memory: dict[str, Any] = {}
        # The model of a learned codec, after its second phase, and before its state of a checkpoint in it.
        self._model: bytes | None = None
        self._training: dict[str, Any] = {}

    def _check_codec(self, codec: Codec | str | Dgc | ScaleCom | SharedSet | Lgc) -> None:
        world, feedback = self._ranks.world, self._options.feedback
        if isinstance(codec, (Dgc, *SETS)) and isinstance(feedback, Feedback):
            raise InputError(f"{type(codec).__name__} holds its own residuals: it takes no feedback")
        if isinstance(codec, SETS):
            if feedback is False:
                raise InputError(f"{type(codec).__name__} needs its residuals: feedback cannot be False")
        elif isinstance(codec, Dgc):
            if self._rules:
                raise InputError("Dgc takes no rules: it compresses every tensor in the same way")
            own(codec.state_dict()["tensors"], self._tensors)
            workers = codec.settings["workers"]
            if codec.settings["clip"] is not None and workers != world:
                raise InputError(f"Dgc clips for {workers} workers, and the group has {world}: set workers={world}")
        else:
            for one in (codec, *self._rules.values()):
                if spec_of(one).partition(":")[0] == "delta":
                    raise InputError("deltas have no mean: use another codec than delta")

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks.group is not None:
            raise TypeError("a process group cannot be pickled or copied: use the default group, or save state_dict()")
        # `kept` has the residuals and the codec's state.
        owner, codec, options, *rest = self._settings
        options = replace(options, feedback=options.feedback is not False)
        return {"settings": (owner, codec, options, *rest), "kept": self.state_dict(), "profile": self.profile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Exchange.__init__(self, *state["settings"])
        self.load_state_dict(state["kept"])
        self._ranks.profile = state["profile"]

    @property
    def profile(self) -> Profile:
        """Times and traffic so far."""
        return self._ranks.profile

    def share(self, profile: Profile) -> None:
        """Counts times and traffic in the profile of several exchanges."""
        self._ranks.profile = profile

    def mean(
        self,
        tensors: dict[str, torch.Tensor],
        *,
        device: torch.device,
        inner_steps: int = 0,
        held: Collection[str] = (),
        scale: float = 1.0,
        error: Exception | None = None,
        provisional: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Returns the mean over all ranks of tensors of the same names.

        Args:
            device: the device of the tensors.
            inner_steps: local steps that they cover.
            held: names of tensors of which this rank sends nothing, and whose residuals stay.
            scale: number by which the tensors are too large; they are divided by it in place.
            error: the reason why this rank has no tensors; all ranks raise.
            provisional: the caller accepts or restores the sender state later, by `commit` or `undo`.

        Raises:
            NotFinite: the mean is not finite, and that is to be propagated.
        """
        start, known = time.perf_counter(), self._accounted()
        self._ranks.use(device)
        self._meet()
        try:
            tensors, dtypes = _divided_all(tensors, scale)
            means = self._scaled(self._means(tensors, inner_steps, held, scale, error), dtypes, scale)
        except BaseException as e:
            self._take_back(e, start, known)
            raise
        if not provisional:
            self.commit()
        self._count(start, known)
        return means

    def _stage(self) -> Codec | str | Dgc | ScaleCom | SharedSet | Lgc:
        """Returns the codec of the next step."""
        return self._codec.at(self.step) if isinstance(self._codec, Schedule) else self._codec

    def _scaled(
        self, means: dict[str, torch.Tensor], dtypes: dict[str, torch.dtype], scale: float
    ) -> dict[str, torch.Tensor]:
        """Returns means in the scale and types of what was divided.

        Raises:
            NotFinite: a mean is not finite, and that is to be propagated.
        """
        for name, dtype in dtypes.items():
            means[name] = (means[name] * scale).to(dtype)
        if self._propagate and not all(map(_is_finite, means.values())):
            raise NotFinite
        return means

    @property
    def divides(self) -> bool:
        """Whether parts of the tensors can be exchanged on their own in the next step: `start`, `finish`."""
        codec = self._stage()
        if isinstance(codec, (Dgc, *SETS)):
            return False
        return not any("scope=global" in spec_of(one).partition(":")[2].split(",") for one in (codec, *self._rules.values()))

    def start(
        self,
        which: tuple[int, int],
        tensors: dict[str, torch.Tensor],
        *,
        device: torch.device,
        held: Collection[str] = (),
        scale: float = 1.0,
        error: Exception | None = None,
    ) -> Part:
        """Begins to exchange a part of a step's tensors, and does not wait for other ranks, except in the
        first step. All ranks start the same parts in the same order, and end the step with `finish`.

        Args:
            which: number of the part in its step, from 0 on, and number of its elements, also if this rank
                has no tensors.
            tensors, device, held, scale, error: as in `mean`.
        """
        start, known = time.perf_counter(), self._accounted()
        self._ranks.use(device)
        self._meet()
        codec = self._stage()
        assert not isinstance(codec, SETS), "codecs with sets need all tensors"
        self._leave_set()
        tensors, dtypes = _divided_all(tensors, scale)
        head, frames, error = self._frames(codec, tensors, 0, held, error, which[0])
        # Sizes hardly change from step to step, so that most frames travel with their sizes. All ranks know
        # the sizes of the last step.
        longest = self._longest.get(which, 0)
        sending = self._ranks.start(frames, longest + longest // 32, error, self._propagate)
        self.profile.other += time.perf_counter() - start - (self._accounted() - known)
        return Part(which, dtypes, scale, head, sending)

    def finish(self, parts: list[Part]) -> dict[str, torch.Tensor]:
        """Ends a step that consists of these parts: returns the means of their tensors.

        Raises:
            NotFinite: as `mean`.
            Exception: a rank could not compress. The sender state is as before the step.
        """
        start, known = time.perf_counter(), self._accounted()
        means: dict[str, torch.Tensor] = {}
        waiting, sent = list(parts), []
        try:
            while waiting:
                part = waiting.pop(0)
                streams = self._ranks.finish(part.sending, self._sizes(part), part.head)
                sent.append(streams[self._ranks.rank])
                means |= self._scaled(self._reduced(streams), part.dtypes, part.scale)
        except BaseException as e:
            self._take_back(e, start, known)
            for part in waiting:
                self._sizes(part)
            raise
        self._sent = sent
        self.commit()
        self._count(start, known)
        return means

    def _sizes(self, part: Part) -> list[int]:
        """Waits for a part, and returns what `Ranks.wait` does. Ranks note the sizes of all parts, also of a
        step that fails, so that their next messages have the same length."""
        sizes = self._ranks.wait(part.sending)
        self._longest[part.which] = max(0, *sizes)
        return sizes

    def _take_back(self, error: BaseException, start: float, known: float) -> None:
        """Restores the sender state after a failure, and counts the exchange if its mean is NaN."""
        self.undo()
        if isinstance(error, NotFinite):
            self.profile.skipped += 1
            self._count(start, known)

    def _means(
        self,
        tensors: dict[str, torch.Tensor],
        inner_steps: int,
        held: Collection[str],
        scale: float,
        error: Exception | None,
    ) -> dict[str, torch.Tensor]:
        codec = self._stage()
        if not isinstance(codec, SETS):
            self._leave_set()
            return self._by_frames(codec, tensors, inner_steps, held, error)
        others = {name: tensor for name, tensor in tensors.items() if name not in self._ruled}
        worker, means = None, {}
        by_set = len(self._ruled) < len(self._tensors)
        if by_set and error is None:
            try:
                worker = self._worker_of(codec, others)
            except Exception as e:
                error = e
        if self._ruled:
            framed = {name: tensor for name, tensor in tensors.items() if name in self._ruled}
            means = self._by_frames("lossless", framed, inner_steps, held, error)
            # The worker's step cannot be taken back once it is finished.
            if self._propagate and not all(_is_finite(mean * scale) for mean in means.values()):
                raise NotFinite
        if not by_set:
            return means
        if isinstance(codec, ScaleCom):
            return means | self._by_sum(worker, others, held, scale, error)
        return means | self._by_updates(codec, worker, others, held, scale, error)

    def sent(self) -> dict[str, torch.Tensor]:
        """Returns this rank's last update, as receivers decode it."""
        tensors: dict[str, torch.Tensor] = {}
        for stream in self._sent:
            tensors |= decode(stream, framework="torch", limits=self._limits)
        return tensors

    def _count(self, start: float, known: float) -> None:
        """Counts an exchange that began at `start`, when the profile had accounted for `known` seconds."""
        self.step += 1
        self.profile.exchanges += 1
        self.profile.other += time.perf_counter() - start - (self._accounted() - known)
        if self._every and self.step % self._every == 0 and self._ranks.rank == 0:
            print(self.profile, file=sys.stderr, flush=True)

    def _accounted(self) -> float:
        return self.profile.selection + self.profile.coding + self.profile.communication

    def _meet(self) -> None:
        """Compares the settings of all ranks, before the first exchange."""
        if self._met:
            return
        check([bytes(one) for one in self._ranks.gather(self.greeting())])
        self._met = True

    def greeting(self) -> bytes:
        """Returns the message by which ranks compare their settings."""
        return greeting(
            self._tensors,
            world=self._ranks.world,
            codec=_text(self._codec) if self._model is None else f"{_text(self._codec)} with a model",
            rules=[(glob, spec_of(rule)) for glob, rule in self._rules.items()],
            feedback=self._feedback is not None,
            non_finite=self._options.non_finite,
            step=self.step,
        )

    def rejoin(self, step: int, met: bool) -> None:
        """Goes on with ranks that may be others than before. met: whether their settings are known to be the
        same."""
        self.step, self._met = step, met

    def _by_frames(
        self,
        codec: Codec | str | Dgc,
        tensors: dict[str, torch.Tensor],
        inner_steps: int,
        held: Collection[str],
        error: Exception | None,
    ) -> dict[str, torch.Tensor]:
        head, frames, error = self._frames(codec, tensors, inner_steps, held, error)
        sizes = self._ranks.sizes(len(frames), error, self._propagate)
        streams = self._ranks.gather_frames(head, frames, sizes)
        self._sent = [streams[self._ranks.rank]]
        return self._reduced(streams)

    def _reduced(self, streams: list[memoryview]) -> dict[str, torch.Tensor]:
        """Returns the mean of the streams of all ranks."""
        start = time.perf_counter()
        mean = reduce(streams, mean=True, limits=self._limits)
        self.profile.coding += time.perf_counter() - start
        return mean.tensors("torch")

    def _frames(
        self,
        codec: Codec | str | Dgc,
        tensors: dict[str, torch.Tensor],
        inner_steps: int,
        held: Collection[str],
        error: Exception | None,
        part: int = 0,
    ) -> tuple[bytes, memoryview, Exception | None]:
        """Returns this rank's preamble and manifest, its other frames, and the reason if there are none.

        The preamble and the manifest are the same on all ranks, so they are not sent. If a rank's manifest
        differs, decoding fails because the update names another one.
        """
        if error is None:
            try:
                frames = memoryview(self._encoded(codec, tensors, inner_steps, held, part))
                head = _native.head_bytes(frames)
                return bytes(frames[:head]), frames[head:], None
            except Exception as e:
                error = e
        return b"", memoryview(b""), error

    def _encoded(
        self,
        codec: Codec | str | Dgc,
        tensors: dict[str, torch.Tensor],
        inner_steps: int,
        held: Collection[str],
        part: int,
    ) -> _native.Encoded:
        """Returns this rank's frames. The sender state can be restored afterwards."""
        # Ranks, steps and parts round and draw independently.
        number = self.step * self._ranks.world + self._ranks.rank + (part << 40)
        chosen = codec if isinstance(codec, Dgc) else numbered(codec, number)
        header = UpdateHeader(
            step=self.step,
            sender=self._ranks.rank,
            world=self._ranks.world,
            inner_steps=inner_steps,
            label="dgc" if isinstance(codec, Dgc) else spec_of(codec).partition(":")[0],
        )
        rules = {glob: numbered(rule, number) for glob, rule in self._rules.items()}
        non_finite = None if self._propagate else self._options.non_finite
        options = replace(self._options, rules=rules, feedback=self._feedback, header=header, non_finite=non_finite)
        update = native_update("gcodec.torch", tensors, chosen, options, held=held, provisional=True)
        encoded = _native.Encoder(PART_BYTES, False, True).update(update, finish=True)
        self.profile.selection += encoded.seconds[0]
        self.profile.coding += encoded.seconds[1]
        return encoded

    def _by_sum(
        self,
        worker: Any,
        tensors: dict[str, torch.Tensor],
        held: Collection[str],
        scale: float,
        error: Exception | None,
    ) -> dict[str, torch.Tensor]:
        """Returns the mean of values on a leader's set, which ranks sum by an all-reduce."""
        found = None
        start = time.perf_counter()
        if worker is not None and error is None:
            try:
                wide = {name: tensor.float() for name, tensor in tensors.items()}
                found = worker.begin(self.step, given(wide), [name not in held for name in wide])
            except Exception as e:
                error = e
        self.profile.selection += time.perf_counter() - start
        leader = self.step % self._ranks.world
        size = self._ranks.sizes(len(memoryview(found or b"")), error, self._propagate)[leader]
        index_set = self._ranks.broadcast(memoryview(found or b""), size, leader)
        assert worker is not None, "an error is raised on all ranks"
        start = time.perf_counter()
        values: torch.Tensor = worker.take_set(index_set, self._limits).torch()
        self.profile.coding += time.perf_counter() - start
        mean = self._ranks.mean_of(values)
        if self._propagate and not _is_finite(mean * scale):
            raise NotFinite
        start = time.perf_counter()
        out = {name: convert(tensor, "torch") for name, tensor in worker.finish(given({"mean": mean}))}
        self.profile.coding += time.perf_counter() - start
        return out

    def _by_updates(
        self,
        codec: SharedSet | Lgc,
        worker: Any,
        tensors: dict[str, torch.Tensor],
        held: Collection[str],
        scale: float,
        error: Exception | None,
    ) -> dict[str, torch.Tensor]:
        """Returns the mean of updates on a leader's set, which travel as frames."""
        if isinstance(codec, Lgc) and self._model is None and self.step >= codec.learned_from:
            self._share_model(worker, error)
        update: _native.Encoded | bytes = b""
        found = None
        start = time.perf_counter()
        if worker is not None and error is None:
            try:
                wide = given({name: tensor.float() for name, tensor in tensors.items()})
                found = worker.begin(self.step, wide, [name not in held for name in tensors])
            except Exception as e:
                error = e
        self.profile.selection += time.perf_counter() - start
        leader = self.step % self._ranks.world
        size = self._ranks.sizes(len(memoryview(found or b"")), error, self._propagate)[leader]
        index_set = self._ranks.broadcast(memoryview(found or b""), size, leader) if size else None
        assert worker is not None, "an error is raised on all ranks"
        start = time.perf_counter()
        try:
            if index_set is not None:
                worker.take_set(index_set, self._limits)
            update = worker.send()
        except Exception as e:
            error = e
        self.profile.coding += time.perf_counter() - start
        frames = memoryview(update)
        sizes = self._ranks.sizes(len(frames), error, self._propagate)
        streams = self._ranks.gather_frames(b"", frames, sizes)
        start = time.perf_counter()
        means = {name: convert(tensor, "torch") for name, tensor in worker.mean(streams, self._limits)}
        if self._propagate and not all(_is_finite(mean * scale) for mean in means.values()):
            raise NotFinite
        worker.finish()
        self.profile.coding += time.perf_counter() - start
        return means

    def _share_model(self, worker: _native.Lgc | None, error: Exception | None) -> None:
        """Gives the model of the first rank, which has trained it, to all ranks."""
        model = b""
        if worker is not None and error is None:
            try:
                model = worker.model() or b""
            except Exception as e:
                error = e
        size = self._ranks.sizes(len(model), error, self._propagate)[0]
        shared = bytes(self._ranks.broadcast(memoryview(model), size, 0))
        assert worker is not None, "an error is raised on all ranks"
        worker.set_model(shared)
        self._model = shared

    def _worker_of(self, codec: ScaleCom | SharedSet | Lgc, tensors: dict[str, torch.Tensor]) -> _SetWorker:
        if self._worker is not None and self._worker[0] is not codec:
            self._leave_set()
        if self._worker is None:
            shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
            worker = _made(codec, shapes, self._ranks)
            kept = {} if self._feedback is None else self._feedback.state_dict("torch")
            worker.load(given(self._memory | {name: kept.pop(name) for name in tensors if name in kept}))
            if self._feedback is not None:
                self._feedback.load_state_dict(kept)
            if isinstance(worker, _native.Lgc):
                if self._training:
                    worker.load_training(given(self._training))
                if self._model is not None:
                    worker.set_model(self._model)
            self._worker, self._memory, self._training = (codec, worker), {}, {}
        return self._worker[1]

    def _leave_set(self) -> None:
        """Moves the residuals of a codec with sets to where other codecs have theirs, if there are such
        codecs. Velocities end."""
        memory = {name: tensor for name, tensor in self._set_memory().items() if "#" not in name}
        self._worker, self._memory = None, {}
        if self._feedback is None:
            self._memory = memory
        elif memory:
            self._feedback.load_state_dict(self._feedback.state_dict("torch") | memory)

    def _set_memory(self) -> dict[str, Any]:
        """Returns the residuals of a codec with sets."""
        if self._worker is None:
            return self._memory
        return {name: convert(tensor, "torch") for name, tensor in self._worker[1].save()}

    def _training_state(self) -> dict[str, Any]:
        """Returns the state of a learned codec's training: the first rank has it before the third phase."""
        if self._worker is None or not isinstance(self._worker[1], _native.Lgc):
            return self._training
        return {name: convert(tensor, "torch") for name, tensor in self._worker[1].save_training()}

    def commit(self) -> None:
        """Accepts the change of the sender state. Workers with sets change only when their step is
        finished."""
        for memory in self._memories():
            memory.commit()

    def undo(self) -> None:
        """Restores the sender state from before the exchange."""
        for memory in self._memories():
            memory.undo()
        if self._worker is not None:
            self._worker[1].abort()

    def _memories(self) -> list[_native.Feedback | _native.Dgc]:
        if isinstance(self._codec, Dgc):
            return [self._codec._native]
        return [] if self._feedback is None else [self._feedback._native]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"step": self.step, "rank": self._ranks.rank, "world": self._ranks.world}
        if self._feedback is not None:
            state["feedback"] = self._feedback.state_dict("torch")
        if isinstance(self._codec, Dgc):
            state["dgc"] = self._codec.state_dict("torch")
        if self._has_sets:
            state[self._sets] = self._set_memory()
        if isinstance(self._codec, Lgc):
            state["model"] = torch.frombuffer(bytearray(self._model or b"\0"), dtype=torch.uint8)
            state["training"] = self._training_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kinds = {"feedback": self._feedback is not None, "dgc": isinstance(self._codec, Dgc)}
        kinds[self._sets] = self._has_sets
        kinds["model"] = kinds["training"] = isinstance(self._codec, Lgc)
        expected = {"step", "rank", "world"} | {kind for kind, used in kinds.items() if used}
        if set(state) != expected:
            raise InputError(f"the state has {sorted(state)}, but this codec needs {sorted(expected)}: use the codec that saved it")
        there, here = (state["rank"], state["world"]), (self._ranks.rank, self._ranks.world)
        if there != here:
            raise InputError(
                f"the state is of rank {there[0]} of {there[1]}, and this is rank {here[0]} of {here[1]}: save and load one "
                "file for each rank, or begin without the residuals"
            )
        if isinstance(self._codec, Lgc) and self._ranks.rank == 0:
            trained = len(state["model"]) > 1 or len(state["training"]) > 0
            if not trained and state["step"] > self._codec.full_steps:
                raise InputError("the state lacks the training of the learned codec: use the state that this rank saved")
        feedback, memory = (own(state.get(kind, {}), self._tensors) for kind in ("feedback", self._sets))
        if isinstance(self._codec, Dgc):
            self._codec.load_state_dict({**state["dgc"], "tensors": own(state["dgc"]["tensors"], self._tensors)})
        if self._feedback is not None:
            self._feedback.load_state_dict(feedback)
        self._worker, self._memory = None, memory
        if "model" in expected:
            model = bytes(state["model"].tolist())
            # A model has more than one byte.
            self._model = model if len(model) > 1 else None
            self._training = dict(state["training"])
        self.step = int(state["step"])
        # Ranks that load a state have not seen the same sizes as before.
        self._longest = {}


class _SetWorker(Protocol):
    """Part of the native workers with sets that all of them have."""

    def abort(self) -> None: ...
    def save(self) -> Any: ...
    def load(self, tensors: Any) -> None: ...


def _made(codec: ScaleCom | SharedSet | Lgc, shapes: list[tuple[str, tuple[int, ...]]], ranks: Ranks) -> _SetWorker:
    if isinstance(codec, ScaleCom):
        return _native.ScaleCom(shapes, ranks.rank, ranks.world, codec.spec, codec.beta, codec.chunk)
    if isinstance(codec, SharedSet):
        return _native.SharedSet(shapes, ranks.rank, ranks.world, codec.spec, codec.momentum)
    return _native.Lgc(shapes, ranks.rank, ranks.world, codec)


def _text(codec: Codec | str | Dgc | ScaleCom | SharedSet | Lgc | Schedule) -> Any:
    """Returns the settings of a codec for the comparison between ranks."""
    if isinstance(codec, Schedule):
        return [(first, _text(stage)) for first, stage in sorted(codec.stages.items())]
    if isinstance(codec, Dgc):
        return codec.settings
    return str(codec) if isinstance(codec, SETS) else spec_of(codec)


def _divided_all(
    tensors: dict[str, torch.Tensor], scale: float
) -> tuple[dict[str, torch.Tensor], dict[str, torch.dtype]]:
    """Returns the quotients, and the types of the tensors unless the scale is 1."""
    if scale == 1:
        return tensors, {}
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    return {name: _divided(tensor, scale) for name, tensor in tensors.items()}, dtypes


def _divided(tensor: torch.Tensor, by: float) -> torch.Tensor:
    """Returns a quotient: in place, or in f32 for a narrow type, in which it might vanish."""
    return tensor.div_(by) if tensor.dtype in (torch.float32, torch.float64) else tensor.float() / by


def _is_finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    # A sum is faster than a comparison of each element. It may overflow, though.
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return bool(torch.isfinite(total)) or bool(torch.isfinite(tensor).all())
