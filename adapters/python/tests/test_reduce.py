"""Sums of the updates of several senders equal the library's, in the order of the senders."""

from __future__ import annotations

import io
import itertools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec


def stream(sender: int, codec: str = "raw", **header: object) -> bytes:
    rng = np.random.default_rng(sender)
    tensors = {"w": rng.standard_normal((40, 30)).astype("f"), "b": rng.standard_normal(7)}
    return gcodec.encode(tensors, codec, header=gcodec.UpdateHeader(sender=sender, **header))  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["raw", "topk:density=0.2,values=bf16", "natural", "randk:density=0.5", "powersgd"])
def test_the_sum_is_taken_in_the_order_of_the_senders(codec: str) -> None:
    streams = [stream(sender, codec) for sender in (3, 0, 2)]
    update = gcodec.reduce(streams)
    assert (update.header.reduction, update.header.contributors) == ("sum", 3)
    expected = {name: tensor.numpy() * 0 for name, tensor in update.items()}
    for data in (streams[1], streams[2], streams[0]):
        for name, tensor in gcodec.decode(data, framework="numpy").items():
            expected[name] = expected[name] + tensor
    for name, tensor in update.items():
        assert tensor.numpy().tobytes() == expected[name].tobytes()
    bits = {name: tensor.tobytes() for name, tensor in update.items()}
    for order in itertools.permutations(streams):
        assert {name: tensor.tobytes() for name, tensor in gcodec.reduce(order).items()} == bits


def test_weights_means_and_numbers() -> None:
    one, two = ({"w": np.array(w, np.float32)} for w in ([1.0, 8.0], [3.0, -4.0]))
    streams = [gcodec.encode(t, "raw") for t in (one, two)]
    with pytest.raises(gcodec.InputError, match=r"stream 1: .*sender 0.*was added before"):
        gcodec.reduce(streams)
    summed = gcodec.reduce(streams, weights=[1, 3], by_input=True)
    mean = gcodec.reduce(map(bytearray, streams), weights=[1, 3], by_input=True, mean=True, precision="f64")
    assert summed["w"].numpy().tolist() == [10, -4] and mean["w"].numpy().tolist() == [2.5, -1]
    assert (mean.header.reduction, mean.header.contributors) == ("mean", 2)


def test_double_precision_rounds_once() -> None:
    numbers = [1.0, 2.0**-25, 2.0**-25, 2.0**-25]
    streams = [gcodec.encode(np.array([n], np.float32), "raw") for n in numbers]
    assert gcodec.reduce(streams, by_input=True)["tensor"].numpy().tolist() == [1]
    assert gcodec.reduce(streams, by_input=True, precision="f64")["tensor"].numpy().tolist() == [1 + 2.0**-23]


