"""State, rules and names that do not belong to the model are refused, and names of wrapped models handled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import network

import gcodec
import gcodec.torch
from gcodec._handshake import check, greeting


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def step(model: torch.nn.Module, state: gcodec.torch.State) -> dict[str, Any]:
    """Takes one step and returns the state after it."""
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, gcodec.torch.hook)
    generator = torch.Generator().manual_seed(1)
    ddp(torch.randn(8, 64, generator=generator)).square().sum().backward()
    return state.state_dict()


SENDERS: dict[str, Callable[[], Any]] = {
    "feedback": lambda: "topk",
    "dgc": lambda: gcodec.Dgc(0.05),
    "scalecom": gcodec.torch.ScaleCom,
}


@pytest.mark.parametrize("kind", SENDERS)
def test_state_of_another_model_is_refused(kind: str) -> None:
    model = network(0)
    state = gcodec.torch.State(model, SENDERS[kind]())
    saved = step(model, state)
    other = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    wrong = gcodec.torch.State(other, SENDERS[kind]())
    with pytest.raises(gcodec.InputError, match=r"another model: it has '2\.(bias|weight)'"):
        wrong.load_state_dict(saved)
    wider = gcodec.torch.State(network(0, hidden=50), SENDERS[kind]())
    with pytest.raises(gcodec.InputError, match=r"'0\.bias' has the shape \(48,\) there and \(50,\) here"):
        wider.load_state_dict(saved)
    assert not any(wrong.state_dict()[kind].values()) or kind == "dgc"
    assert wrong.state_dict()["step"] == 0


def test_residuals_that_the_caller_gives_are_checked() -> None:
    feedback = gcodec.Feedback()
    gcodec.encode({"w": np.arange(300, dtype="f")}, "topk", feedback=feedback)
    with pytest.raises(gcodec.InputError, match="another model: it has 'w'"):
        gcodec.torch.State(network(0), "topk", feedback=feedback)
    dgc = gcodec.Dgc()
    gcodec.encode({"w": np.arange(300, dtype="f")}, dgc)
    with pytest.raises(gcodec.InputError, match="another model: it has 'w'"):
        gcodec.torch.State(network(0), dgc)


def test_state_of_another_rank_is_refused() -> None:
    state = gcodec.torch.State(network(0), "topk")
    saved = state.state_dict()
    for wrong in ({"rank": 1, "world": 2}, {"world": 2}):
        with pytest.raises(gcodec.InputError, match="of 2, and this is rank 0 of 1: save and load one file for each rank"):
            state.load_state_dict({**saved, **wrong})


def test_rules_that_match_nothing_are_refused() -> None:
    model = network(0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(gcodec.InputError, match=r"the rule 'fc\.\*' of gcodec\.torch\.State matches no tensor: there are '0\.weight'"):
        gcodec.torch.State(model, "topk", rules={"*.bias": "raw", "fc.*": "raw"})
    with pytest.raises(gcodec.InputError, match=r"the rule 'fc\.\*' of gcodec\.torch\.DiLoCo matches no tensor"):
        gcodec.torch.DiLoCo(model, sgd, "topk", every=1, rules={"fc.*": "raw"})


def wrapped(how: str) -> torch.nn.Module:
    model = network(0)
    if how == "whole":
        return torch.compile(model, backend="eager")
    if how == "layer":
        model[0] = torch.compile(model[0], backend="eager")
    if how == "in place":
        model.compile(backend="eager")
    if how == "checkpointed":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model[0] = checkpoint_wrapper(model[0])
    return model


@pytest.mark.parametrize("how", ["whole", "layer", "in place", "checkpointed"])
@pytest.mark.parametrize("kind", SENDERS)
def test_wrapped_models_have_the_names_of_plain_ones(how: str, kind: str) -> None:
    plain = step(model := network(0), gcodec.torch.State(model, SENDERS[kind]()))
    model = wrapped(how)
    state = gcodec.torch.State(model, SENDERS[kind](), rules={} if kind != "feedback" else {"0.bias": "lossless", "2.*": "topk"})
    names = step(model, state)[kind]
    names = names["tensors"] if kind == "dgc" else names
    expected = plain[kind]["tensors"] if kind == "dgc" else plain[kind]
    assert set(names) == set(expected) - ({"0.bias"} if kind == "feedback" else set())
    state.load_state_dict(plain)
    # And a state that was saved by the names of a wrapper.
    old = {name.replace("0.", "0._orig_mod."): tensor for name, tensor in expected.items()}
    state.load_state_dict({**plain, kind: {**plain[kind], "tensors": old} if kind == "dgc" else old})
    loaded = state.state_dict()[kind]
    assert set(loaded["tensors"] if kind == "dgc" else loaded) == set(expected)


def test_a_compiled_distributed_model_is_the_model() -> None:
    ddp = torch.compile(DistributedDataParallel(network(0)), backend="eager")
    assert list(gcodec.torch.State(ddp, "topk")._members.known) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_ranks_with_other_versions_of_the_package_are_named() -> None:
    def message(**settings: object) -> bytes:
        return greeting({"w": ("float32", (3,))}, **{"world": 3, "codec": "topk", **settings})

    usual = message()
    check([usual, usual, usual])
    for there, said in {
        message(version="0.9"): "rank 1 cannot train with rank 0: the version of gcodec is 0.9 on rank 1 and ",
        message(world=4): "rank 1 cannot train with rank 0: the number of processes is 4 on rank 1 and 3 on rank 0",
        b"Z\x05": "rank 1 does not begin as this version of gcodec does: use one version on all of them",
    }.items():
        with pytest.raises(gcodec.InputError) as error:
            check([usual, there, usual])
        assert str(error.value).startswith(said)


def test_schedules_and_choices_are_checked() -> None:
    for stages in ({}, {1: "raw"}, {0: "raw", -3: "topk"}):
        with pytest.raises(gcodec.InputError, match="use whole numbers, the first of them 0"):
            gcodec.torch.Schedule(stages)  # type: ignore[arg-type]
    with pytest.raises(gcodec.InputError, match="a schedule has a Dgc: use codecs, ScaleCom and SharedSet"):
        gcodec.torch.Schedule({0: "raw", 9: gcodec.Dgc()})  # type: ignore[dict-item]
    with pytest.raises(gcodec.InputError, match="deltas have no mean"):
        gcodec.torch.State(network(0), gcodec.torch.Schedule({0: "raw", 9: "delta"}))
    for settings, message in (
        ({"chunk": 0}, "chunk of ScaleCom is 0"), ({"chunk": 5, "k": 3}, "k and chunk"), ({"beta": 0.0}, "beta of ScaleCom is 0.0")
    ):  # fmt: skip
        with pytest.raises(gcodec.InputError, match=message):
            gcodec.torch.ScaleCom(**settings)
    with pytest.raises(gcodec.InputError, match="feedback cannot be False"):
        gcodec.torch.State(network(0), gcodec.torch.ScaleCom(), feedback=False)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(gcodec.InputError, match="Dgc clips for 4 workers, and the group has 1: set workers=1"):
        gcodec.torch.State(network(0), gcodec.Dgc(clip=1.0, workers=4))
    with pytest.raises(gcodec.InputError, match="Dgc takes no rules"):
        gcodec.torch.State(network(0), gcodec.Dgc(), rules={"*.bias": "raw"})
    model = network(0)
    with pytest.raises(gcodec.InputError, match="DiLoCo cannot skip an exchange"):
        gcodec.torch.DiLoCo(model, torch.optim.SGD(model.parameters()), "topk", every=1, non_finite="propagate")
    with pytest.raises(gcodec.InputError, match="encode has no other processes to tell"):
        gcodec.encode({}, "topk", non_finite="propagate")
