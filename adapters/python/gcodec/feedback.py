"""What a sender remembers from one update to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcodec import _native
from gcodec.codecs import Codec, TopK, spec_of
from gcodec.errors import InputError
from gcodec.tensors import Framework, convert, given

_DGC = _native.default_dgc()


def _save(native: _native.Feedback | _native.Dgc, framework: Framework | None) -> dict[str, Any]:
    return {name: convert(tensor, framework) for name, tensor in native.save()}


class Feedback:
    """Error feedback: what a lossy codec left out of an update is added to the next.

    It holds one residual for each tensor, by name, in 32-bit floats. A call that fails leaves it as it was. It may be used from
    several threads; each sender has its own.
    """

    def __init__(self) -> None:
        self._native = _native.Feedback()

    @property
    def norm(self) -> float:
        """The Euclidean norm of all residuals together."""
        return self._native.norm()

    def reset(self) -> None:
        """Forgets everything."""
        self._native.reset()

    def state_dict(self, framework: Framework | None = None) -> dict[str, Any]:
        """The residuals by name, for a checkpoint; beside them what SIDCo's rule `stages=authors` remembers."""
        return _save(self._native, framework)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the residuals that `state_dict` gave."""
        self._native.load(given(dict(state)))

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._native = _native.Feedback()
        self.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Feedback(norm={self.norm:.6g})"


class _DgcSettings:
    """What the native module reads of a `Dgc`."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)


class Dgc:
    """Deep Gradient Compression (arXiv 1712.01887): top-k with momentum correction, masking, clipping and warm-up.

    It takes the place of a codec: `encode(gradients, dgc)`, `writer.write(gradients, dgc)`; each such call is one step. Its
    tensors are gradients in f32, not multiplied by a learning rate.

    Args:
        density: the part of each tensor that is sent after the warm-up.
        warm_up: the densities of the warm-up's stages.
        warm_up_steps: steps of each stage; 0 is no warm-up.
        momentum: at least 0, less than 1.
        clip: the largest norm of the gradients of all workers together, or None.
        workers: how many there are, for clipping.
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
    def spec(self) -> str:
        """The codec of the next step."""
        return self._native.codec()

    @property
    def steps(self) -> int:
        """The steps that were made."""
        return self._native.steps()

    @property
    def norm(self) -> float:
        """The Euclidean norm of all residuals together."""
        return self._native.norm()

    def state_dict(self, framework: Framework | None = None) -> dict[str, Any]:
        """`steps`, and under `tensors` the residuals and momenta by name, for a checkpoint."""
        return {"steps": self.steps, "tensors": _save(self._native, framework)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the state that `state_dict` gave; the settings stay this object's."""
        self._native.load(self._settings, state["steps"], given(dict(state["tensors"])))

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings.__dict__, **self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._settings = _DgcSettings(**state["settings"])
        self._native = _native.Dgc(self._settings)
        self.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Dgc(steps={self.steps}, next={self.spec!r})"


def split(codec: Codec | str | Dgc, feedback: Feedback | None) -> tuple[Codec | str, Any, Any]:
    """A codec, and what remembers: the native feedback or the native Dgc."""
    if isinstance(codec, Dgc):
        if feedback is not None:
            raise InputError("Deep Gradient Compression has its own residuals: it takes no feedback")
        return codec.spec, None, codec._native
    return codec, None if feedback is None else feedback._native, None
