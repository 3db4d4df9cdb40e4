"""Codecs have the names, settings and defaults of the library."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import gcodec
import gcodec.torch
from gcodec import _native
from gcodec.codecs import numbered


def settings(codec: type[gcodec.Codec]) -> dict[str, object]:
    return {f.name: f.default for f in dataclasses.fields(codec)}


def complaint(spec: str) -> str:
    with pytest.raises(gcodec.InputError) as error:
        _native.canonical(spec)
    return str(error.value)


def test_the_names_are_the_librarys() -> None:
    names = complaint("no-such-codec").partition("one of ")[2].split(", ")
    assert [codec.name for codec in gcodec.CODECS] == names
    assert all(getattr(gcodec, codec.__name__) is codec for codec in gcodec.CODECS)


@pytest.mark.parametrize("codec", gcodec.CODECS)
def test_settings_and_defaults_are_the_librarys(codec: type[gcodec.Codec]) -> None:
    allowed = complaint(f"{codec.name}:no-such-key=1").partition("allowed are ")[2]
    assert set(settings(codec)) == (set() if allowed == "none" else set(allowed.split(", ")))
    assert str(codec()) == _native.canonical(codec.name)
    # An explicit default equals an omitted setting.
    for key, value in settings(codec).items():
        if value is not None:
            assert _native.canonical(f"{codec.name}:{key}={value}") == _native.canonical(codec.name), key


@pytest.mark.parametrize("codec", gcodec.CODECS)
def test_codecs_are_values(codec: type[gcodec.Codec]) -> None:
    one = codec()
    assert one == codec() and hash(one) == hash(codec()) and one != gcodec.TopK(k=77)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.seed = 3  # type: ignore[attr-defined]
    assert eval(repr(one), vars(gcodec)) == one


def test_settings_reach_the_library() -> None:
    for codec, spec in [
        (gcodec.TopK(density=0.5, values="bf16"), "topk:density=0.5,values=bf16"),
        (gcodec.TopK(k=5, scope="global", seed=9, positions="rice"), "topk:k=5,values=f32,scope=global,seed=9,positions=rice"),
        (gcodec.Sidco(1e-5, stages=3), "sidco:density=0.00001,fit=gp,stages=3,values=f32"),
        (gcodec.TernGrad(clip=float("inf")), "terngrad:clip=inf,bucket=4096"),
        (gcodec.Natural(seed=2**64 - 1), f"natural:seed={2**64 - 1}"),
        (gcodec.Natural(effort="fast"), "natural:effort=fast"),
        (gcodec.Sign(64), "sign:group=64"),
        (gcodec.Demo(chunk=8, kept=3, values="bf16"), "demo:chunk=8,kept=3,values=bf16"),
        (gcodec.PowerSgd(2), "powersgd:rank=2"),
        (gcodec.Sbc(positions="rice-one"), "sbc:density=0.001,positions=rice-one"),
        (dataclasses.replace(gcodec.RandK(k=3), seed=4), "randk:k=3,scale=n/k,values=f32,seed=4"),
    ]:
        assert str(codec) == spec
        assert pickle.loads(pickle.dumps(codec)) == codec
    assert gcodec.TopK().is_lossy and not gcodec.Delta().is_lossy


@pytest.mark.parametrize(
    "make",
    [
        lambda: gcodec.TopK(density=2),
        lambda: gcodec.TopK(values="f33"),
        lambda: gcodec.TopK(k=0),
        lambda: gcodec.Qsgd(bits=1),
        lambda: gcodec.Natural(seed=-1),
        lambda: gcodec.TopK(values="f32,scope=global"),
    ],
)
def test_wrong_settings_are_refused_when_they_are_made(make: object) -> None:
    with pytest.raises(gcodec.InputError, match=r"key|exclude") as error:
        make()  # type: ignore[operator]
    assert (error.value.kind, error.value.fault) == ("input", "caller")


def test_each_exchange_draws_for_itself() -> None:
    assert numbered("natural", 5) == "natural:seed=6" and numbered(gcodec.RandK(k=3), 2**64) == "randk:k=3,seed=1"
    assert numbered("qsgd:bits=2,seed=18446744073709551615", 1) == "qsgd:bits=2,seed=0"
    for codec in (*(codec() for codec in gcodec.CODECS), "stc", "topk:density=0.1"):
        assert isinstance(_native.canonical(gcodec.codecs.spec_of(numbered(codec, 7))), str)
    for codec in ("sbc", "stc", gcodec.Int8(), gcodec.PowerSgd(), "powersgd:rank=2,seed=4"):
        assert numbered(codec, 7) == codec


def test_limits_are_the_librarys() -> None:
    assert dataclasses.asdict(gcodec.Limits()) == _native.default_limits()
    assert gcodec.Limits(max_tensors=3).max_tensors == 3
    with pytest.raises(TypeError):
        gcodec.Limits(max_tensor=3)  # type: ignore[call-arg]


def test_dgc_has_the_librarys_defaults() -> None:
    dgc = gcodec.Dgc()
    assert dgc.spec == "topk:density=0.001,values=f32,seed=0"
    warm = gcodec.Dgc(warm_up_steps=1)
    assert warm.spec.startswith("topk:density=0.25")
    for wrong in ({"density": 0}, {"momentum": 1.0}, {"clip": -1.0}, {"workers": 0}):
        with pytest.raises(gcodec.InputError):
            gcodec.Dgc(**wrong)


PAGE = (ROOT / "docs/python-codecs.md").read_text()


def call(kind: Callable[..., Any]) -> str:
    """Returns a call with all arguments and their defaults."""
    parameters = inspect.signature(kind).parameters.values()
    plain = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    return f"{kind.__name__}{plain}"


def test_the_page_has_every_codec_with_its_defaults() -> None:
    for kind in gcodec.CODECS:
        assert f"| `{call(kind)}` |" in PAGE, call(kind)
    assert f"| `{call(gcodec.Dgc)}` |" in PAGE, call(gcodec.Dgc)
    for kind in (gcodec.torch.ScaleCom, gcodec.torch.SharedSet, gcodec.torch.Schedule, gcodec.torch.Lgc):
        assert f"| `torch.{call(kind)}` |" in PAGE, call(kind)


def test_settings_with_sets_have_ranges() -> None:
    for kind, wrong in (
        (gcodec.torch.SharedSet, {"momentum": 1.0}),
        (gcodec.torch.SharedSet, {"density": 0.0}),
        (gcodec.torch.Lgc, {"momentum": -0.1}),
        (gcodec.torch.Lgc, {"innovation": 1.1}),
        (gcodec.torch.Lgc, {"width": 0}),
        (gcodec.torch.Lgc, {"top_k_steps": 0}),
        (gcodec.torch.Lgc, {"lambda_sim": float("nan")}),
    ):
        with pytest.raises(gcodec.InputError):
            kind(**wrong)


def test_the_page_has_the_messages_of_mistakes() -> None:
    names = {
        **{name: getattr(gcodec, name) for name in ("TopK", "Dgc", "Feedback", "encode")},
        "integers": np.arange(2), "nan": np.array([0, np.nan], "f"), "floats": np.ones(2, "f"), "doubles": np.ones(2),
    }  # fmt: skip
    rows = re.findall(r"^\| `([^`]+)` \| (`+)(.*?)\2(?:, of the kind `(\w+)`)? \|$", PAGE, re.MULTILINE)
    assert len(rows) == 12, rows
    for mistake, _, message, kind in rows:
        with pytest.raises(gcodec.InputError) as caught:
            eval(mistake, names)
        assert str(caught.value).startswith(message.removesuffix("..")), (mistake, caught.value)
        assert caught.value.kind == (kind or "input"), mistake
