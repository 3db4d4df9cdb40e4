"""A refit through a store: the trainer announces a version and publishes it, rollout workers wait for it.

The modules of frameworks whose engines send and receive weights at the same time (verl, NeMo-RL) use it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from gcodec.errors import InputError, IoError
from gcodec.store import Follower, Published, Store, Update

_POLL = 0.05


class Exchange:
    """Sends or receives one version at a time.

    Args:
        store: address of the store.
        timeout: seconds that a rollout worker waits for a version.
    """

    def __init__(self, store: str, timeout: float) -> None:
        self.store, self.timeout = Store(store), timeout
        self.follower = Follower(self.store)
        self.version: int | None = None
        """The version of this refit, which the trainer announced to all workers. None: there is no refit."""

    def announced(self) -> int:
        """Returns the version that the next publication makes."""
        return self.store.latest() + 1

    async def send(self, weights: Iterable[tuple[str, Any]], *, sends: bool, meta: Mapping[str, str] | None = None) -> Published | None:
        """Publishes the version. With `sends` false, only takes part in gathering the weights.

        Raises:
            InputError: there is no refit, or another trainer publishes to the store.
            ConflictError: another trainer publishes at the same time.
        """
        gathered = {}
        for name, tensor in weights:
            if sends:
                gathered[name] = tensor.detach().to("cpu", copy=True)
        if not sends:
            return None
        expected = self._expected()
        published = await asyncio.to_thread(self.store.publish, gathered, meta=dict(meta or {}))
        if published.version != expected:
            raise InputError(f"version {published.version} was published, and {expected} expected: another trainer publishes to the store")
        return published

    async def receive(self, batch_bytes: int = 0) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """Waits for the version, and yields the tensors that it changes; all tensors at first, and after a
        load that failed. A batch has `batch_bytes`, or one tensor.

        The version counts as loaded when it is asked for more after the last batch.

        Raises:
            InputError: there is no refit.
            IoError: the version does not come (kind `too-slow`).
        """
        update = await asyncio.to_thread(self._wait)
        if update is None:
            return
        follower, tensors = self.follower, update.tensors(framework="torch")
        # A generator cannot see that the loader failed: it is not resumed then.
        self.follower = Follower(self.store)
        batch: list[tuple[str, Any]] = []
        for name, tensor in tensors.items():
            if batch and sum(own.nbytes for _, own in batch) + tensor.nbytes > batch_bytes:
                yield batch
                batch = []
            batch.append((name, tensor))
        if batch:
            yield batch
        update._finish(lambda: None)
        self.follower = follower

    def _wait(self) -> Update | None:
        expected, end = self._expected(), time.monotonic() + self.timeout
        while self.store.latest() < expected:
            if time.monotonic() > end:
                raise IoError(f"version {expected} did not come within {self.timeout} s", kind="too-slow")
            time.sleep(_POLL)
        return self.follower.stage(expected)

    def _expected(self) -> int:
        if self.version is None:
            raise InputError("no version is announced: the process groups come before the weights")
        return self.version
