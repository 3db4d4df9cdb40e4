"""The network of the example, its task, and a digest of its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCABULARY, PROMPT, ANSWER = 512, 8, 16


def network() -> Qwen2ForCausalLM:
    """Returns a random transformer of 2.7 million weights, the same in every process."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=False)).eval()


def checkpoint(folder: Path) -> None:
    """Writes the network's checkpoint for vLLM."""
    network().to(torch.bfloat16).save_pretrained(folder)


def rewards(answers: torch.Tensor) -> torch.Tensor:
    """Returns the reward of each answer: the share of even tokens."""
    return (answers % 2 == 0).float().mean(-1)


def digest(weights: dict[str, torch.Tensor]) -> str:
    """Returns a digest of names and bits."""
    h = hashlib.sha256()
    for name in sorted(weights):
        h.update(name.encode())
        h.update(weights[name].detach().cpu().contiguous().view(torch.uint8).numpy())
    return h.hexdigest()
