"""The mean of updates, which every rank makes of its own tensors and sends to all as frames."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from gcodec import _native
from gcodec._tensors.update import PART_BYTES, native_update
from gcodec.codecs import Codec, numbered, spec_of
from gcodec.feedback import Dgc, Feedback
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.oneshot import decode
from gcodec.options import Chosen
from gcodec.reduction import reduce
from gcodec.torch.contribution import Contribution
from gcodec.torch.ranks import Ranks, Sending


@dataclass
class Part:
    """A part of a step's tensors, whose frames are on their way."""

    which: tuple[int, int]
    """Its number in its step, and its number of elements."""
    sending: Sending
    """The frames on their way."""


class Frames:
    """Makes this rank's updates, sends their frames, and sums those of all ranks.

    options: the rules, the treatment of NaN and the limits. feedback: this rank's residuals.
    """

    def __init__(self, options: Chosen, feedback: Feedback | None, ranks: Ranks) -> None:
        self._options, self._ranks = options, ranks
        self._rules, self._limits = dict(options.rules or {}), options.limits or Limits()
        self._feedback = feedback
        self._propagate = options.non_finite == "propagate"
        self.sent = [memoryview(b"")]
        """This rank's streams in the last step."""
        # Bytes of the longest frames of each part in its last step.
        self._longest: dict[tuple[int, int], int] = {}

    def gathered(self, codec: Codec | str | Dgc, mine: Contribution) -> list[memoryview]:
        """Returns the streams of all ranks, for `mean_of`. mine: this rank's contribution."""
        head, frames, error = self._made(codec, mine)
        sizes = self._ranks.sizes(len(frames), error, self._propagate)
        streams = self._ranks.gather_frames(head, frames, sizes)
        self.keep([streams[self._ranks.rank]])
        return streams

    def start(self, which: tuple[int, int], codec: Codec | str | Dgc, mine: Contribution) -> Part:
        """Begins to send a part of a step. which: as in `Exchange.start`. mine: this rank's contribution."""
        head, frames, error = self._made(codec, mine, which[0])
        # Sizes hardly change from step to step, so that most frames travel with their sizes. All ranks know
        # the sizes of the last step.
        longest = self._longest.get(which, 0)
        return Part(which, self._ranks.start(head, frames, longest + longest // 32, error, self._propagate))

    def finish(self, part: Part) -> list[memoryview]:
        """Returns the streams of all ranks.

        Raises:
            Exception: as `Ranks.finish`.
        """
        return self._ranks.finish(part.sending, self.wait(part))

    def wait(self, part: Part) -> list[int]:
        """Waits for a part, and returns what `Ranks.wait` does. Ranks note the sizes of all parts, also of a
        step that fails, so that their next messages have the same length."""
        sizes = self._ranks.wait(part.sending)
        self._longest[part.which] = max(0, *sizes)
        return sizes

    def forget_sizes(self) -> None:
        """Forgets the sizes of earlier parts, which other ranks may not have seen."""
        self._longest = {}

    def keep(self, sent: list[memoryview]) -> None:
        """Keeps this rank's streams until the next step."""
        for stream in self.sent:
            self._ranks.spare.give(stream)
        self.sent = sent

    def give_back(self, streams: list[memoryview]) -> None:
        """Gives the memory of the other ranks' streams to the next step."""
        for rank, stream in enumerate(streams):
            if rank != self._ranks.rank:
                self._ranks.spare.give(stream)

    def mean_of(self, streams: list[memoryview]) -> dict[str, torch.Tensor]:
        """Returns the mean of the streams of all ranks."""
        start = time.perf_counter()
        mean = reduce(streams, mean=True, limits=self._limits)
        self._ranks.profile.coding += time.perf_counter() - start
        return mean.tensors("torch")

    def put_mean(self, streams: list[memoryview], flat: _native._Flat) -> bool:
        """Replaces the tensors of a buffer by the mean of the streams of all ranks. Returns whether it is
        finite."""
        start, (layout, buffer) = time.perf_counter(), flat
        is_finite = layout.mean(buffer, list(streams), self._limits)
        self._ranks.profile.coding += time.perf_counter() - start
        return is_finite

    def last(self) -> dict[str, torch.Tensor]:
        """Returns this rank's last update, as receivers decode it."""
        tensors: dict[str, torch.Tensor] = {}
        for stream in self.sent:
            tensors |= decode(stream, framework="torch", limits=self._limits)
        return tensors

    def _made(
        self, codec: Codec | str | Dgc, mine: Contribution, part: int = 0
    ) -> tuple[bytes, memoryview, Exception | None]:
        """Returns this rank's preamble and manifest, its other frames, and the reason if there are none.

        The preamble and the manifest are the same on all ranks, so they are not sent. If a rank's manifest
        differs, decoding fails because the update names another one.
        """
        error = mine.error
        if error is None:
            try:
                frames = memoryview(self._encoded(codec, mine, part))
                head = _native.head_bytes(frames)
                return bytes(frames[:head]), frames[head:], None
            except Exception as e:
                error = e
        return b"", memoryview(b""), error

    def _encoded(self, codec: Codec | str | Dgc, mine: Contribution, part: int) -> _native.Encoded:
        """Returns this rank's frames. The sender state can be restored afterwards."""
        ranks = self._ranks
        # Ranks, steps and parts round and draw independently.
        number = mine.step * ranks.world + ranks.rank + (part << 40)
        chosen = codec if isinstance(codec, Dgc) else numbered(codec, number)
        header = UpdateHeader(
            step=mine.step,
            sender=ranks.rank,
            world=ranks.world,
            inner_steps=mine.inner_steps,
            label="dgc" if isinstance(codec, Dgc) else spec_of(codec).partition(":")[0],
        )
        rules = {glob: numbered(rule, number) for glob, rule in self._rules.items()}
        non_finite = None if self._propagate else self._options.non_finite
        options = replace(self._options, rules=rules, feedback=self._feedback, header=header, non_finite=non_finite)
        update = native_update("gcodec.torch", mine.tensors, chosen, options, held=mine.held, provisional=True, flat=mine.flat)
        encoded = _native.Encoder(PART_BYTES, False, True).update(update, finish=True)
        ranks.profile.selection += encoded.seconds[0]
        ranks.profile.coding += encoded.seconds[1]
        return encoded
