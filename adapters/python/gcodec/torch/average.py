"""The mean of gradients over ranks, computed when a trainer calls it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist

from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.feedback import Dgc
from gcodec.options import Options, resolve
from gcodec.torch.exchange import USED, Exchange
from gcodec.torch.finite import NotFinite
from gcodec.torch.lgc import Lgc
from gcodec.torch.members import Members
from gcodec.torch.names import described, some, trainable
from gcodec.torch.ranks import Profile
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.scaling import is_scaled, scale_of
from gcodec.torch.schedule import Schedule
from gcodec.torch.sets import SharedSet


class Average:
    """Averages the gradients of a model over all ranks, compressed, at each call.

    It is for trainers that can leave the reduction of gradients to a function: DeepSpeed's `no_sync`,
    Megatron-core's `finalize_model_grads_func`, or your own loop.

        average = gcodec.torch.Average(model, gcodec.TopK(density=0.01))
        loss.backward()
        average()
        optimizer.step()

    A rank whose gradient of a parameter is None or zero everywhere sends nothing of that parameter and keeps
    its residual. All ranks get a gradient of every parameter of which a rank has one; those of the others
    stay None. So parameters may be frozen later, and frozen ones may become trainable, on all ranks in the
    same step.

    Args:
        model, codec, options, scaler, group, profile: as in `State`.

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
        chosen = resolve("gcodec.torch.Average", USED, options)
        chosen = replace(chosen, non_finite=chosen.non_finite or "propagate")
        self._members = Members(model)
        self._exchange = Exchange("gcodec.torch.Average", codec, chosen, described(self._members.known), group, profile)
        self.scaler = scaler
        """The scaler of the loss."""

    @property
    def profile(self) -> Profile:
        """Times and traffic so far."""
        return self._exchange.profile

    def __call__(self, gradients: Mapping[str, torch.Tensor] | None = None) -> None:
        """Replaces gradients by their means over all ranks. All ranks call it together.

        Args:
            gradients: one tensor for each trainable parameter, by its name, with its shape and type; changed
                in place. Default: None, the `grad` of each parameter.

        Raises:
            InputError: a gradient is missing or does not fit, or a rank cannot compress. All ranks raise;
                their gradients are then NaN and their residuals unchanged.
        """
        scale = scale_of(self.scaler)
        self._exchange.is_scaled = is_scaled(self.scaler)
        error: Exception | None = None
        members, taken = self._members, {}
        try:
            self._join()
            taken = gradients_of(members.known) if gradients is None else _checked(gradients, members.known)
        except Exception as e:
            # The other ranks wait for this one.
            error = e
        device = next((parameter.device for parameter in members.known.values()), torch.device("cpu"))
        average(self._exchange, taken, device=device, scale=scale, error=error, parameters=members.known, assign=gradients is None)

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

    def _join(self) -> None:
        """Takes in parameters that have become trainable."""
        if self._members.join():
            self._exchange.extend(described(self._members.known))


def average(
    exchange: Exchange,
    gradients: dict[str, torch.Tensor],
    *,
    device: torch.device,
    held: Collection[str] | None = None,
    scale: float = 1.0,
    error: Exception | None = None,
    parameters: Mapping[str, torch.nn.Parameter] | None = None,
    assign: bool = True,
    silent: bool = False,
    provisional: bool = False,
) -> None:
    """Replaces gradients by their means over all ranks, or by NaN if there are none.

    Args:
        device, scale, error, provisional: as in `Exchange.mean`.
        held: names of the gradients that are zero everywhere, where they are known.
        parameters: all parameters that ranks exchange, if gradients of some may be missing. A gradient that
            another rank has is added. Default: None, no gradient is missing.
        assign: whether added gradients also become those of their parameters.
        silent: whether this rank sends nothing. It also sends no gradient that is zero everywhere.
    """

    with nan_unless_exchanged(gradients):
        every = gradients
        if parameters is not None:
            every = _completed(exchange, gradients, parameters, device, assign)
        if silent:
            held = every
        elif held is None:
            try:
                held = unused(every)
            except Exception as e:
                held, error = (), error or e
        means = exchange.mean(dict(every), device=device, held=held, scale=scale, error=error, provisional=provisional)
        for name, gradient in gradients.items():
            gradient.copy_(means[name])


