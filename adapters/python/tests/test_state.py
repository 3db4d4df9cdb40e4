"""Error feedback and Deep Gradient Compression, and saving their state."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch

import gcodec


def steps(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(11)
    return [{"w": rng.standard_normal((40, 50)).astype("f"), "b": rng.standard_normal(30).astype("f")} for _ in range(count)]


@pytest.mark.parametrize("codec", ["topk:density=0.05", "sbc:density=0.02", "sign", "sidco:density=0.05,stages=authors"])
def test_what_is_left_out_comes_later(codec: str) -> None:
    feedback = gcodec.Feedback()
    sent = np.zeros((40, 50), np.float64)
    given = np.zeros((40, 50), np.float64)
    for tensors in steps(6):
        data = gcodec.encode(tensors, codec, feedback=feedback)
        sent += gcodec.decode(data, framework="numpy")["w"]
        given += tensors["w"]
        residual = feedback.state_dict("numpy")["w"]
        # Sent plus residual equals the input. Each step adds a rounding of f32 at magnitudes below 32.
        assert np.abs(sent + residual - given).max() < 6 * 3 * 2.0**-20
    names = set(feedback.state_dict())
    assert names == {"w", "b"} | ({"w#sidco", "b#sidco"} if "authors" in codec else set())
    squares = sum(float((r.astype(np.float64) ** 2).sum()) for n, r in feedback.state_dict("numpy").items() if "#" not in n)
    assert feedback.norm == pytest.approx(squares**0.5, rel=1e-12)


def again(feedback: gcodec.Feedback, how: str) -> gcodec.Feedback:
    if how == "pickle":
        return pickle.loads(pickle.dumps(feedback))
    new = gcodec.Feedback()
    if how == "torch":
        file = io.BytesIO()
        torch.save(feedback.state_dict("torch"), file)
        file.seek(0)
        new.load_state_dict(torch.load(file, weights_only=True))
    elif how == "gcodec":
        new.load_state_dict(gcodec.decode(gcodec.encode(feedback.state_dict(), "lossless")))
    else:
        new.load_state_dict(feedback.state_dict(how))  # type: ignore[arg-type]
    return new


@pytest.mark.parametrize("how", ["pickle", "torch", "gcodec", "numpy"])
def test_saved_residuals_continue(how: str) -> None:
    one, codec = gcodec.Feedback(), "sidco:density=0.05,stages=authors"
    first, second, third = steps(3)
    gcodec.encode(first, codec, feedback=one)
    gcodec.encode(second, codec, feedback=one)
    two = again(one, how)
    assert two.norm == one.norm > 0
    assert gcodec.encode(third, codec, feedback=two) == gcodec.encode(third, codec, feedback=one)
    two.reset()
    assert two.norm == 0 and two.state_dict() == {}


def test_a_failure_leaves_residuals_as_they_were() -> None:
    feedback = gcodec.Feedback()
    first, second = steps(2)
    gcodec.encode(first, "topk", feedback=feedback)
    before = {name: tensor.tobytes() for name, tensor in feedback.state_dict().items()}
    second["b"][3] = np.nan
    for wrong in (second, {"w": second["w"][:3]}):
        with pytest.raises(gcodec.InputError):
            gcodec.encode(wrong, "topk", feedback=feedback)
    with pytest.raises(gcodec.InputError):
        feedback.load_state_dict({"w": np.zeros(3, np.int32)})
    with pytest.raises(gcodec.InputError):
        feedback.load_state_dict({"w#sidco": np.array([1, 2, 10**6])[:2]})
    assert {name: tensor.tobytes() for name, tensor in feedback.state_dict().items()} == before


def test_deep_gradient_compression_continues() -> None:
    settings = {"density": 0.01, "warm_up_steps": 2, "clip": 1.0, "workers": 4, "values": "f16"}
    one = gcodec.Dgc(**settings)
    for tensors in steps(5):
        gcodec.encode(tensors, one)
    assert (one.steps, one.spec) == (5, "topk:density=0.015,values=f16,seed=5")
    two = gcodec.Dgc(**settings)
    two.load_state_dict(one.state_dict())
    three = pickle.loads(pickle.dumps(one))
    [*_, last] = steps(6)
    expected = gcodec.encode(last, one)
    assert gcodec.encode(last, two) == expected and gcodec.encode(last, three) == expected
    assert one.steps == two.steps == three.steps == 6 and one.norm == two.norm > 0
    with pytest.raises(gcodec.InputError):
        gcodec.encode(last, one, feedback=gcodec.Feedback())
    with pytest.raises(gcodec.InputError):
        gcodec.encode(last, one, rules={"b": "raw"})
    with pytest.raises(gcodec.InputError):
        gcodec.encode({"w": np.zeros(3, np.float64)}, one)
    assert one.steps == 6, "a step that failed is none"


def test_deep_gradient_compression_sends_what_the_paper_says() -> None:
    """Two steps with one tensor and momentum, without clipping, computed by hand."""
    dgc = gcodec.Dgc(0.25, momentum=0.5)
    first = np.array([4.0, 1.0, 2.0, 0.5], "f")
    second = np.array([0.0, 1.0, 1.0, 0.0], "f")
    sent = gcodec.decode(gcodec.encode(first, dgc), framework="numpy")["tensor"]
    assert sent.tolist() == [4, 0, 0, 0]
    # u = v = [0, 1, 2, .5], the sent element cleared; then u = m u + g = [0, 1.5, 2, .25], v + u = [0, 2.5,
    # 4, .75].
    sent = gcodec.decode(gcodec.encode(second, dgc), framework="numpy")["tensor"]
    assert sent.tolist() == [0, 0, 4, 0]
    state = {name: tensor.numpy().tolist() for name, tensor in dgc.state_dict()["tensors"].items()}
    assert state == {"tensor": [0, 2.5, 0, 0.75], "tensor#momentum": [0, 1.5, 0, 0.25]}
