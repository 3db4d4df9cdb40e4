"""The mean of values on an index set, which one rank in turn chooses for all ranks."""

from __future__ import annotations

import time
from typing import Any

import torch

from gcodec import _native
from gcodec._tensors.dlpack import convert, given
from gcodec.feedback import Feedback
from gcodec.limits import Limits
from gcodec.options import Chosen
from gcodec.torch.contribution import Contribution
from gcodec.torch.finite import NotFinite, are_finite
from gcodec.torch.lgc import Lgc
from gcodec.torch.ranks import Ranks
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.sets import SharedSet

SETS = (ScaleCom, SharedSet, Lgc)
"""Codecs whose leader in turn sends positions for all ranks; they hold their own residuals."""


class IndexSets:
    """The worker of a codec with sets, its residuals, and the steps of its exchange.

    options: the treatment of NaN and the limits. feedback: the residuals of other codecs, to which and from
    which residuals move when a schedule changes the codec; None if there are no other codecs.
    """

    def __init__(self, options: Chosen, feedback: Feedback | None, ranks: Ranks) -> None:
        self._limits, self._feedback, self._ranks = options.limits or Limits(), feedback, ranks
        self._propagate = options.non_finite == "propagate"
        # A worker is made at its first exchange, and then loads its memory.
        self._worker: tuple[ScaleCom | SharedSet | Lgc, Any] | None = None
        self._shapes: list[tuple[str, tuple[int, ...]]] = []
        self._memory: dict[str, Any] = {}
        self.model: bytes | None = None
        """The model of a learned codec, after its second phase."""
        # The state of its training in a checkpoint, before it is in the worker.
        self._training: dict[str, Any] = {}

    def prepare(self, codec: ScaleCom | SharedSet | Lgc, tensors: dict[str, torch.Tensor]) -> None:
        """Makes the worker of a codec for these tensors, if it is not there."""
        shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
        if self._worker is not None and (self._worker[0] is not codec or self._shapes != shapes):
            self.leave()
        if self._worker is not None:
            return
        self._shapes = shapes
        worker = _made(codec, shapes, self._ranks)
        kept = {} if self._feedback is None else self._feedback.state_dict("torch")
        worker.load(given(self._memory | {name: kept.pop(name) for name in tensors if name in kept}))
        if self._feedback is not None:
            self._feedback.load_state_dict(kept)
        if isinstance(worker, _native.Lgc):
            if self._training:
                worker.load_training(given(self._training))
            if self.model is not None:
                worker.set_model(self.model)
        self._worker, self._memory, self._training = (codec, worker), {}, {}

    def mean(self, codec: ScaleCom | SharedSet | Lgc, mine: Contribution) -> dict[str, torch.Tensor]:
        """Returns the mean over all ranks, after `prepare`. mine: this rank's contribution."""
        # Without a worker there is an error, which is raised on all ranks.
        worker = None if self._worker is None else self._worker[1]
        if isinstance(codec, Lgc) and self.model is None and mine.step >= codec.learned_from:
            self._share_model(worker, mine.error)
        index_set = self._index_set(worker, mine)
        assert worker is not None, "an error is raised on all ranks"
        by = self._by_sum if isinstance(codec, ScaleCom) else self._by_updates
        return by(worker, index_set, mine.scale)

    def _index_set(self, worker: Any, mine: Contribution) -> bytearray:
        """Begins a step, and returns the frames of its leader's index set; empty if it sends none."""
        found, error = None, mine.error
        start = time.perf_counter()
        if worker is not None and error is None:
            try:
                wide = given({name: tensor.float() for name, tensor in mine.tensors.items()})
                found = worker.begin(mine.step, wide, [name not in mine.held for name in mine.tensors])
            except Exception as e:
                error = e
        self._ranks.profile.selection += time.perf_counter() - start
        leader, frames = mine.step % self._ranks.world, memoryview(found or b"")
        size = self._ranks.sizes(len(frames), error, self._propagate)[leader]
        return self._ranks.broadcast(frames, size, leader) if size else bytearray()

    def _by_sum(self, worker: Any, index_set: bytearray, scale: float) -> dict[str, torch.Tensor]:
        """Returns the mean of values on a leader's set, which ranks sum by an all-reduce."""

        def taken() -> torch.Tensor:
            start = time.perf_counter()
            values: torch.Tensor = worker.take_set(index_set, self._limits).torch()
            self._ranks.profile.coding += time.perf_counter() - start
            return values

        mean = self._ranks.mean_of(self._ranks.together(taken, self._propagate))
        self._check(mean * scale)
        start = time.perf_counter()
        out = {name: convert(tensor, "torch") for name, tensor in worker.finish(given({"mean": mean}))}
        self._ranks.profile.coding += time.perf_counter() - start
        return out

    def _check(self, *means: torch.Tensor) -> None:
        """Raises NotFinite if a mean is not finite, and that is to be propagated."""
        if self._propagate and not are_finite(means):
            raise NotFinite

    def _by_updates(self, worker: Any, index_set: bytearray, scale: float) -> dict[str, torch.Tensor]:
        """Returns the mean of updates on a leader's set, which travel as frames."""
        update: _native.Encoded | bytes = b""
        error = None
        start = time.perf_counter()
        try:
            if index_set:
                worker.take_set(index_set, self._limits)
            update = worker.send()
        except Exception as e:
            error = e
        self._ranks.profile.coding += time.perf_counter() - start
        frames = memoryview(update)
        sizes = self._ranks.sizes(len(frames), error, self._propagate)
        streams = self._ranks.gather_frames(b"", frames, sizes)

        def decoded() -> dict[str, torch.Tensor]:
            start = time.perf_counter()
            means = {name: convert(tensor, "torch") for name, tensor in worker.mean(streams, self._limits)}
            self._check(*(mean * scale for mean in means.values()))
            self._ranks.profile.coding += time.perf_counter() - start
            return means

        means = self._ranks.together(decoded, self._propagate)
        worker.finish()
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
        self._ranks.together(lambda: worker.set_model(shared), self._propagate)
        self.model = shared

    def leave(self) -> None:
        """Moves the residuals of a codec with sets to where other codecs have theirs, if there are such
        codecs. Velocities end."""
        memory = {name: tensor for name, tensor in self.residuals().items() if "#" not in name}
        self._worker, self._memory = None, {}
        if self._feedback is None:
            self._memory = memory
        elif memory:
            self._feedback.load_state_dict(self._feedback.state_dict("torch") | memory)

    def residuals(self) -> dict[str, Any]:
        """Returns the residuals of a codec with sets."""
        if self._worker is None:
            return self._memory
        return {name: convert(tensor, "torch") for name, tensor in self._worker[1].save()}

    def training(self) -> dict[str, Any]:
        """Returns the state of a learned codec's training: the first rank has it before the third phase."""
        if self._worker is None or not isinstance(self._worker[1], _native.Lgc):
            return self._training
        return {name: convert(tensor, "torch") for name, tensor in self._worker[1].save_training()}

    def abort(self) -> None:
        """Takes a step back that is not finished."""
        if self._worker is not None:
            self._worker[1].abort()

    def load(self, residuals: dict[str, Any], model: bytes | None, training: dict[str, Any]) -> None:
        """Restores what `residuals`, `model` and `training` gave."""
        self._worker, self._memory = None, residuals
        self.model, self._training = model, training


def _made(codec: ScaleCom | SharedSet | Lgc, shapes: list[tuple[str, tuple[int, ...]]], ranks: Ranks) -> Any:
    """Returns the native worker of a codec."""
    if isinstance(codec, ScaleCom):
        return _native.ScaleCom(shapes, ranks.rank, ranks.world, codec.spec, codec.beta, codec.chunk)
    if isinstance(codec, SharedSet):
        return _native.SharedSet(shapes, ranks.rank, ranks.world, codec.spec, codec.momentum)
    return _native.Lgc(shapes, ranks.rank, ranks.world, codec)
