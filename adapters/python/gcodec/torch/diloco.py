"""DiLoCo: exchanges of pseudo-gradients after a number of local steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
import torch.distributed as dist

from gcodec._tensors.dlpack import local
from gcodec.codecs import Codec
from gcodec.errors import InputError
from gcodec.feedback import Dgc
from gcodec.options import Options, resolve
from gcodec.shards import is_dtensor, like_dtensor
from gcodec.torch.exchange import USED, Exchange
from gcodec.torch.index_sets import SETS
from gcodec.torch.lgc import Lgc
from gcodec.torch.members import Members
from gcodec.torch.names import described, plain, some
from gcodec.torch.ranks import Profile
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.schedule import Schedule
from gcodec.torch.sets import SharedSet


class DiLoCo:
    """Exchanges pseudo-gradients after a number of local steps (DiLoCo, arXiv 2311.08105, algorithm 1).

    Each rank trains alone with an inner optimizer. The pseudo-gradient of a rank is its parameters at the
    last exchange minus its parameters now. At every `every`-th `step()` the pseudo-gradients are compressed
    and exchanged, and the outer optimizer applies their mean to the parameters of the last exchange. All
    ranks then have the same parameters. Buffers, such as running means, are not exchanged.

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        diloco = gcodec.torch.DiLoCo(model, outer, gcodec.Chunked(), every=50)
        for batch in data:
            ...; inner.step(); diloco.step()

    The model is not in DistributedDataParallel. All ranks must start with the same parameters.

    Parameters that are frozen later keep their values and get no gradient. Frozen ones that become trainable
    take part from the next exchange on, which begins with their mean over the ranks.

    If `fully_shard` has divided each replica of the model among several ranks, a rank exchanges its own
    parts: `group` has the ranks that hold the same parts of the other replicas.

    Args:
        model: the model.
        outer: a PyTorch optimizer over the model's parameters.
        codec, options, group, profile: as in `State`.
        every: inner steps between exchanges, at least 1.
        mask: the inner optimizer. Its momentum becomes zero in every element that this rank sends in an
            exchange (momentum masking, as in arXiv 1805.08768, algorithm 1, and 1712.01887, section 3.3).
            With `Sbc` as codec and plain SGD with the learning rate 1 as outer optimizer, this is Sparse
            Binary Compression with a delay of `every` steps. Default: None, no masking.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        outer: torch.optim.Optimizer,
        codec: Codec | str | Dgc | ScaleCom | SharedSet | Lgc | Schedule,
        *,
        every: int,
        mask: torch.optim.Optimizer | None = None,
        group: dist.ProcessGroup | None = None,
        profile: int = 0,
        **options: Unpack[Options],
    ) -> None:
        if every < 1:
            raise InputError(f"every of DiLoCo is {every}: use at least 1")
        chosen = resolve("gcodec.torch.DiLoCo", USED, options)
        if chosen.non_finite == "propagate":
            raise InputError("DiLoCo cannot skip an exchange: non_finite is reject or zero")
        self._members, self._outer, self._every = Members(model), outer, every
        self._exchange = Exchange("gcodec.torch.DiLoCo", codec, chosen, described(self._parameters), group, profile)
        self._check_outer()
        mine = {id(p) for p in self._parameters.values()}
        if not mine >= {id(p) for settings in outer.param_groups for p in settings["params"] if p.requires_grad}:
            raise InputError("the outer optimizer has a trainable parameter that is not in the model: give both the same model")
        if mask is not None and isinstance(codec, (Dgc, *SETS, Schedule)):
            raise InputError(f"mask needs a codec that sends elements of its own choice in frames, which {type(codec).__name__} does not")
        self._mask = mask
        self._anchor = self._now()
        self._inner = 0

    @property
    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return self._members.known

    def _check_outer(self) -> None:
        outer = {id(p) for settings in self._outer.param_groups for p in settings["params"]}
        missing = [name for name, p in self._parameters.items() if id(p) not in outer]
        if missing:
            raise InputError(f"the outer optimizer lacks the trainable {some(missing)}: give it all trainable parameters of the model")

    def _join(self) -> None:
        """Takes in parameters that have become trainable."""
        if self._members.join():
            self._exchange.extend(described(self._parameters))

    def _now(self) -> dict[str, torch.Tensor]:
        return {name: local(p).detach().clone() for name, p in self._parameters.items()}

    @property
    def profile(self) -> Profile:
        """Times and traffic so far."""
        return self._exchange.profile

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> bool:
        """Counts a step of the inner optimizer, and exchanges after every `every`-th. Returns whether it
        exchanged.

        An exchange sets the gradients to None. If it raises, the parameters are those of the inner optimizer.
        """
        self._inner += 1
        if self._inner < self._every:
            return False
        try:
            means, first = self._exchanged()
        except BaseException:
            self._inner -= 1
            raise
        for name, p in self._parameters.items():
            local(p).copy_(first[name] if name in first else self._anchor[name])
            p.grad = None
            if name in means:
                mean = means[name].to(p.device, p.dtype)
                p.grad = like_dtensor(mean, p.detach()) if is_dtensor(p) else mean
        with torch.enable_grad():
            self._outer.step()
        self._outer.zero_grad(set_to_none=True)
        self._mask_momenta()
        self._anchor, self._inner = self._now(), 0
        return True

    def _exchanged(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Returns the mean pseudo-gradients, without those of frozen parameters, and the values of parameters
        that begin to take part: their means."""
        pseudo: dict[str, torch.Tensor] = {}
        moves: dict[str, bool] = {}
        error: Exception | None = None
        try:
            self._join()
            self._check_outer()
            for name, p in self._parameters.items():
                now = local(p).detach()
                pseudo[name] = self._anchor[name] - now if name in self._anchor else torch.zeros_like(now)
                moves[name] = name in self._anchor and (p.requires_grad or bool(pseudo[name].any()))
        except Exception as e:
            # The other ranks wait for this one.
            error = e
        device = next((p.device for p in self._parameters.values()), torch.device("cpu"))
        anywhere = self._exchange.somewhere([moves.get(name, False) for name in self._parameters], device)
        held = [name for name, moved in moves.items() if not moved]
        # They trained alone since they became trainable, and have no values of the last exchange.
        fresh = [name for name in self._parameters if name not in self._anchor]
        first = {name: self._exchange.plain_mean(local(self._parameters[name]).detach()) for name in fresh}
        means = self._exchange.mean(pseudo, device=device, inner_steps=self._inner, held=held, error=error)
        return {name: means[name] for name, moved in zip(self._parameters, anywhere, strict=True) if moved}, first

    def _mask_momenta(self) -> None:
        """Clears the inner optimizer's momentum where this rank's update has elements."""
        if self._mask is None:
            return
        for name, sent in self._exchange.sent().items():
            state = self._mask.state.get(self._parameters[name], {})
            for key in ("momentum_buffer", "exp_avg"):
                if isinstance(momentum := local(state.get(key)), torch.Tensor):
                    momentum[sent.to(momentum.device) != 0] = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's part of a checkpoint, without the states of the model and of the optimizers."""
        return {"exchange": self._exchange.state_dict(), "anchor": dict(self._anchor), "inner": self._inner}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Restores what `state_dict` returned on this rank. strict: as in `State`."""
        self._join()
        anchor = {plain(name): tensor for name, tensor in state["anchor"].items()}
        wrong = {n for n, p in self._parameters.items() if n not in anchor or anchor[n].shape != local(p).shape}
        if strict and (wrong := wrong | (set(anchor) - set(self._parameters))):
            raise InputError(
                f"the state is of another model: {some(sorted(wrong))} differ. load_state_dict(state, strict=False) drops what does not fit"
            )
        self._exchange.load_state_dict(state["exchange"], strict=strict)
        parameters = self._parameters.items()
        self._anchor = {name: anchor[name].to(p.device, copy=True) for name, p in parameters if name not in wrong}
        self._inner = int(state["inner"])
