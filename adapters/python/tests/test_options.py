"""Everything that compresses takes the options of `gcodec.Options` as keywords."""

from __future__ import annotations

import dataclasses
import io
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import optax
import pytest
import torch
from flwr.serverapp.strategy import FedAvg

import gcodec
import gcodec.engines.flower
import gcodec.jax
import gcodec.torch
from gcodec.options import Chosen

TREE = {"w": np.arange(40, dtype="f") - 20, "b": np.arange(5, dtype="f")}
RULES = {"b*": "lossless"}


def written(*arguments: Any, **keywords: Any) -> bytes:
    out = io.BytesIO()
    with gcodec.Writer(out, index=True) as writer:
        writer.write(TREE, "topk", *arguments, **keywords)
    return out.getvalue()


def state(kind: Callable[..., Any]) -> Callable[..., Any]:
    """A trainer's state in a process group of one rank."""

    def make(*arguments: Any, **keywords: Any) -> Any:
        model = torch.nn.Linear(3, 2)
        if kind is gcodec.torch.State:
            return kind(model, "topk", *arguments, **keywords)
        return kind(model, torch.optim.SGD(model.parameters(), 0.1), "topk", *arguments, every=2, **keywords)

    return make


ENTRY_POINTS: dict[str, tuple[Callable[..., Any], str]] = {
    "encode": (lambda *a, **k: gcodec.encode(TREE, "topk", *a, **k), "limits"),
    "Writer.write": (written, "limits"),
    "gcodec.torch.State": (state(gcodec.torch.State), "header"),
    "gcodec.torch.DiLoCo": (state(gcodec.torch.DiLoCo), "order"),
    "gcodec.jax.compress": (lambda *a, **k: gcodec.jax.compress("topk", *a, **k), "header"),
    "gcodec.engines.flower.mod": (lambda *a, **k: gcodec.engines.flower.mod("topk", *a, **k), "base"),
    "gcodec.engines.flower.Compressed": (lambda *a, **k: gcodec.engines.flower.Compressed(FedAvg(), "topk", *a, **k), "feedback"),
}
UNUSED: dict[str, Any] = {
    "limits": gcodec.Limits(),
    "header": gcodec.UpdateHeader(),
    "order": "name",
    "base": TREE,
    "feedback": True,
}


@pytest.fixture(scope="module", autouse=True)
def group() -> typing.Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_every_option_has_a_default() -> None:
    assert typing.get_type_hints(Chosen) == typing.get_type_hints(gcodec.Options)
    assert all(option.default is None for option in dataclasses.fields(Chosen))


@pytest.mark.parametrize("where", ENTRY_POINTS)
def test_every_entry_point_takes_options(where: str) -> None:
    entry, unused = ENTRY_POINTS[where]
    options: gcodec.Options = {"rules": RULES, "non_finite": None}
    values = [entry(**options), entry(rules=RULES)]
    if isinstance(values[0], bytes):
        assert values[0] == values[1] != entry()
    with pytest.raises(gcodec.InputError, match=f"{where} does not use the option {unused}: it uses .*rules"):
        entry(**{unused: UNUSED[unused]})
    with pytest.raises(gcodec.InputError, match="non_finite is 'ignore'"):
        entry(non_finite="ignore")
    with pytest.raises(TypeError, match=r"positional argument"):
        entry(options)
    with pytest.raises(TypeError, match=f"{where}\\(\\) got an unexpected keyword argument 'rule'"):
        entry(rule=RULES)


def test_feedback_belongs_to_the_caller_or_to_the_trainer() -> None:
    with pytest.raises(gcodec.InputError, match=r"feedback of encode is True: give a gcodec\.Feedback"):
        gcodec.encode(TREE, "topk", feedback=True)
    assert gcodec.encode(TREE, "topk", feedback=False) == gcodec.encode(TREE, "topk")
    for trainer in (gcodec.jax.compress, gcodec.engines.flower.mod):
        with pytest.raises(gcodec.InputError, match="holds its own residuals"):
            trainer("topk", feedback=gcodec.Feedback())
    without, with_residuals = (gcodec.jax.compress("topk", feedback=f).init({"w": np.ones(3)}) for f in (False, None))
    assert without.residual == () and with_residuals.residual["w"].shape == (3,)
    assert isinstance(optax.chain(gcodec.jax.compress("topk", feedback=False)), tuple)
    given = gcodec.Feedback()
    made = state(gcodec.torch.State)(feedback=given)
    made._exchange.mean({"weight": torch.arange(200, dtype=torch.float32)}, device=torch.device("cpu"))
    assert given.norm > 0 and made.state_dict()["feedback"].keys() == {"weight"}
    with pytest.raises(gcodec.InputError, match="Dgc holds its own residuals"):
        gcodec.torch.State(torch.nn.Linear(3, 2), gcodec.Dgc(), feedback=given)
