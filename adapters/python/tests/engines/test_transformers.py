"""A Trainer publishes, and other models follow: transformers on the CPU, and a stand-in for SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gcodec
import gcodec.sync

pytest.importorskip("transformers", reason="transformers is not installed: `cargo xtask engines` installs it")
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments  # noqa: E402

import gcodec.engines.sglang  # noqa: E402
import gcodec.engines.transformers  # noqa: E402
from gcodec.store import Store  # noqa: E402


def model(tied: bool) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16)


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(12) * (i + 1)) % 64
        return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("tied", [False, True])
def test_a_trainer_publishes_and_a_model_follows(tmp_path: Path, tied: bool) -> None:
    trained, served = model(tied), model(tied)
    store = Store(tmp_path / "weights")
    start = gcodec.engines.transformers.weights_of(trained)
    assert ("lm_head.weight" in start) == (not tied)
    settings = TrainingArguments(str(tmp_path), max_steps=4, learning_rate=1e-3, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
    Trainer(trained, settings, train_dataset=Data(), callbacks=[gcodec.engines.transformers.Publish(store, every=2)]).train()
    assert [(v.version, v.meta) for v in store.log()] == [(3, {"step": "4"}), (2, {"step": "2"}), (1, {"step": "0"})]
    follower = gcodec.engines.transformers.Follower(served, store, version=1)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert not torch.equal(served(ids).logits, trained(ids).logits)
        assert follower.pull(2) == 2 and follower.pull() == 3 and follower.pull() == 3
        assert torch.equal(served(ids).logits, trained(ids).logits)
    new = gcodec.engines.transformers.weights_of(served)
    assert all(torch.equal(new[name].view(torch.int16), tensor.view(torch.int16)) for name, tensor in start.items())
    # From nothing: all weights.
    late = gcodec.engines.transformers.Follower(model(tied), store)
    assert late.version is None and late.pull() == 3
    with torch.no_grad():
        assert torch.equal(served(ids).logits, trained(ids).logits)


class Fused(torch.nn.Module):
    """A model with a fused weight and a loader, as SGLang's models have."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Parameter(torch.zeros(6, 4))
        self.loaded: list[str] = []

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            self.loaded.append(name)
            row = 2 * "qkv".index(name)
            self.qkv.data[row : row + 2].copy_(tensor)


def test_the_loader_for_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    served = Fused()
    weights = {name: torch.zeros(2, 4) for name in "qkv"}
    save_file(weights, tmp_path / "model.safetensors")
    sender, other = gcodec.sync.Sender(weights), gcodec.sync.Sender(weights | {"k": torch.ones(2, 4)})
    weights["k"][1, 2] = 5
    one, wrong = sender.delta(weights), other.delta(weights)
    weights["v"][0] = 7
    two = sender.delta(weights)

    def refused(tensors: list[tuple[str, torch.Tensor]], why: str) -> None:
        caplog.clear()
        gcodec.engines.sglang.load(served, tensors)
        [record] = caplog.records
        assert record.levelname == "ERROR" and why in record.message, record.message

    monkeypatch.delenv(gcodec.engines.sglang.CHECKPOINT, raising=False)
    refused(gcodec.engines.sglang.named_tensors(one), "set GCODEC_CHECKPOINT")
    monkeypatch.setenv(gcodec.engines.sglang.CHECKPOINT, str(tmp_path / "none"))
    refused(gcodec.engines.sglang.named_tensors(one), "none")
    monkeypatch.setenv(gcodec.engines.sglang.CHECKPOINT, str(tmp_path))
    refused(gcodec.engines.sglang.named_tensors(two), "rank 0: the delta changes version 1")
    # Small tensors share a digest, and the first stands for them.
    refused(gcodec.engines.sglang.named_tensors(wrong), 'tensor "q": the base is not the one')
    refused(gcodec.engines.sglang.named_tensors(one[:-9]), "truncated at byte")
    refused([("q", torch.zeros(2, 4))], "tensor of bytes")
    refused(2 * gcodec.engines.sglang.named_tensors(one), "one tensor")
    assert not served.loaded and not served.qkv.any()
    # It takes the right versions after all of these.
    caplog.clear()
    gcodec.engines.sglang.load(served, gcodec.engines.sglang.named_tensors(one))
    gcodec.engines.sglang.load(served, gcodec.engines.sglang.named_tensors(two))
    assert served.loaded == ["k", "v"] and torch.equal(served.qkv, torch.cat([weights[name] for name in "qkv"]))
    assert not caplog.records
    weights["q"][0] = 1
    three = sender.delta(weights)

    def failing(_: Any) -> None:
        raise RuntimeError("half-way")

    monkeypatch.setattr(served, "load_weights", failing)
    with pytest.raises(gcodec.sync.PoisonedError, match="half-way"):
        gcodec.engines.sglang.load(served, gcodec.engines.sglang.named_tensors(three))
