"""Random models of two layers for vLLM on the CPU, without tokenizers, and where they are damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from quantisers import int4  # noqa: E402

_COMMON = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}

_INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "actorder": None, "dynamic": False},
            "input_activations": None,
            "output_activations": None,
        }
    },
}


def make(kind: str, folder: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Writes a checkpoint in vLLM's terms, and returns its tensors.

    kind: `qwen2-moe`, whose experts vLLM pads, `mixtral`, or `int4`: a Qwen2 with packed linear layers.
    """
    import transformers

    if kind == "qwen2-moe":
        config: Any = transformers.Qwen2MoeConfig(
            intermediate_size=256, moe_intermediate_size=48, shared_expert_intermediate_size=96, num_experts=4, num_experts_per_tok=2, **_COMMON
        )
        model: Any = transformers.Qwen2MoeForCausalLM
    elif kind == "mixtral":
        config = transformers.MixtralConfig(intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, **_COMMON)
        model = transformers.MixtralForCausalLM
    else:
        config, model = transformers.Qwen2Config(intermediate_size=256, **_COMMON), transformers.Qwen2ForCausalLM
    torch.manual_seed(seed)
    model(config).to(torch.bfloat16).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    if kind == "int4":
        weights = packed(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | {"quantization_config": _INT4}))
    return weights


def packed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns a checkpoint whose linear layers are int4, as compressed-tensors has them."""
    out = {}
    for name, tensor in weights.items():
        if name.endswith("_proj.weight"):
            out |= {name.removesuffix("weight") + leaf: own.contiguous() for leaf, own in int4(tensor).items()}
        else:
            out[name] = tensor
    return out


@contextmanager
def restored(llm: Any) -> Iterator[None]:
    """Gives an engine its parameters back in the end."""
    saved: dict[str, torch.Tensor] = {}
    llm.apply_model(lambda m: saved.update({name: x.data.clone() for name, x in m.named_parameters()}))
    yield
    llm.apply_model(lambda m: [x.data.copy_(saved[name]) for name, x in m.named_parameters()] and None)
