"""Model folders of streams load in transformers and in vLLM as their plain files do, bit for bit."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gcodec

pytest.importorskip("transformers", reason="transformers is not installed: `cargo xtask engines` installs it")
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

import gcodec.transformers  # noqa: E402

LARGE = 32_000 * 512 * 4
"""Bytes of the largest tensors of the model whose memory is measured."""


def saved(folder: Path, *, tied: bool = False, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> Path:
    """Makes a model in a folder."""
    config = Qwen2Config(
        **{
            "vocab_size": 512,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": tied,
            **settings.pop("config", {}),
        }
    )
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config).to(dtype)
    model.generation_config = GenerationConfig(max_new_tokens=7)
    model.save_pretrained(folder, **settings)
    return folder


def compressed(plain: Path) -> Path:
    """Returns a copy of a folder in which the weights are streams."""
    folder = plain.with_name(f"{plain.name}-compressed")
    shutil.copytree(plain, folder)
    subprocess.run([sys.executable, "-m", "gcodec", "compress", folder, "--remove"], check=True)
    assert not list(folder.glob("*.safetensors")) and list(folder.glob("*.safetensors.gcu"))
    return folder


def bits(weights: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, bytes]]:
    return {name: (x.dtype, x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for name, x in weights.items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", ["1GB", "100KB"])
def test_transformers_loads_a_folder(tmp_path: Path, tied: bool, shards: str) -> None:
    plain = saved(tmp_path / "model", tied=tied, max_shard_size=shards)
    assert len(list(plain.glob("*.safetensors"))) == (1 if shards == "1GB" else 9 + (not tied)) or shards != "1GB"
    folder = compressed(plain)
    for model, kwargs in ((AutoModelForCausalLM, {}), (Qwen2ForCausalLM, {"dtype": torch.float32}), (Qwen2ForCausalLM, {"dtype": "auto"})):
        expected = model.from_pretrained(plain, **kwargs)
        found = gcodec.transformers.from_pretrained(model, folder, **kwargs)
        assert type(found) is type(expected) and not found.training
        assert bits(found.state_dict()) == bits(expected.state_dict())
        assert found.generation_config.max_new_tokens == 7 and found.name_or_path == str(folder)
        assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
        ids = torch.arange(8)[None]
        with torch.no_grad():
            assert torch.equal(found(ids).logits, expected(ids).logits)
    found, info = gcodec.transformers.from_pretrained(Qwen2ForCausalLM, folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and found.config.hidden_size == 128


def test_a_folder_that_is_not_whole(tmp_path: Path) -> None:
    folder = compressed(saved(tmp_path / "model", max_shard_size="100KB"))
    shard = sorted(folder.glob("*.gcu"))[1]
    data = shard.read_bytes()
    # A plain file may stand for its stream.
    subprocess.run([sys.executable, "-m", "gcodec", "decompress", shard, "--remove"], check=True)
    assert gcodec.transformers.from_pretrained(Qwen2ForCausalLM, folder).lm_head.weight.shape == (512, 128)
    shard.with_suffix("").unlink()
    with pytest.raises(gcodec.InputError, match=shard.stem):
        gcodec.transformers.from_pretrained(Qwen2ForCausalLM, folder)
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    shard.write_bytes(damaged)
    with pytest.raises(Exception, match="CRC|checksum"):
        gcodec.transformers.from_pretrained(Qwen2ForCausalLM, folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../other.safetensors"}}))
    with pytest.raises(gcodec.InputError, match="no index"):
        gcodec.transformers.from_pretrained(Qwen2ForCausalLM, folder)
    for path in folder.glob("model*"):
        path.unlink()
    with pytest.raises(gcodec.InputError, match="no weights"):
        gcodec.transformers.from_pretrained(Qwen2ForCausalLM, folder)


PEAK = """
import re, sys, torch
from pathlib import Path
import gcodec.transformers
from transformers import Qwen2ForCausalLM
kind, folder = sys.argv[1:]
size = lambda key: int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
# The peak begins anew.
Path("/proc/self/clear_refs").write_text("5")
before = size("VmRSS")
load = Qwen2ForCausalLM.from_pretrained if kind == "plain" else lambda f, **k: gcodec.transformers.from_pretrained(Qwen2ForCausalLM, f, **k)
model = load(folder, dtype=torch.float32)
with torch.no_grad():
    model(torch.arange(8)[None])
    sum(p.sum() for p in model.parameters())
print(size("VmHWM") - before)
"""


def test_the_memory_of_loading_is_that_of_the_plain_file_and_one_tensor(tmp_path: Path) -> None:
    sizes = {"vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1024}
    plain = saved(tmp_path / "model", dtype=torch.float32, config=sizes)
    peak = {}
    for kind, folder in (("plain", plain), ("streams", compressed(plain))):
        command = [sys.executable, "-c", PEAK, kind, folder]
        out = subprocess.run(command, check=True, capture_output=True, text=True)
        peak[kind] = int(out.stdout.split()[-1])
    assert peak["plain"] > 2 * LARGE, peak
    assert peak["streams"] < peak["plain"] + LARGE, peak


def test_vllm_loads_a_folder(tmp_path: Path) -> None:
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed: `cargo xtask engines` installs it")
    plain = saved(tmp_path / "model", max_shard_size="100KB")
    folder = compressed(plain)
    found = {}
    for place, load_format in ((plain, "auto"), (folder, "gcodec"), (plain, "gcodec")):
        llm = vllm.LLM(
            model=str(place),
            load_format=load_format,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=64,
            max_num_seqs=2,
        )
        weights = llm.apply_model(lambda m: {n: p.detach().clone() for n, p in m.named_parameters()})[0]
        chosen = vllm.SamplingParams(max_tokens=8, temperature=0, detokenize=False)
        answer = llm.generate([{"prompt_token_ids": [1, 2, 3, 4]}], chosen, use_tqdm=False)
        found[place, load_format] = (bits(weights), list(answer[0].outputs[0].token_ids))
        del llm
        gc.collect()
    assert len(found[plain, "auto"][0]) > 10
    assert found[folder, "gcodec"] == found[plain, "auto"] == found[plain, "gcodec"]
