"""The communication hook of DistributedDataParallel, and its state."""

# DistributedDataParallel reads the hook's annotations, which therefore are not strings.

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist

from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.feedback import Dgc
from gcodec.options import Options, resolve
from gcodec.torch.average import average, nan_unless_exchanged, sparse, unused
from gcodec.torch.backward import raise_after_backward
from gcodec.torch.buckets import Buckets, Contents
from gcodec.torch.exchange import USED, Exchange, Started
from gcodec.torch.lgc import Lgc
from gcodec.torch.members import Members
from gcodec.torch.names import described
from gcodec.torch.ranks import Profile
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.scaling import is_scaled, scale_of
from gcodec.torch.schedule import Schedule
from gcodec.torch.sets import SharedSet


class State:
    """The state of `hook` for a model: the codec, the residuals by parameter name, and a profile.

    Each bucket is compressed as soon as its gradients are ready, and travels while the backward pass goes
    on. Its step ends, and residuals change, when the last bucket has arrived. Codecs that need all gradients
    of a step send one update when the last bucket is ready: those with `scope="global"`, `Dgc`, and those
    with sets. So do gradients on a GPU. The arrangement of buckets changes no choice of elements, only random
    draws.

    If a rank's gradient of a parameter is zero everywhere, the rank sends nothing of that parameter and keeps
    its residual: DistributedDataParallel drops the mean of a parameter that no rank used in a step.

    Save `state_dict()` in a checkpoint. The object can also be pickled and copied, as part of a
    DistributedDataParallel model, which holds it; register the hook again afterwards. A copy belongs to the
    copied parameters, and has no `scaler`.

    Args:
        model: the model, with or without DistributedDataParallel or `torch.compile` around it.
        codec: any codec but `Delta`; or a `Dgc` of this rank; or a `ScaleCom`, a `SharedSet` or a
            `gcodec.torch.Lgc`; or a `Schedule`. Codecs that round or draw at random do so independently at
            each step and rank.
        options: see `gcodec.Options`. Used: rules (each must match a parameter; beside a codec with sets,
            for the parameters that it leaves out), feedback (True, False, or a `Feedback` to use; default
            True; `Dgc`, `ScaleCom`, `SharedSet` and `Lgc` hold their own residuals), non_finite (on `reject`
            all ranks raise; default `propagate`), limits (on the streams of other ranks).
        scaler: the `GradScaler` of the loss. Residuals are then kept without its scale, which changes from
            step to step. Default: None, no loss scaling.
        group: the process group. Default: None, the default group.
        profile: number of steps between prints of the profile, on rank 0, to standard error. Default: 0,
            never.

    Raises:
        InputError: an option, a codec, a rule or residuals do not fit the model or the group.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        codec: Codec | str | Dgc | ScaleCom | SharedSet | Lgc | Schedule,
        *,
        scaler: torch.amp.GradScaler | None = None,
        group: dist.ProcessGroup | None = None,
        profile: int = 0,
        **options: Unpack[Options],
    ) -> None:
        chosen = resolve("gcodec.torch.State", USED, options)
        chosen = replace(chosen, non_finite=chosen.non_finite or "propagate")
        members = Members(model)
        self._exchange = Exchange("gcodec.torch.State", codec, chosen, described(members.known), group, profile)
        self.scaler = scaler
        """The scaler of the loss."""
        self._watch(members)

    @property
    def profile(self) -> Profile:
        """Times and traffic so far."""
        return self._exchange.profile

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals and step, for its part of a checkpoint."""
        return self._exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Restores what `state_dict` returned on this rank.

        strict: False drops residuals of parameters that the model has not or in another shape, and takes
        those of another rank or number of ranks. Without its model, `Lgc` then begins its training again.

        Raises:
            InputError: the state is of another codec, or, if strict, of another model, rank or number of
                ranks. Nothing is changed.
        """
        self._join()
        self._exchange.load_state_dict(state, strict=strict)

    def __getstate__(self) -> dict[str, Any]:
        return {"exchange": self._exchange, "members": self._members}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._exchange, self.scaler = state["exchange"], None
        self._watch(state["members"])

    def _watch(self, members: Members) -> None:
        self._members = members
        self._number()
        self._forget()

    def _join(self) -> None:
        """Takes in parameters that have become trainable."""
        if self._members.join():
            self._exchange.extend(described(self._members.known))
            self._number()

    def _number(self) -> None:
        known = self._members.known
        self._order = {id(parameter): (i, name) for i, (name, parameter) in enumerate(known.items())}
        self._buckets = Buckets(self._order)

    def _forget(self) -> None:
        """Begins a step."""
        self._waiting: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = []
        self._gradients: dict[str, torch.Tensor] = {}
        # Gradients that are zero everywhere; None on a GPU, for which they are found together.
        self._held: list[str] | None = None
        self._parts: list[Started] = []
        self._error: Exception | None = None
        self._failed: BaseException | None = None

    def _take(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if bucket.index() == 0:
            self._begin(buffer.device)
        devices = [buffer.device] if buffer.device.type != "cpu" else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._waiting.append((future, buffer))
        error: Exception | None = None
        gradients: dict[str, torch.Tensor] = {}
        held: list[str] = []
        flat = None
        try:
            contents = self._contents(bucket, buffer)
            gradients, flat = contents.gradients, contents.flat
            if self._held is not None:
                held = unused(gradients, contents.buffer)
                self._held += held
        except Exception as e:
            # The other ranks wait for this one.
            error = e
        self._gradients |= gradients
        self._error = self._error or error
        if self._divides and self._failed is None:
            try:
                which = (bucket.index(), sum(parameter.numel() for parameter in bucket.parameters()))
                started = self._exchange.start(
                    which, gradients, device=buffer.device, held=held, scale=self._scale, error=error, flat=flat
                )
                self._parts.append(started)
            except BaseException as e:
                # All ranks raise here, and start none of the other parts.
                self._failed = e
        if bucket.is_last():
            try:
                self._exchange_all(buffer.device)
            except BaseException as e:
                raise_after_backward(e)
            waiting = self._waiting
            self._forget()
            for other, filled in waiting:
                other.set_result(filled)
        return future

    def _begin(self, device: torch.device) -> None:
        """Begins a step at its first bucket."""
        if self._parts:
            # An earlier backward pass failed after some of its buckets.
            self._exchange.undo()
        self._forget()
        on_host = device.type == "cpu"
        self._held = [] if on_host else None
        self._divides = on_host and self._exchange.divides
        self._scale = scale_of(self.scaler)
        self._exchange.is_scaled = is_scaled(self.scaler)

    def _contents(self, bucket: dist.GradBucket, buffer: torch.Tensor) -> Contents:
        """Returns the gradients of a bucket by name, in the order of the model."""
        parameters = bucket.parameters()
        if any(id(parameter) not in self._order for parameter in parameters):
            # They became trainable after this object was made, and before DistributedDataParallel was.
            self._join()
        if any(id(parameter) not in self._order for parameter in parameters):
            raise InputError(
                "a parameter of DistributedDataParallel is not in the model given to State: give it this model, and make State "
                "again after parameters of the model are added or replaced"
            )
        if buffer.layout is not torch.strided:
            raise InputError(sparse(self._order[id(parameters[0])][1]))
        return self._buckets.contents(bucket)

    def _exchange_all(self, device: torch.device) -> None:
        """Replaces the gradients of the step by their means, or by NaN if there are none."""
        if self._divides:
            with nan_unless_exchanged(self._gradients):
                for name, mean in self._finished().items():
                    self._gradients[name].copy_(mean)
        else:
            gradients = {name: self._gradients[name] for name in self._members.known if name in self._gradients}
            average(self._exchange, gradients, device=device, held=self._held, scale=self._scale, error=self._error)

    def _finished(self) -> dict[str, torch.Tensor]:
        """Ends the step, and returns the means that are not in their buckets."""
        if self._failed is not None:
            self._exchange.undo()
            raise self._failed
        return self._exchange.finish(self._parts)


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook for DistributedDataParallel:
    `ddp.register_comm_hook(state, gcodec.torch.hook)`."""
    return state._take(bucket)
