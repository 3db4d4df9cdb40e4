"""Collectives of bytes and values between the ranks of a process group, with their times and traffic."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

from gcodec._handshake import COMPRESS, FINISH, failed, text_of
from gcodec.errors import InputError
from gcodec.torch.finite import NotFinite
from gcodec.torch.spare import Spare

# Sizes that say why a rank sends nothing.
_FAILED, _NOT_FINITE = -1, -2
# Bytes of a first message, at most.
_GREETING = 1 << 28
# How long a rank waits for the others in its first step. The timeout of a group, often half an hour, is for
# ranks that train already.
_FIRST_WAIT_NAME = "GCODEC_FIRST_STEP_SECONDS"
_FIRST_WAIT = timedelta(seconds=float(os.environ.get(_FIRST_WAIT_NAME, "60")))

T = TypeVar("T")


@dataclass
class Profile:
    """Times and traffic of the exchanges of one rank: sums over all exchanges, in seconds and bytes."""

    exchanges: int = 0
    """Number of exchanges."""
    skipped: int = 0
    """Number of exchanges that gave NaN, because a gradient or a mean was not finite."""
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


@dataclass
class Sending:
    """Frames on their way between ranks: `Ranks.finish` waits for them."""

    frames: memoryview
    """This rank's frames."""
    error: Exception | None
    """The reason why this rank has none."""
    room: int
    """Bytes of each rank's frames that travel now."""
    streams: list[memoryview]
    """A buffer for each rank: the head of its stream, the first `room` bytes of its frames, and the size of
    all of them, 8 bytes."""
    moved: list[torch.Tensor]
    """What arrives of them: all but the head."""
    message: memoryview
    """What this rank sends."""
    work: dist.Work


