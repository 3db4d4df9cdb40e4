"""Compressed gradients under torchft, whose replicas come and go.

    group = torchft.ProcessGroupGloo()
    manager = torchft.Manager(pg=group, ...)
    optimizer = torchft.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))
    average = gcodec.engines.torchft.Average(manager, group, model, gcodec.TopK(density=0.01))
    ...
    optimizer.zero_grad()
    loss.backward()
    average()
    optimizer.step()

The model is not in torchft's DistributedDataParallel, which reduces gradients uncompressed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
import torchft

from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.feedback import Dgc
from gcodec.options import Options, resolve
from gcodec.torch.average import average, gradients_of
from gcodec.torch.exchange import USED, Exchange
from gcodec.torch.index_sets import SETS
from gcodec.torch.members import Members
from gcodec.torch.names import described, own
from gcodec.torch.ranks import Profile, Ranks
from gcodec.torch.schedule import Schedule

# Bytes by which a replica finds its own place in a quorum.
_NONCE = 16


class Average:
    """Averages the gradients of a model over the replicas of a quorum, compressed, at each call.

    Call it between `backward()` and `optimizer.step()`. A step that torchft does not commit, for instance
    because a replica is gone, changes no residual, so nothing is lost. Residuals belong to a replica: a new
    replica does not get those of another, and begins at zero.

    A communication error is reported to the manager, which then discards the step. If a gradient is not
    finite, all replicas get NaN, as with `State`.

    Args:
        manager: the manager.
        group: the process group that the manager has.
        model: the model.
        codec: a codec that keeps no state of its own.
        options, profile: as in `gcodec.torch.State`.

    Raises:
        InputError: an option, a codec or a rule does not fit the model.
    """

    def __init__(
        self,
        manager: torchft.Manager,
        group: Any,
        model: torch.nn.Module,
        codec: Codec | str,
        *,
        profile: int = 0,
        **options: Unpack[Options],
    ) -> None:
        where = "gcodec.engines.torchft.Average"
        chosen = resolve(where, USED, options)
        chosen = replace(chosen, non_finite=chosen.non_finite or "propagate")
        if isinstance(codec, (Dgc, *SETS, Schedule)):
            raise InputError(f"{where} takes no {type(codec).__name__}, which depends on the number of ranks: use gcodec.TopK")
        self._manager, self._group, self._members = manager, group, Members(model)
        self._device = next((p.device for p in self._members.known.values()), torch.device("cpu"))
        self._ranks = _Quorum(group)
        self._exchange = Exchange(where, codec, chosen, described(self._members.known), self._ranks, profile)
        # The step whose change of the residuals waits for its commit.
        self._open: int | None = None

    @property
    def profile(self) -> Profile:
        """Times and traffic so far."""
        return self._exchange.profile

    def __call__(self) -> None:
        """Replaces the gradients by their means over the replicas. All replicas of a quorum call it together.

        Raises:
            InputError: a replica cannot compress, or its settings differ. All replicas raise.
        """
        manager = self._manager
        manager.wait_quorum()
        self._settle()
        if manager.errored() is not None:
            return
        try:
            self._meet()
            self._average()
        except InputError:
            raise
        except Exception as e:
            manager.report_error(e)
            return
        self._open = manager.current_step()

    def _average(self) -> None:
        taken: dict[str, torch.Tensor] = {}
        error: Exception | None = None
        try:
            if self._members.join():
                self._exchange.extend(described(self._members.known))
            taken = gradients_of(self._members.known)
        except Exception as e:
            error = e
        # A replica that does not participate gets its parameters from another one in this step.
        silent = not self._manager.is_participating()
        average(
            self._exchange, taken, device=self._device, error=error, parameters=self._members.known, silent=silent, provisional=True
        )
        if (participants := self._manager.num_participants()) != self._ranks.world:
            for gradient in taken.values():
                gradient *= self._ranks.world / participants

    def _meet(self) -> None:
        """Finds this replica's place, and compares the settings. Replicas may have changed since the last
        step."""
        exchange, ranks = self._exchange, self._ranks
        world = self._group.size()
        ranks.place(ranks.rank, world)
        ranks.use(self._device)
        exchange.rejoin(self._manager.current_step(), met=True)
        nonce, digest = secrets.token_bytes(_NONCE), hashlib.blake2b(exchange.greeting(), digest_size=16).digest()
        mine = torch.frombuffer(bytearray(nonce + digest), dtype=torch.uint8)
        everyone = [bytes(one.tolist()) for one in ranks.same(mine)]
        ranks.place(next(rank for rank, one in enumerate(everyone) if one[:_NONCE] == nonce), world)
        if any(one[_NONCE:] != digest for one in everyone):
            # The exchange compares the settings itself, and says what differs.
            exchange.rejoin(self._manager.current_step(), met=False)

    def _settle(self) -> None:
        """Accepts the last change of the residuals if its step was committed, or takes it back."""
        if self._open is None:
            return
        if self._manager.current_step() > self._open:
            self._exchange.commit()
        else:
            self._exchange.undo()
        self._open = None

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns this replica's residuals by parameter name, for a checkpoint of this replica."""
        self._settle()
        feedback = self._exchange.feedback
        return {} if feedback is None else feedback.state_dict("torch")

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores what `state_dict` returned.

        Raises:
            InputError: the state is of another model. Nothing is changed.
        """
        feedback, renamed = self._exchange.feedback, own(state, described(self._members.known))
        if feedback is None and renamed:
            raise InputError("the state has residuals, but feedback is False: use the settings that saved it")
        self._settle()
        if feedback is not None:
            feedback.load_state_dict(renamed)


class _Quorum(Ranks):
    """The replicas of a quorum. torch.distributed does not know their group, and there is none before the
    first step."""

    def _place(self) -> tuple[int, int]:
        return 0, 1

    def place(self, rank: int, world: int) -> None:
        """Sets this replica's number, and the number of replicas."""
        self._placed = (rank, world)

    def _backend(self) -> str:
        group: Any = self.group
        return str(group.getBackendName())
