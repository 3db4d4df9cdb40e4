"""An inference process: answers requests on its standard input, and changes its weights between two of them.

A request is a line of JSON: `{"prompt": [..]}` for an answer, `{"follow": false}` to stay at the present
version, `{"digest": true}` for the version and the digest of the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from task import ANSWER, digest, network

from gcodec.check import views
from gcodec.engines.vllm_layouts import layout
from gcodec.store import Follower, Store, Update
from gcodec.sync import Receiver, Staged

Weights = dict[str, torch.Tensor]


class ByStore:
    """Follows a store. The follower keeps a copy of the last version beside the engine's weights."""

    def __init__(self, weights: Weights, store: Store) -> None:
        self.weights = weights
        # From nothing: the first update has every tensor.
        self.follower = Follower(store)
        self.staged: Update | None = None
        self.following = True
        threading.Thread(target=self._stage, daemon=True).start()

    @property
    def version(self) -> int | None:
        return self.follower.version

    def _stage(self) -> None:
        while True:
            if self.staged is None and self.following and (update := self.follower.stage()):
                _ = update.patches
                self.staged = update
            time.sleep(0.02)

    def swap(self) -> dict[str, Any] | None:
        """Goes to the staged version, if there is one."""
        update = self.staged
        if update is None:
            return None
        update.commit(lambda patches: patches.apply_(self.weights))
        self.staged = None
        return {"bytes": update.bytes, "steps": update.steps, "begun": update.meta["begun"], "touched": len(update.touched)}


class InPlace:
    """Follows streams in a folder, which change the engine's own parameters: there is no other copy."""

    def __init__(self, weights: Weights, folder: Path) -> None:
        self.receiver, self.folder = Receiver(weights), folder
        self.staged: tuple[Staged, int] | None = None
        self.following = True
        threading.Thread(target=self._stage, daemon=True).start()

    @property
    def version(self) -> int:
        return self.receiver.version

    def _stage(self) -> None:
        while True:
            if self.staged is None and self.following and (stream := self._next()):
                # Verifies the stream and the weights that it changes, while the engine answers.
                self.staged = self.receiver.stage(stream), len(stream)
            time.sleep(0.02)

    def _next(self) -> bytes | None:
        """Returns the next version; at first, and for an engine that has just started, the newest anchor."""
        path = self.folder / f"{self.version + 1}.delta"
        if self.version == 0:
            anchors = sorted(self.folder.glob("*.anchor"), key=lambda path: int(path.stem))
            if not anchors:
                return None
            path = anchors[-1]
        return path.read_bytes() if path.exists() else None

    def swap(self) -> dict[str, Any] | None:
        """Goes to the staged version, if there is one: writes it, and compares digests of what changed."""
        if self.staged is None:
            return None
        staged, size = self.staged
        touched = len(staged.touched)
        version = staged.commit()
        self.staged = None
        return {"bytes": size, "steps": 1, "begun": (self.folder / f"{version}.begun").read_text(), "touched": touched}


class Transformers:
    """The network in transformers. Versions are staged in a thread; only writing them interrupts."""

    def __init__(self, store: Store, checkpoint: str, streams: str) -> None:
        import gcodec.engines.transformers

        del checkpoint
        torch.set_num_threads(1)
        self.model = network().to(torch.bfloat16)
        self.weights = gcodec.engines.transformers.weights_of(self.model)
        self.way = InPlace(self.weights, Path(streams)) if streams else ByStore(self.weights, store)

    def answer(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=ANSWER, pad_token_id=0)
        return [int(token) for token in out[0, len(prompt) :]]

    def digest(self) -> str:
        return digest(self.weights)


class Vllm:
    """The network in vLLM: by `gcodec.engines.vllm`, which here downloads and verifies in the pause, too; or
    by streams that change vLLM's own parameters, with q, k and v fused."""

    def __init__(self, store: Store, checkpoint: str, streams: str) -> None:
        # Packing for the CPU would remove the weights that loaders write to. No other device packs.
        import vllm
        import vllm.model_executor.layers.utils as utils

        def linear(layer: torch.nn.Module, remove_weight: bool) -> None:
            layer.cpu_linear = torch.nn.functional.linear

        utils.dispatch_cpu_unquantized_gemm = linear
        sizes = {"max_model_len": 64, "max_num_seqs": 2}
        self.llm = vllm.LLM(
            model=checkpoint, skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True, weight_transfer_config={"backend": "gcodec"}, **sizes
        )
        self.settings = vllm.SamplingParams(max_tokens=ANSWER, temperature=0, detokenize=False)
        self.way: InPlace | PluginOfVllm = PluginOfVllm(self.llm, store)
        if streams:
            found: Weights = {}
            # Views of the checkpoint's tensors inside vLLM's parameters.
            self.llm.apply_model(lambda m: found.update(views(dict(m.named_parameters()), layout(m))))
            self.weights, self.way = found, InPlace(found, Path(streams))

    def answer(self, prompt: list[int]) -> list[int]:
        return list(self.llm.generate([{"prompt_token_ids": prompt}], self.settings, use_tqdm=False)[0].outputs[0].token_ids)

    def digest(self) -> str:
        if isinstance(self.way, InPlace):
            return digest(self.weights)
        return digest(self.llm.apply_model(lambda m: {n: p.detach().clone() for n, p in m.named_parameters()})[0])


class PluginOfVllm:
    """Follows a store by vLLM's weight transfer."""

    def __init__(self, llm: Any, store: Store) -> None:
        self.llm, self.store, self.following, self.begun = llm, store, True, False

    @property
    def version(self) -> int | None:
        return self._follower().version

    def _follower(self) -> Follower:
        return self.llm.llm_engine.model_executor.driver_worker.worker.weight_transfer_engine.follower

    def swap(self) -> dict[str, Any] | None:
        """Goes to the newest version, if there is a new one."""
        if not self.begun:
            self.llm.init_weight_transfer_engine({"init_info": {"store": os.environ["STORE"]}})
            self.begun = True
        if not self.following or self.store.latest() == self.version:
            return None
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {}})
        self.llm.finish_weight_update()
        return {"begun": self._follower().meta["begun"]}


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--store", required=True)
    args.add_argument("--engine", choices=["transformers", "vllm"], required=True)
    args.add_argument("--checkpoint", default="", help="folder of the checkpoint, for vLLM")
    args.add_argument("--streams", default="", help="folder of streams, for engines that change their own parameters")
    given = args.parse_args()
    os.environ["STORE"] = given.store
    store = Store(given.store)
    engine = (Vllm if given.engine == "vllm" else Transformers)(store, given.checkpoint, given.streams)
    # It serves nothing before its first version.
    while not swap(engine):
        time.sleep(0.05)
    for line in sys.stdin:
        request = json.loads(line)
        if "follow" in request:
            engine.way.following = request["follow"]
        elif "digest" in request:
            say({"digest": engine.digest(), "version": engine.way.version})
        else:
            swap(engine)
            say({"answer": engine.answer(request["prompt"]), "version": engine.way.version})


def swap(engine: Transformers | Vllm) -> bool:
    """Changes the weights if there is a new version, and reports it."""
    begin = time.time()
    swapped = engine.way.swap()
    end = time.time()
    if swapped is None:
        return False
    since = end - float(swapped.pop("begun"))
    say({"swap": engine.way.version, "pause": end - begin, "since": since, **swapped})
    return True


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
