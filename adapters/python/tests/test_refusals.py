"""Values that are no tensors, and tensors that gcodec does not take: refused by name, with the reason."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import gcodec
from gcodec import sync
from gcodec.store import Follower, Store

W = np.ones(3, np.float32)


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


# For each tensor, words of its reason.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "complex of torch": (lambda: torch.ones(2, dtype=torch.complex64), "complex64.*view_as_real"),
    "complex of numpy": (lambda: np.ones(2, np.complex128), "complex128.*imaginary"),
    "complex of jax": (lambda: jnp.ones(2, jnp.complex64), "complex64.*imaginary"),
    "coo": (lambda: torch.eye(2).to_sparse(), "sparse_coo.*to_dense"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr.*to_dense"),
    "meta": (lambda: torch.ones(2, device="meta"), "'meta'.*no elements"),
    "fake": (fake, "FakeTensor.*no elements"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "nested"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quint8.*int_repr"),
    "datetime": (lambda: np.zeros(1, "M8[s]"), r"datetime64\[s\].*int64"),
    "duration": (lambda: np.zeros(1, "m8[D]"), r"timedelta64\[D\].*int64"),
    "objects": (lambda: np.array([None, {}]), "objects"),
    "texts": (lambda: np.array(["a", "bc"]), "a text"),
    "records": (lambda: np.zeros(2, [("a", "f4"), ("b", "i2")]), "records"),
    "masked": (lambda: np.ma.masked_equal([1.0, 2.0], 2.0), "masked.*filled"),
    "e8m0": (lambda: np.ones(2, ml_dtypes.float8_e8m0fnu), "float8_e8m0fnu.*uint8"),
    "int4": (lambda: np.ones(2, ml_dtypes.int4), "int4.*uint8"),
    "fp4 of torch": (lambda: torch.zeros(2, dtype=torch.float4_e2m1fn_x2), "float4_e2m1fn_x2.*uint8"),
    "uint4 of jax": (lambda: jnp.ones(2, jnp.uint4), "uint4.*uint8"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_a_tensor_that_cannot_be_taken_is_named_with_its_reason(kind: str, tmp_path: Any) -> None:
    make, reason = REFUSED[kind]
    state = {"w": W, "layers.0.scale": make()}
    store, data = Store(tmp_path / "s"), gcodec.encode({"w": W}, "lossless")
    calls: list[Callable[[], Any]] = [
        lambda: gcodec.encode(state, "lossless"),
        lambda: gcodec.encode({"w": W, "layers": [{"scale": state["layers.0.scale"]}]}, "topk:k=1"),
        lambda: gcodec.encode({"w": W}, "delta", base=state),
        lambda: gcodec.Writer(io.BytesIO()).write(state, "lossless"),
        lambda: gcodec.patches(data, base=state),
        lambda: gcodec.decode(data, base=state),
        lambda: gcodec.stats(state),
        lambda: sync.Sender(state),
        lambda: sync.Sender({"w": W, "layers.0.scale": W}).delta(state),
        lambda: store.publish(state),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"'layers.0.scale' is .*{reason}"):
            call()
    # What the rest of the message advises works, and the tensor alone is at fault.
    store.publish({"w": W})
    with pytest.raises(TypeError, match="'layers.0.scale' is"):
        Follower(store, state, version=1)


@pytest.mark.parametrize("value", [3, True, b"x", "text", 1.5, io.BytesIO(b"x"), {"cache": 7}, [None, "x"]])
def test_state_that_is_no_tensor_is_refused_by_its_name(value: Any, tmp_path: Any) -> None:
    state = {"w": W, "0._extra_state": value}
    for call in (
        lambda: gcodec.encode(state, "lossless"),
        lambda: sync.Sender(state),
        lambda: sync.Sender({"w": W}).delta(state),
        lambda: sync.Receiver(state),
        lambda: Store(tmp_path / "s").publish(state),
        lambda: gcodec.decode(gcodec.encode({"w": W}, "lossless"), like=state),
    ):
        with pytest.raises(TypeError, match=r"0\._extra_state(\.cache|\.1)? is a \w+: give tensors .*leave out"):
            call()
    taken = {name: x for name, x in state.items() if hasattr(x, "__dlpack__")}
    assert list(gcodec.decode(gcodec.encode(taken, "lossless"))) == ["w"]


@pytest.mark.parametrize("value", [None, {}, {"a": None}, [None]])
def test_empty_state_is_left_out(value: Any, tmp_path: Any) -> None:
    old, new = {"w": torch.ones(3), "0._extra_state": value}, {"w": torch.zeros(3), "0._extra_state": value}
    sender, receiver = sync.Sender(old), sync.Receiver({**old, "w": torch.ones(3)})
    assert receiver.stage(sender.delta(new)).commit() == 1
    assert receiver.stage(sender.anchor()).touched == [] if receiver.version == 2 else True
    assert torch.equal(receiver.weights["w"], new["w"])
    store = Store(tmp_path / "s")
    assert store.publish(old).touched == 1 and store.publish(new).touched == 1
    assert Follower(store, new, version=2).version == 2


def test_tensors_beside_state_are_taken() -> None:
    # A dict of tensors in a state_dict: part of the tree, under its path.
    sender = sync.Sender({"w": W, "0._extra_state": {"amax": W}})
    assert set(gcodec.decode(sender.anchor())) == {"w", "0._extra_state.amax"}


@pytest.mark.parametrize(
    ("integers", "rules"),
    [
        ({"n": torch.tensor(3)}, {"n": "lossless"}),
        ({"bn.num": torch.tensor(3), "position[0]": torch.arange(4)}, {"*.num": "lossless", "position[[]0]": "lossless"}),
        ({f"{i}.bn.num_batches_tracked": torch.tensor(i) for i in range(9)}, {"*.num_batches_tracked": "lossless"}),
        ({"a.mask": torch.ones(2, dtype=torch.bool), "b.c": torch.tensor(1)}, {"a.mask": "lossless", "*.c": "lossless"}),
    ],
)
def test_the_advice_for_integers_keeps_the_codec_of_the_rest(integers: dict[str, torch.Tensor], rules: dict[str, str]) -> None:
    state = {"w": torch.randn(100_000), "x.mask": torch.randn(1000), **integers}
    with pytest.raises(gcodec.InputError) as raised:
        gcodec.encode(state, "topk:density=0.01")
    advised = str(raised.value).partition("rules=")[2]
    assert eval(advised) == rules, raised.value
    data = gcodec.encode(state, "topk:density=0.01", rules=eval(advised))
    assert len(data) < 12_000
    back = gcodec.decode(data, framework="torch")
    assert all(torch.equal(back[name], x) for name, x in integers.items())


@pytest.mark.parametrize("non_finite", ["reject", "zero"])
@pytest.mark.parametrize("codec", ["topk:k=3", "natural", "qsgd", "sbc"])
def test_finite_numbers_beyond_f32_are_named_for_what_they_are(codec: str, non_finite: Any) -> None:
    for at, value in ((0, 1e39), (2, -1e300)):
        t = np.array([1.0, 2.0, 3.0])
        t[at] = value
        message = f"element {at} is {value:g}, beyond the range of f32".replace("e+", "e")
        with pytest.raises(gcodec.InputError, match=message) as raised:
            gcodec.encode({"t": t}, codec, non_finite=non_finite)
        assert "NaN" not in str(raised.value) and raised.value.kind == "non_finite"
    assert np.array_equal(gcodec.decode(gcodec.encode({"t": t}, "lossless"), framework="numpy")["t"], t)
    nan = np.array([1.0, np.nan, 2.0])
    if non_finite == "zero":
        gcodec.encode({"t": nan}, codec, non_finite="zero")
    else:
        with pytest.raises(gcodec.InputError, match="element 1 is NaN or infinite") as raised:
            gcodec.encode({"t": nan}, codec)
        assert raised.value.kind == "non_finite"