def test_the_command_line_sums_alike(command: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.gcu" for i in range(3)]
    for i, file in enumerate(files):
        file.write_bytes(stream(i, "topk:density=0.1"))
    out = tmp_path / "mean.gcu"
    subprocess.run([command, "reduce", *files, "-o", out, "--mean"], check=True)
    expected = gcodec.decode(out.read_bytes())
    update = gcodec.reduce([file.read_bytes() for file in files], mean=True)
    assert {n: t.tobytes() for n, t in update.items()} == {n: t.tobytes() for n, t in expected.items()}


def test_what_has_no_sum_is_refused() -> None:
    base = {"w": np.zeros(3, np.float32)}
    of_w = lambda codec, **h: gcodec.encode(  # noqa: E731
        {"w": np.ones(3, np.float32)}, codec, base=base, header=gcodec.UpdateHeader(**h)
    )
    ints = [gcodec.encode({"n": np.array([i])}, "raw", header=gcodec.UpdateHeader(sender=i)) for i in range(2)]
    assert gcodec.reduce(ints)["n"].numpy().tolist() == [1]
    for streams, settings, why in [
        ([of_w("raw", sender=0), of_w("delta", sender=1)], {}, "stream 1: .*delta"),
        ([of_w("raw", sender=0), stream(1)], {}, "stream 1: .*manifest"),
        ([of_w("raw", sender=0), of_w("raw", sender=1, step=4)], {}, "stream 1: .*step"),
        ([of_w("raw", reduction="mean")], {}, "stream 0: .*mean"),
        (ints, {"mean": True}, "mean"),
        (ints, {"weights": [1, 2]}, "weight"),
        ([stream(1)], {"weights": [0]}, "weight"),
        ([stream(1)], {"weights": [1, 2]}, "2 weights for 1 streams"),
        ([stream(1)], {"precision": "f16"}, "precision"),
        ([gcodec.encode({}, "raw")[:0]], {}, "stream 0"),
        ([], {}, "no streams"),
    ]:
        with pytest.raises(gcodec.GcodecError, match=why):
            gcodec.reduce(streams, **settings)  # type: ignore[arg-type]
    with pytest.raises(gcodec.FormatError, match="stream 1") as error:
        gcodec.reduce([stream(0), stream(1)[:-1]])
    assert error.value.kind == "truncated"
    with pytest.raises(gcodec.LimitError):
        gcodec.reduce([stream(0)], limits=gcodec.Limits(max_alloc_bytes=100))
    with pytest.raises(TypeError):
        gcodec.reduce(["text"])


def test_a_model_of_pytorch_and_one_of_jax_have_a_sum() -> None:
    """JAX sorts the keys of each dict in a pytree; a PyTorch model has its parameters in the order of its
    modules."""
    import jax
    import jax.numpy as jnp
    import torch

    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(6, 9), "up-2": torch.nn.Linear(9, 3), "down": torch.nn.Linear(3, 2)})
    state = model.state_dict()
    tree = jax.tree.map(
        lambda x: 2 * x,
        {name: {part: jnp.asarray(state[f"{name}.{part}"].numpy()) for part in ("weight", "bias")} for name in model},
    )
    names = [f"{name}.{part}" for name in ("up", "up-2", "down") for part in ("weight", "bias")]
    assert list(state) == names
    assert [t.name for t in gcodec.inspect(gcodec.encode(tree, "raw")).updates[0].tensors] == [
        f"{name}.{part}" for name in ("down", "up", "up-2") for part in ("bias", "weight")
    ]
    own = lambda tensors, sender, **order: gcodec.encode(  # noqa: E731
        tensors, "topk:density=0.5,scope=global", header=gcodec.UpdateHeader(sender=sender), **order
    )
    with pytest.raises(gcodec.InputError, match=r"stream 1: .*same tensors in another order"):
        gcodec.reduce([own(state, 0), own(tree, 1)])
    one, two = (gcodec.decode(own(tensors, 0), framework="numpy") for tensors in (state, tree))
    for order in ("name", state, names, reversed(names), gcodec.decode(own(state, 0))):
        order = list(order) if not isinstance(order, (str, dict)) else order
        update = gcodec.reduce([own(state, 0, order=order), own(tree, 1, order=order)])
        assert list(update) == (sorted(names) if order == "name" else list(order))
        for name in names:
            assert np.array_equal(update[name].numpy(), one[name] + two[name]), name
        summed = update.tree(tree)
        assert jax.tree.structure(summed) == jax.tree.structure(tree)
    out = io.BytesIO()
    with gcodec.Writer(out) as writer:
        writer.write(tree, "raw", order=state)
    assert list(gcodec.decode(out.getvalue())) == names


@pytest.mark.parametrize("order", ["names", ["a"], ["a", "b", "c"], ["a", "a"], ["b", "a", "a"], []])
def test_an_order_has_all_names_once(order: Any) -> None:
    with pytest.raises(gcodec.InputError, match="order"):
        gcodec.encode({"b": np.zeros(1), "a": np.zeros(1)}, "raw", order=order)
