"""The trainer: REINFORCE on answers that it samples itself, and a version in the store after each step.

It takes one step for each line on its standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import zstandard
from task import ANSWER, PROMPT, VOCABULARY, digest, network, rewards

import gcodec.engines.transformers
from gcodec.store import Store
from gcodec.sync import Sender

Weights = dict[str, torch.Tensor]

ANCHOR_EVERY = 8
"""Versions from one with all weights to the next."""


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--store", required=True)
    args.add_argument("--rate", type=float, default=3e-6, help="learning rate")
    args.add_argument("--streams", default="", help="folder for the versions as streams, too")
    given = args.parse_args()
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.rate, betas=(0.9, 0.99), weight_decay=0.0)
    store = Store(given.store, anchor_every=ANCHOR_EVERY)
    last = cast(model)
    # Version 1 is the checkpoint before training.
    store.publish(last, meta={"step": "0", "begun": str(time.time())})
    streams = Streams(Path(given.streams), last) if given.streams else None
    for step, _ in enumerate(sys.stdin, 1):
        reward = learn(model, optimizer)
        weights = cast(model)
        if streams is not None:
            streams.publish(weights)
        begun = time.time()
        published = store.publish(weights, meta={"step": str(step), "begun": str(begun)})
        seconds = time.time() - begun
        size, changed = xor_zstd(last, weights)
        print(
            json.dumps(
                {
                    "version": published.version,
                    "step": step,
                    "reward": reward,
                    "changed": changed,
                    "bytes": published.delta_bytes,
                    "anchor": published.anchor_bytes,
                    "full": published.bytes,
                    "xor_zstd": size,
                    "seconds": seconds,
                    "digest": digest(weights),
                }
            ),
            flush=True,
        )
        last = weights


class Streams:
    """Versions as streams of a `gcodec.sync.Sender`, by a folder: what any other transport would carry."""

    def __init__(self, folder: Path, weights: Weights) -> None:
        self.folder, self.sender = folder, Sender(weights, version=1)
        folder.mkdir()
        self._write("1.begun", str(time.time()).encode())
        self._write("1.anchor", self.sender.anchor())

    def publish(self, weights: Weights) -> None:
        version = self.sender.version + 1
        self._write(f"{version}.begun", str(time.time()).encode())
        self._write(f"{version}.delta", self.sender.delta(weights))
        if version % 4 == 0:
            self._write(f"{version}.anchor", self.sender.anchor())

    def _write(self, name: str, data: bytes) -> None:
        made = self.folder / f"{name}.new"
        made.write_bytes(data)
        made.rename(self.folder / name)


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Samples answers, takes a step along the policy gradient, and returns the mean reward."""
    prompts = torch.randint(VOCABULARY, (32, PROMPT))
    with torch.no_grad():
        sampled = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=ANSWER, min_new_tokens=ANSWER, top_k=0, pad_token_id=0
        )
    answers = sampled[:, PROMPT:]
    reward = rewards(answers)
    advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
    logits = model(sampled[:, :-1]).logits[:, PROMPT - 1 :]
    chosen = logits.log_softmax(-1).gather(-1, answers[..., None])[..., 0]
    loss = -(advantage[:, None] * chosen).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(reward.mean())


def cast(model: torch.nn.Module) -> Weights:
    """Returns the bf16 weights that engines serve; the trainer keeps f32."""
    return {name: tensor.to(torch.bfloat16) for name, tensor in gcodec.engines.transformers.weights_of(model).items()}


def xor_zstd(old: Weights, new: Weights) -> tuple[int, float]:
    """Returns the bytes of the XOR of all weights by zstd of level 1, and the share of changed elements."""
    flat = [torch.cat([w.reshape(-1) for w in weights.values()]).view(torch.int16).numpy() for weights in (old, new)]
    xor = np.bitwise_xor(*flat)
    return len(zstandard.ZstdCompressor(level=1).compress(xor.tobytes())), float(np.count_nonzero(xor)) / xor.size


if __name__ == "__main__":
    main()
