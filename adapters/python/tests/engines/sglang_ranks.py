"""A rank of an SGLang model on the CPU: its own layers and loaders, without its scheduler.

    python sglang_ranks.py RANK WORLD PORT FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import sglang.srt.server_args as arguments
import torch
from safetensors.torch import load_file
from sglang.srt import runtime_context
from sglang.srt.distributed import parallel_state
from sglang.srt.utils.common import dynamic_import
from transformers import Qwen2Config

import gcodec.sync
from gcodec.engines import sglang, sglang_checks

LOADER = "gcodec.engines.sglang_checks.check"
UPDATES = "gcodec.engines.sglang.load"


def model(rank: int, world: int, port: str, folder: str) -> Any:
    """Builds the model of a rank as a worker of SGLang does, and lets it load a checkpoint."""
    settings = arguments.ServerArgs(model_path=folder, device="cpu", skip_tokenizer_init=True, tp_size=world, custom_weight_loader=[LOADER, UPDATES])
    arguments.set_global_server_args_for_scheduler(settings)
    # What the launcher tells each process.
    runtime_context.get_parallel().override_permanently(
        tp_rank=rank, pp_size=1, pp_rank=0, attn_dp_size=1, attn_dp_rank=0, attn_tp_size=world, attn_tp_rank=rank, attn_cp_rank=0, attn_dcp_size=1,
        moe_ep_size=1, moe_ep_rank=0, moe_dp_size=1, moe_tp_size=world, moe_tp_rank=rank,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    parallel_state.init_distributed_environment(backend="gloo", world_size=world, rank=rank, local_rank=rank, distributed_init_method=f"tcp://127.0.0.1:{port}")
    # There is no GPU for its second communicator.
    group = parallel_state.init_model_parallel_group
    parallel_state.init_model_parallel_group = lambda *a, **k: group(*a, **{**k, "use_pynccl": False})
    parallel_state.initialize_model_parallel()
    from sglang.srt.models.qwen2 import Qwen2ForCausalLM

    made = Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder))
    made.load_weights(load_file(Path(folder) / "model.safetensors").items())
    return made


def main() -> None:
    rank, world, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    made, weights = model(rank, world, port, folder), load_file(Path(folder) / "model.safetensors")
    # As SGLang calls a custom loader.
    check, report = dynamic_import(LOADER), os.environ[sglang_checks.REPORT]

    def say(case: str, tensors: Any) -> None:
        check(made, tensors)
        torch.distributed.barrier()
        if rank == 0:
            try:
                print(case, sglang_checks.read(report), flush=True)
            except ValueError as e:
                print(case, "refused:", e, flush=True)

    wanted = sglang_checks.request(weights)
    say("equal", wanted)
    if rank == world - 1:
        # The last row of v, the first of k, and a column of down_proj, on this rank.
        fused = made.get_parameter("model.layers.1.self_attn.qkv_proj.weight").data.view(torch.int16)
        fused[-1, 3] ^= 1
        fused[fused.shape[0] // 2, 0] ^= 1
        made.get_parameter("model.layers.0.mlp.down_proj.weight").data.view(torch.int16)[9, 5] ^= 1
    say("bits", wanted)
    made.load_weights(weights.items())
    say("loaded", wanted)
    update(made, weights, rank == world - 1, say)
    say("other", sglang_checks.request(weights | {"model.norm.weight": weights["model.norm.weight"] * 2}))
    say("garbage", [("w", torch.zeros(3))])
    say("no digests", [(sglang_checks.DIGESTS, torch.zeros(3, dtype=torch.uint8))])
    if rank == 0:
        made.model.layers[0].mlp.down_proj.quant_method = object()
    say("quantised", wanted)
    torch.distributed.destroy_process_group()


def update(made: Any, weights: dict[str, torch.Tensor], is_last: bool, say: Any) -> None:
    """Loads a version that the last rank refuses, because its copy of a weight has another bit, and then
    takes."""
    load, sender = dynamic_import(UPDATES), gcodec.sync.Sender(weights)
    before = sglang_checks.request(weights)
    new = weights | {"model.norm.weight": weights["model.norm.weight"] + 1}
    tensors = sglang.named_tensors(sender.delta(new))
    own = sglang.receiver_of(made).weights["model.norm.weight"].view(torch.int16)
    for case, expected in (("refused", before), ("updated", sglang_checks.request(new))):
        own[3] ^= is_last
        load(made, tensors)
        say(case, expected)
    made.load_weights(weights.items())


if __name__ == "__main__":
    main()
