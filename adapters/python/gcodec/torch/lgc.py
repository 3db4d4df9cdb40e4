"""Learned Gradient Compression (arXiv 2103.08870) in the hook of DistributedDataParallel.

    state = gcodec.torch.State(model, gcodec.torch.Lgc(density=0.01, full_steps=200, top_k_steps=300))
    ddp.register_comm_hook(state, gcodec.torch.hook)

Ranks exchange in three phases: dense gradients; then every rank's values on a set of positions, which the
ranks choose in turn; then codes of the choosing rank's values, and each rank's largest values. The first rank
trains the autoencoder in the second phase, on the values that all ranks sent, and gives its model to the
others.
`state.state_dict()["model"]` has the bytes of the model from the third phase on, one byte before; `gcodec
inspect` describes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gcodec.codecs import TopK, spec_of
from gcodec.errors import InputError

__all__ = ["Lgc"]


@dataclass(frozen=True)
class Lgc:
    """Settings of the learned codec, for `gcodec.torch.State`, `Average` and `DiLoCo` in place of a codec.

    Gradients of other types than f32 are converted to f32. A checkpoint has residuals and model; before the
    third phase, that of the first rank also has the state of the training: networks, moments, and all values
    of the second phase so far, which take 4 `density` `top_k_steps` bytes for each parameter and rank.

    Attributes:
        density, k: number of elements on the set, for each tensor, as in `TopK`.
        full_steps: exchanges of the first phase.
        top_k_steps: exchanges of the second phase, at least 1.
        iterations: steps of the autoencoder's optimizer in the whole second phase.
        innovation: share of the values on the set that each rank sends exactly, 0 to 1.
        feedback: whether the error of the decoded values stays in the residuals. The paper drops it.
        momentum: momentum correction, 0 to less than 1: ranks accumulate velocities, as in `Dgc`. The
            optimizer then has no momentum of its own.
        width: channels of the encoder's first layer, 1 to 1024; 64 in the paper.
        lambda_sim: weight of the distance between the codes of ranks in the loss; 0.5 in the paper.
        paper_layers: whether the first layer is sent dense and the largest elements of the last one as they
            are, as in the paper; else all layers are learned.
        seed: seed of the first weights and of the batches.
    """

    density: float | None = 0.01
    k: int | None = field(default=None, kw_only=True)
    full_steps: int = field(default=200, kw_only=True)
    top_k_steps: int = field(default=300, kw_only=True)
    iterations: int = field(default=1000, kw_only=True)
    innovation: float = field(default=0.1, kw_only=True)
    feedback: bool = field(default=True, kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)
    width: int = field(default=16, kw_only=True)
    lambda_sim: float = field(default=0.0, kw_only=True)
    paper_layers: bool = field(default=False, kw_only=True)
    seed: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum of Lgc is {self.momentum}: use at least 0, less than 1")
        if not 0 <= self.innovation <= 1:
            raise InputError(f"innovation of Lgc is {self.innovation}: use 0 to 1")
        if not 1 <= self.width <= 1024:
            raise InputError(f"width of Lgc is {self.width}: use 1 to 1024")
        if not (0 <= self.lambda_sim < float("inf")):
            raise InputError(f"lambda_sim of Lgc is {self.lambda_sim}: use a finite number, at least 0")
        for name, least in (("full_steps", 0), ("top_k_steps", 1), ("iterations", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} of Lgc is {getattr(self, name)}: use at least {least}")
        _ = self.spec

    @property
    def spec(self) -> str:
        """Specification of the top-k codec that makes the choice."""
        return spec_of(TopK(self.density, k=self.k))

    @property
    def learned_from(self) -> int:
        """First exchange of the third phase."""
        return self.full_steps + self.top_k_steps
