"""The state that a sender keeps between updates: residuals and momenta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcodec import _native
from gcodec._tensors.dlpack import Framework, convert, given
from gcodec.codecs import Codec, TopK, spec_of
from gcodec.errors import InputError

_DGC = _native.default_dgc()


def _save(native: _native.Feedback | _native.Dgc, framework: Framework | None) -> dict[str, Any]:
    return {name: convert(tensor, framework) for name, tensor in native.save()}


class Feedback:
    """Error feedback: the residual of a lossy codec is added to the next update.

    It holds one residual for each tensor, by name, in f32. A call that fails leaves it unchanged. Threads may
    share it. Each sender needs its own.
    """

    def __init__(self) -> None:
        self._native = _native.Feedback()

    @property
    def norm(self) -> float:
        """The Euclidean norm over all residuals."""
        return self._native.norm()

    def reset(self) -> None:
        """Drops all residuals."""
        self._native.reset()

    def state_dict(self, framework: Framework | None = None) -> dict[str, Any]:
        """Returns the residuals by name, for a checkpoint, with the codecs' own state (SIDCo, PowerSGD)."""
        return _save(self._native, framework)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self._native.load(given(dict(state)))

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._native = _native.Feedback()
        self.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Feedback(norm={self.norm:.6g})"


class _DgcSettings:
    """The attributes of a `Dgc` that the native module reads."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)


class Dgc:
    """Deep Gradient Compression (arXiv 1712.01887): top-k with momentum correction, clipping and warm-up.

    Pass it in place of a codec: `encode(gradients, dgc)`, `writer.write(gradients, dgc)`. Each such call is
    one step.
    Tensors are f32 gradients, before the learning rate is applied.

    Args:
        density: share of each tensor's elements to send after the warm-up, more than 0, at most 1. Default:
            0.001.
        warm_up: densities of the warm-up's stages. Default: 0.25, 0.063, 0.015, 0.004.
        warm_up_steps: steps in each stage; 0 is no warm-up. Default: 0.
        momentum: at least 0, less than 1. Default: 0.9.
        clip: largest norm of the gradients of all workers together, or None. Default: None.
        workers: number of workers, for clipping, at least 1. Default: 1.
        values, positions: as in `TopK`.
    """

    def __init__(
        self,
        density: float = _DGC["density"],
        *,
        warm_up: tuple[float, ...] = tuple(_DGC["warm_up"]),
        warm_up_steps: int = _DGC["warm_up_steps"],
        momentum: float = _DGC["momentum"],
        clip: float | None = _DGC["clip"],
        workers: int = _DGC["workers"],
        values: str = "f32",
        positions: str = "auto",
    ) -> None:
        self._settings = _DgcSettings(
            density=density,
            warm_up=list(warm_up),
            warm_up_steps=warm_up_steps,
            momentum=momentum,
            clip=clip,
            workers=workers,
            codec=spec_of(TopK(values=values, positions=positions)),
        )
        self._native = _native.Dgc(self._settings)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, apart from the state."""
        return dict(self._settings.__dict__)

    @property
    def spec(self) -> str:
        """Specification of the codec for the next step."""
        return self._native.codec()

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self._native.steps()

    @property
    def norm(self) -> float:
        """The Euclidean norm over all residuals."""
        return self._native.norm()

    def state_dict(self, framework: Framework | None = None) -> dict[str, Any]:
        """Returns `steps`, and under `tensors` the residuals and momenta by name, for a checkpoint."""
        return {"steps": self.steps, "tensors": _save(self._native, framework)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned. The settings of this object stay."""
        self._native.load(self._settings, state["steps"], given(dict(state["tensors"])))

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, **self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._settings = _DgcSettings(**state["settings"])
        self._native = _native.Dgc(self._settings)
        self.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Dgc(steps={self.steps}, next={self.spec!r})"


def split(codec: Codec | str | Dgc, feedback: Feedback | None) -> tuple[Codec | str, Any, Any]:
    """Returns the codec, the native feedback and the native Dgc; at most one of the latter is not None."""
    if isinstance(codec, Dgc):
        if feedback is not None:
            raise InputError("Deep Gradient Compression holds its own residuals: it takes no feedback")
        return codec.spec, None, codec._native
    return codec, None if feedback is None else feedback._native, None