class Ranks:
    """A process group, and this rank's part of its collectives."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self._placed: tuple[int, int] | None = None
        self.profile = Profile()
        self.spare = Spare()
        """Memory of streams."""
        self._device = torch.device("cpu")

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._at()[0]

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self._at()[1]

    @property
    def ready(self) -> bool:
        """Whether the process group is there. Trainers are often made before it."""
        return self._placed is not None or self.group is not None or (dist.is_available() and dist.is_initialized())

    def _at(self) -> tuple[int, int]:
        if self._placed is None:
            if not self.ready:
                raise InputError(
                    "there is no process group yet: call torch.distributed.init_process_group before the first step, and before "
                    "a state is saved or loaded"
                )
            self._placed = self._place()
        return self._placed

    def _place(self) -> tuple[int, int]:
        """Returns this rank, and the number of ranks."""
        rank, world = dist.get_rank(self.group), dist.get_world_size(self.group)
        if rank < 0:
            raise InputError("this process is not in the group: give the group of ranks that exchange, to those ranks only")
        return rank, world

    def _backend(self) -> str:
        self._at()
        return str(dist.get_backend(self.group))

    def use(self, device: torch.device) -> None:
        """Sets the device of the gradients. NCCL sends from device memory, gloo from host memory."""
        self._device = device if "nccl" in self._backend() else torch.device("cpu")

    def sizes(self, size: int, error: Exception | None, propagate: bool) -> list[int]:
        """Returns the number of bytes that each rank sends.

        If `error` is set on one rank, all ranks raise, so that none waits for it.

        Raises:
            NotFinite: `propagate` is set, and the error of a rank is an element that is not finite.
            Exception: `error`, or an InputError with the text of another rank's.
        """
        sizes = self._numbers(_said(size, error, propagate))
        self._raise_if_one_failed(sizes, error, COMPRESS)
        return sizes

    def agree(self, error: Exception | None, propagate: bool, doing: str = FINISH) -> None:
        """Compares whether all ranks have finished a part of their work, so that all raise if one has not.

        Raises:
            NotFinite, Exception: as `sizes`.
        """
        self._raise_if_one_failed(self._numbers(_said(0, error, propagate)), error, doing)

    def together(self, work: Callable[[], T], propagate: bool) -> T:
        """Returns the result of work that needs no other rank. If it raises on one rank, all ranks raise.

        Raises:
            NotFinite, Exception: as `sizes`.
        """
        result, error = None, None
        try:
            result = work()
        except Exception as e:
            error = e
        self.agree(error, propagate)
        return cast(T, result)

    def _raise_if_one_failed(self, sizes: list[int], error: Exception | None, doing: str) -> None:
        """Raises on all ranks if the number of one says that it sends nothing. doing: for the message."""
        if _FAILED in sizes:
            mine = error if sizes[self.rank] == _FAILED else None
            texts = self.gather(b"" if mine is None else text_of(mine))
            if mine is not None:
                raise mine
            rank = sizes.index(_FAILED)
            raise failed(rank, doing, bytes(texts[rank]))
        if _NOT_FINITE in sizes:
            raise NotFinite from error

    def start(self, head: bytes, frames: memoryview, room: int, error: Exception | None, propagate: bool) -> Sending:
        """Begins to send this rank's frames to all ranks, and does not wait.

        Args:
            head: what every rank's stream has before its frames.
            room: number of bytes that travel at once, the same on all ranks. `finish` sends the rest.
            error, propagate: as in `sizes`. `finish` raises.
        """
        size = _said(len(frames), error, propagate)
        message = self.spare.take(room + 8)
        _fill(message[:room], frames[:room])
        message[room:] = size.to_bytes(8, "little", signed=True)
        start = time.perf_counter()
        mine = torch.frombuffer(message, dtype=torch.uint8).to(self._device)
        streams = [self.spare.take(len(head) + room + 8) for _ in range(self.world)]
        moved = [_after(len(head), stream).to(self._device) for stream in streams]
        work = dist.all_gather(moved, mine, group=self.group, async_op=True)
        self.profile.communication += time.perf_counter() - start
        self.profile.received += mine.nbytes * (self.world - 1)
        for stream in streams:
            stream[: len(head)] = head
        return Sending(frames, error, room, streams, moved, message, work)

    def wait(self, sending: Sending) -> list[int]:
        """Waits for frames, and returns the number that each rank said: of its bytes, or below zero if it
        has none."""
        start = time.perf_counter()
        sending.work.wait()
        for stream, there in zip(sending.streams, sending.moved, strict=True):
            if there.device.type != "cpu":
                _after(len(stream) - there.nbytes, stream).copy_(there)
        self.spare.give(sending.message)
        self.profile.communication += time.perf_counter() - start
        return [int.from_bytes(stream[-8:], "little", signed=True) for stream in sending.streams]

    def finish(self, sending: Sending, sizes: list[int]) -> list[memoryview]:
        """Returns the streams of all ranks. sizes: what `wait` returned.

        Raises:
            NotFinite, Exception: as `sizes`.
        """
        self._raise_if_one_failed(sizes, sending.error, COMPRESS)
        rest = [max(size - sending.room, 0) for size in sizes]
        self.profile.sent += sizes[self.rank] - rest[self.rank]
        rests = self.gather_frames(b"", sending.frames[sending.room :], rest)
        whole = []
        for stream, size, more in zip(sending.streams, sizes, rests, strict=True):
            first = stream[: len(stream) - 8 - max(sending.room - size, 0)]
            whole.append(memoryview(b"".join((first, more))) if more else first)
        return whole

    def greetings(self, mine: bytes) -> list[bytes]:
        """Returns the first message of each rank.

        Raises:
            InputError: a rank does not send one in time, or sends something else.
        """
        try:
            sizes = [int(one) for one in self._timed(torch.tensor([len(mine)], dtype=torch.int64))]
            if not all(0 < size <= _GREETING for size in sizes):
                raise RuntimeError("a rank sends something else")
            padded = torch.frombuffer(bytearray(mine).ljust(max(sizes), b"\0"), dtype=torch.uint8)
            return [bytes(one.tolist())[:size] for one, size in zip(self._timed(padded), sizes, strict=True)]
        except RuntimeError as e:
            raise InputError(
                f"rank {self.rank} of {self.world} has no first message from the other ranks: {e}. Probably a rank does not "
                "exchange in this step: its model has no hook or no Average, it raised an error or ended before, or it skipped "
                f"the step. A rank waits for {_FIRST_WAIT.total_seconds():.0f} seconds in its first step; the environment variable "
                f"{_FIRST_WAIT_NAME} is another number, for ranks that begin later"
            ) from e

    def _timed(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Returns a tensor of each rank, as `same`, within the time of the first step."""
        mine = mine.to(self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        group = dist.group.WORLD if self.group is None else self.group
        options = AllgatherOptions()
        options.timeout = _FIRST_WAIT
        work = group.allgather([everyone], [mine], options)
        if work is not None:
            work.wait()
        return [one.cpu() for one in everyone]

    def gather(self, data: bytes) -> list[memoryview]:
        """Returns the bytes of all ranks, in their order."""
        return self.gather_frames(b"", memoryview(data), self._numbers(len(data)))

    def gather_frames(self, head: bytes, frames: memoryview, sizes: list[int]) -> list[memoryview]:
        """Sends this rank's frames, and returns the streams of all ranks, each with `head` before its
        frames."""
        largest = max(sizes)
        if largest == 0:
            return [memoryview(head) for _ in sizes]
        streams = [self.spare.take(len(head) + largest) for _ in sizes]
        for stream in streams:
            stream[: len(head)] = head
        bodies = [_after(len(head), stream) for stream in streams]
        message = self.spare.take(largest)
        _fill(message, frames)
        mine = torch.frombuffer(message, dtype=torch.uint8)
        start = time.perf_counter()
        moved = [body.to(self._device) for body in bodies]
        dist.all_gather(moved, mine.to(self._device), group=self.group)
        for body, there in zip(bodies, moved, strict=True):
            if there is not body:
                body.copy_(there)
        self.spare.give(message)
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += sizes[self.rank]
        self.profile.received += (self.world - 1) * max(sizes)
        return [stream[: len(head) + size] for stream, size in zip(streams, sizes, strict=True)]

    def swap(self, streams: list[memoryview]) -> list[memoryview]:
        """Sends a stream to each rank, and returns the streams that the ranks sent here, in their order."""
        start = time.perf_counter()
        sent = [len(stream) for stream in streams]
        sizes = torch.tensor(sent, dtype=torch.int64, device=self._device)
        incoming = torch.empty_like(sizes)
        dist.all_to_all_single(incoming, sizes, group=self.group)
        counts: list[int] = incoming.tolist()
        joined = torch.frombuffer(bytearray(b"".join(streams)), dtype=torch.uint8).to(self._device)
        whole = self.spare.take(sum(counts))
        there = torch.frombuffer(whole, dtype=torch.uint8)
        received = there.to(self._device)
        dist.all_to_all_single(received, joined, counts, sent, group=self.group)
        if received is not there:
            there.copy_(received)
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += sum(sent) - sent[self.rank]
        self.profile.received += sum(counts) - counts[self.rank]
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [whole[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def broadcast(self, frames: memoryview, size: int, leader: int) -> bytearray:
        """Returns the `size` bytes of the leader's frames, which are `frames` on that rank."""
        buffer = bytearray(frames) if self.rank == leader else bytearray(size)
        start = time.perf_counter()
        there = torch.frombuffer(buffer, dtype=torch.uint8)
        moved = there.to(self._device)
        source = leader if self.group is None else dist.get_global_rank(self.group, leader)
        dist.broadcast(moved, source, group=self.group)
        there.copy_(moved)
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += len(frames)
        self.profile.received += 0 if self.rank == leader else size
        return buffer

    def mean_of(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the mean over all ranks of one tensor, by an all-reduce."""
        if values.numel() == 0:
            return values
        start = time.perf_counter()
        total = values.to(self._device, copy=True)
        dist.all_reduce(total, group=self.group)
        mean = (total / self.world).cpu()
        self.profile.communication += time.perf_counter() - start
        self.profile.sent += values.nbytes
        self.profile.received += 2 * (self.world - 1) * values.nbytes // self.world
        return mean

    def _numbers(self, number: int) -> list[int]:
        """Returns one number of each rank."""
        return [int(one) for one in self.same(torch.tensor([number], dtype=torch.int64))]

    def same(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Returns a tensor of each rank; all have the same shape and type."""
        start = time.perf_counter()
        mine = mine.to(self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine, group=self.group)
        self.profile.communication += time.perf_counter() - start
        self.profile.received += mine.nbytes * (self.world - 1)
        return [one.cpu() for one in everyone]


def _fill(message: memoryview, frames: memoryview) -> None:
    """Writes frames to a message, and zeros after them."""
    message[: len(frames)] = frames
    message[len(frames) :] = bytes(len(message) - len(frames))


def _after(start: int, stream: memoryview) -> torch.Tensor:
    """Returns the bytes of a stream from `start` on, in its memory."""
    return torch.frombuffer(stream, dtype=torch.uint8, offset=start)


def _said(size: int, error: Exception | None, propagate: bool) -> int:
    """Returns the number that tells other ranks how many bytes follow, or why there are none."""
    if error is None:
        return size
    return _NOT_FINITE if propagate and getattr(error, "kind", "") == "non_finite" else _FAILED