def _completed(
    exchange: Exchange,
    gradients: dict[str, torch.Tensor],
    parameters: Mapping[str, torch.nn.Parameter],
    device: torch.device,
    assign: bool,
) -> dict[str, torch.Tensor]:
    """Returns a gradient of each parameter, zero where this rank has none. Those that another rank has are
    added to `gradients`."""
    somewhere = exchange.somewhere([name in gradients for name in parameters], device)
    every = {}
    for (name, parameter), is_somewhere in zip(parameters.items(), somewhere, strict=True):
        gradient = gradients.get(name)
        if gradient is None:
            gradient = torch.zeros_like(parameter, requires_grad=False)
            if is_somewhere:
                gradients[name] = gradient
                if assign:
                    parameter.grad = gradient
        every[name] = gradient
    return every


@contextmanager
def nan_unless_exchanged(gradients: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Within it, gradients are replaced by their means. If that fails, they become NaN. Only NotFinite ends
    here."""
    try:
        yield
    except BaseException as e:
        for gradient in gradients.values():
            gradient.fill_(complex("nan+nanj") if gradient.is_complex() else float("nan"))
        if not isinstance(e, NotFinite):
            raise


def gradients_of(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Returns the gradients of parameters by name, but no None and none of a frozen parameter.

    Raises:
        InputError: a gradient is sparse.
    """
    out = {}
    for name, parameter in parameters.items():
        if parameter.grad is None or not parameter.requires_grad:
            continue
        if parameter.grad.layout is not torch.strided:
            raise InputError(sparse(name))
        out[name] = parameter.grad
    return out


def sparse(name: str) -> str:
    """Returns why a sparse gradient is refused."""
    return (
        f"the gradient of {name!r} is sparse: make its layer with sparse=False. gcodec sends only the elements "
        "that its codec keeps anyway"
    )


def unused(gradients: Mapping[str, torch.Tensor], flat: torch.Tensor | None = None) -> list[str]:
    """Returns the names of gradients that are zero everywhere. flat: a buffer on the host that has all of
    them."""
    rest = dict(gradients) if flat is None else _with_first_zero(gradients, flat)
    # On the host, the first elements of most gradients say enough.
    rest = {n: g for n, g in rest.items() if g.device.type != "cpu" or not g.reshape(-1)[:256].any()}
    flags = [gradient.any() for gradient in rest.values()]
    used = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else []
    return [name for name, is_used in zip(rest, used, strict=True) if not is_used]


def _with_first_zero(gradients: Mapping[str, torch.Tensor], flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns all gradients but those whose first element is not zero, which one operation finds."""
    plain = {name: one for name, one in gradients.items() if one.dtype == flat.dtype and one.numel() > 0}
    firsts = torch.tensor([one.storage_offset() for one in plain.values()], dtype=torch.int64) - flat.storage_offset()
    used = {name for name, is_used in zip(plain, flat[firsts].bool().tolist(), strict=True) if is_used}
    return {name: one for name, one in gradients.items() if name not in used}


def _checked(gradients: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Returns given gradients in the order of the parameters."""
    if strange := (set(gradients) - set(parameters)) | (set(trainable(parameters)) - set(gradients)):
        raise InputError(f"the gradients are not those of the model's trainable parameters: {some(sorted(strange))} differ")
    for name, one in gradients.items():
        parameter = parameters[name]
        if one.layout is not torch.strided:
            raise InputError(sparse(name))
        if one.shape != parameter.shape:
            raise InputError(f"the gradient of {name!r} has the shape {tuple(one.shape)}, its parameter {tuple(parameter.shape)}")
        if one.is_complex() != parameter.is_complex():
            raise InputError(f"the gradient of {name!r} is {one.dtype}, its parameter {parameter.dtype}")
    return {name: gradients[name] for name in parameters if name in gradients}
