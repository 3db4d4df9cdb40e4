"""The mean over ranks of named tensors, exchanged compressed."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist

from gcodec import _native
from gcodec._handshake import Tensors, check, greeting
from gcodec._tensors.update import check_rules
from gcodec.codecs import Codec, spec_of
from gcodec.errors import InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.limits import Limits
from gcodec.options import Chosen
from gcodec.torch.contribution import Contribution
from gcodec.torch.finite import NotFinite
from gcodec.torch.frames import Frames, Part
from gcodec.torch.index_sets import SETS, IndexSets
from gcodec.torch.lgc import Lgc
from gcodec.torch.names import own
from gcodec.torch.pairs import all_reals, joined, reals
from gcodec.torch.ranks import Profile, Ranks
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.scaling import divided_all, scaled
from gcodec.torch.schedule import Schedule
from gcodec.torch.senders import check_codec, check_workers, text_of
from gcodec.torch.sets import SharedSet

USED = ("rules", "feedback", "non_finite", "limits")
"""The options that an exchange uses."""


@dataclass
class Started:
    """A part of a step that is on its way: `Exchange.finish` waits for it."""

    part: Part
    """Its frames."""
    dtypes: dict[str, torch.dtype]
    """The types of its tensors, if they were divided by the scale."""
    scale: float
    """The scale of its tensors."""
    flat: _native._Flat | None
    """The buffer that has the tensors, and gets their means."""


class Exchange:
    """The mean over ranks of named tensors, exchanged compressed.

    It chooses each step's codec, has `Frames` or `IndexSets` exchange the tensors, and accepts or restores
    the sender state. owner: the entry point, for messages. tensors: those that ranks exchange, in their
    order.
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
        self._rules = dict(options.rules or {})
        self._propagate = options.non_finite == "propagate"
        self._ranks = group if isinstance(group, Ranks) else Ranks(group)
        self._met = False
        self.is_scaled = False
        """Whether this rank scales its loss: ranks compare that when they meet."""
        self.step = 0
        stages = list(codec.stages.values()) if isinstance(codec, Schedule) else [codec]
        for stage in stages:
            check_codec(stage, options, tensors, self._ranks)
        check_rules(owner, self._rules, tensors)
        self._set_tensors(tensors)
        self._has_sets = any(isinstance(stage, SETS) for stage in stages)
        # The name of their residuals in a saved state.
        self._sets = "scalecom" if any(isinstance(stage, ScaleCom) for stage in stages) else "sets"
        has_frames = bool(self._rules) or not all(isinstance(stage, (Dgc, *SETS)) for stage in stages)
        self.feedback: Feedback | None = None
        """The residuals of codecs that hold none themselves; None without error feedback."""
        if has_frames and options.feedback is not False:
            self.feedback = options.feedback if isinstance(options.feedback, Feedback) else Feedback()
            # Residuals that the caller gives must be of this model too.
            known = self.feedback.state_dict()
            if list(renamed := own(known, tensors)) != list(known):
                self.feedback.load_state_dict(renamed)
        self._frames = Frames(options, self.feedback, self._ranks)
        self._index_sets = IndexSets(options, self.feedback, self._ranks)

    def _set_tensors(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._complex = [name for name, (kind, _) in tensors.items() if kind.startswith("complex")]
        # Tensors that a codec with sets leaves to codecs of their own.
        self._ruled = {name for name in tensors if any(fnmatchcase(name, glob) for glob in self._rules)}
        self._digest = int.from_bytes(blake2b(repr(tensors).encode(), digest_size=7).digest(), "little")

    def extend(self, tensors: Tensors) -> None:
        """Exchanges more tensors from now on. tensors: all of them, in their order. Ranks do so together."""
        if isinstance(self._codec, Lgc):
            raise InputError("parameters became trainable, and Lgc learns those of its first step: make a new trainer with Lgc")
        self._settings = (*self._settings[:3], tensors, *self._settings[4:])
        self._set_tensors(tensors)

    def somewhere(self, here: list[bool], device: torch.device) -> list[bool]:
        """Returns whether a rank has each tensor. here: whether this rank has it.

        Raises:
            InputError: ranks do not have the same tensors.
        """
        ranks = self._ranks
        ranks.use(device)
        self._meet()
        everyone = [one.tolist() for one in ranks.same(torch.tensor([self._digest, all(here)]))]
        if len({digest for digest, _ in everyone}) > 1:
            check(ranks.greetings(self.greeting()))
        if all(complete for _, complete in everyone):
            return here
        flags = torch.stack(ranks.same(torch.tensor(here, dtype=torch.uint8)))
        return [bool(flag) for flag in flags.any(0)]

    def plain_mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the mean over all ranks of one tensor, uncompressed, with the same bits on all ranks."""
        mean = self._ranks.mean_of(reals(tensor).double()).to(tensor.device)
        return torch.view_as_complex(mean) if tensor.is_complex() else mean

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
            mine, dtypes = self._contribution(tensors, held, scale, error, inner_steps)
            means = self._means(mine, dtypes)
        except BaseException as e:
            self._take_back(e, start, known)
            raise
        if not provisional:
            self.commit()
        self._count(start, known)
        return joined(means, self._complex)

    def _contribution(
        self,
        tensors: dict[str, torch.Tensor],
        held: Collection[str],
        scale: float,
        error: Exception | None,
        inner_steps: int = 0,
        flat: _native._Flat | None = None,
    ) -> tuple[Contribution, dict[str, torch.dtype]]:
        """Returns what this rank contributes, and the types of its tensors if they were divided by the
        scale."""
        dtypes: dict[str, torch.dtype] = {}
        if error is None and (scale != 1 or self._complex):
            # Other tensors than those of the buffer.
            flat = None
            try:
                tensors, dtypes = divided_all(all_reals(tensors), scale)
            except Exception as e:
                # The other ranks wait for this one.
                error = e
        return Contribution(tensors, self.step, held, scale, error, inner_steps, flat), dtypes

    def _stage(self) -> Codec | str | Dgc | ScaleCom | SharedSet | Lgc:
        """Returns the codec of the next step."""
        return self._codec.at(self.step) if isinstance(self._codec, Schedule) else self._codec

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
        flat: _native._Flat | None = None,
    ) -> Started:
        """Begins to exchange a part of a step's tensors, and does not wait for other ranks, except in the
        first step. All ranks start the same parts in the same order, and end the step with `finish`.

        Args:
            which: number of the part in its step, from 0 on, and number of its elements, also if this rank
                has no tensors.
            tensors, device, held, scale, error: as in `mean`.
            flat: the buffer that has the tensors, all of them in their order, and may get their means.
        """
        start, known = time.perf_counter(), self._accounted()
        self._ranks.use(device)
        self._meet()
        codec = self._stage()
        assert not isinstance(codec, SETS), "codecs with sets need all tensors"
        self._index_sets.leave()
        mine, dtypes = self._contribution(tensors, held, scale, error, flat=flat)
        part = self._frames.start(which, codec, mine)
        self.profile.other += time.perf_counter() - start - (self._accounted() - known)
        return Started(part, dtypes, scale, mine.flat)

    def finish(self, parts: list[Started]) -> dict[str, torch.Tensor]:
        """Ends a step that consists of these parts: returns the means of their tensors, without those that
        are in a buffer, which has their means then; after an error, anything.

        Raises:
            NotFinite: as `mean`.
            Exception: a rank could not compress. The sender state is as before the step.
        """
        start, known = time.perf_counter(), self._accounted()
        means: dict[str, torch.Tensor] = {}
        waiting, sent = list(parts), []
        failed: Exception | None = None
        try:
            while waiting:
                started = waiting.pop(0)
                streams = self._frames.finish(started.part)
                sent.append(streams[self._ranks.rank])
                if failed is not None:
                    continue
                try:
                    if started.flat is None:
                        means |= scaled(self._frames.mean_of(streams), started.dtypes, started.scale, self._propagate)
                    elif not self._frames.put_mean(streams, started.flat) and self._propagate:
                        raise NotFinite
                    self._frames.give_back(streams)
                except Exception as e:
                    # Other ranks may have decoded it, and go on with the next part.
                    failed = e
            self._ranks.agree(failed, self._propagate)
        except BaseException as e:
            self._take_back(e, start, known)
            for started in waiting:
                self._frames.wait(started.part)
            raise
        self._frames.keep(sent)
        self.commit()
        self._count(start, known)
        return joined(means, self._complex)

    def _take_back(self, error: BaseException, start: float, known: float) -> None:
        """Restores the sender state after a failure, and counts the exchange if its mean is NaN."""
        self.undo()
        if isinstance(error, NotFinite):
            self.profile.skipped += 1
            self._count(start, known)

    def _means(self, mine: Contribution, dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
        codec = self._stage()
        if not isinstance(codec, SETS):
            error: Exception | None = None
            try:
                self._index_sets.leave()
            except Exception as e:
                error = e
            return self._by_frames(codec, mine if error is None else replace(mine, error=error), dtypes)
        others = {name: tensor for name, tensor in mine.tensors.items() if name not in self._ruled}
        means = {}
        by_set = len(self._ruled) < len(self._tensors)
        if by_set and mine.error is None:
            try:
                self._index_sets.prepare(codec, others)
            except Exception as e:
                mine = replace(mine, error=e)
        if self._ruled:
            framed = {name: tensor for name, tensor in mine.tensors.items() if name in self._ruled}
            # First, because the worker's step cannot be taken back once it is finished.
            means = self._by_frames("lossless", replace(mine, tensors=framed), dtypes)
        if by_set:
            by_set_only = {name: dtype for name, dtype in dtypes.items() if name not in self._ruled}
            means |= self._index_sets.mean(codec, replace(mine, tensors=others))
            # They are finite, but in a narrow type they may not be.
            means = scaled(means, by_set_only, mine.scale, self._propagate and bool(by_set_only))
        return means

    def _by_frames(self, codec: Codec | str | Dgc, mine: Contribution, dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
        """Returns the mean of updates that travel as frames."""
        streams = self._frames.gathered(codec, mine)
        known = {name: dtype for name, dtype in dtypes.items() if name in mine.tensors}
        means = self._ranks.together(lambda: scaled(self._frames.mean_of(streams), known, mine.scale, self._propagate), self._propagate)
        self._frames.give_back(streams)
        return means

    def sent(self) -> dict[str, torch.Tensor]:
        """Returns this rank's last update, as receivers decode it."""
        return joined(self._frames.last(), self._complex)

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
        check(self._ranks.greetings(self.greeting()))
        if isinstance(self._codec, Dgc):
            check_workers(self._codec, self._ranks.world)
        self._met = True

    def greeting(self) -> bytes:
        """Returns the message by which ranks compare their settings."""
        return greeting(
            self._tensors,
            world=self._ranks.world,
            codec=text_of(self._codec) if self._index_sets.model is None else f"{text_of(self._codec)} with a model",
            rules=[(glob, spec_of(rule)) for glob, rule in self._rules.items()],
            feedback=self.feedback is not None,
            non_finite=self._options.non_finite,
            limits=asdict(self._options.limits or Limits()),
            scaler=self.is_scaled,
            step=self.step,
        )

    def rejoin(self, step: int, met: bool) -> None:
        """Goes on with ranks that may be others than before. met: whether their settings are known to be the
        same."""
        self.step, self._met = step, met

    def commit(self) -> None:
        """Accepts the change of the sender state. Workers with sets change only when their step is
        finished."""
        for memory in self._memories():
            memory.commit()

    def undo(self) -> None:
        """Restores the sender state from before the exchange."""
        for memory in self._memories():
            memory.undo()
        self._index_sets.abort()

    def _memories(self) -> list[_native.Feedback | _native.Dgc]:
        if isinstance(self._codec, Dgc):
            return [self._codec._native]
        return [] if self.feedback is None else [self.feedback._native]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"step": self.step, "rank": self._ranks.rank, "world": self._ranks.world}
        if self.feedback is not None:
            state["feedback"] = self.feedback.state_dict("torch")
        if isinstance(self._codec, Dgc):
            state["dgc"] = self._codec.state_dict("torch")
        if self._has_sets:
            state[self._sets] = self._index_sets.residuals()
        if isinstance(self._codec, Lgc):
            state["model"] = torch.frombuffer(bytearray(self._index_sets.model or b"\0"), dtype=torch.uint8)
            state["training"] = self._index_sets.training()
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        kinds = {"feedback": self.feedback is not None, "dgc": isinstance(self._codec, Dgc)}
        kinds[self._sets] = self._has_sets
        kinds["model"] = kinds["training"] = isinstance(self._codec, Lgc)
        expected = {"step", "rank", "world"} | {kind for kind, used in kinds.items() if used}
        if set(state) != expected:
            raise InputError(f"the state has {sorted(state)}, but this codec needs {sorted(expected)}: use the codec that saved it")
        there, here = (state["rank"], state["world"]), (self._ranks.rank, self._ranks.world)
        if there != here and strict:
            raise InputError(
                f"the state is of rank {there[0]} of {there[1]}, and this is rank {here[0]} of {here[1]}: save and load one "
                "file for each rank. load_state_dict(state, strict=False) takes the residuals of another rank, or of another "
                "number of ranks; give each file to one rank only"
            )
        feedback, memory = (own(state.get(kind, {}), self._tensors, strict=strict) for kind in ("feedback", self._sets))
        step, training = int(state["step"]), dict(state.get("training", {}))
        # A model has more than one byte.
        saved = bytes(state["model"].tolist()) if "model" in expected else b""
        model = saved if len(saved) > 1 else None
        if isinstance(self._codec, Lgc):
            # A model has a decoder for each rank there was, and the training has the values of each.
            fits = here[1] <= there[1] if model is not None else here == there
            if not fits or len(memory) != len(state[self._sets]):
                # The training begins again, on all ranks.
                step, model, training = min(step, self._codec.full_steps), None, {}
            elif self._ranks.rank == 0 and model is None and not training and step > self._codec.full_steps:
                raise InputError("the state lacks the training of the learned codec: use the state that this rank saved")
        if isinstance(self._codec, Dgc):
            kept = own(state["dgc"]["tensors"], self._tensors, strict=strict)
            self._codec.load_state_dict({**state["dgc"], "tensors": kept})
        if self.feedback is not None:
            self.feedback.load_state_dict(feedback)
        self._index_sets.load(memory, model, training)
        self.step = step
        # Ranks that load a state have not seen the same sizes as before.
        self._frames.forget_sizes()
