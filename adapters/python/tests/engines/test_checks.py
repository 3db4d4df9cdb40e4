"""vLLM's workers on the CPU digest their weights: each fault in one is found by name and row."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not installed: `cargo xtask engines` installs it")
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from test_vllm import model, start, unpacked  # noqa: E402, F401

import gcodec  # noqa: E402
from gcodec import check  # noqa: E402
from gcodec.engines import vllm_checks  # noqa: E402

LAYER = "model.layers.1.self_attn"


@pytest.fixture(scope="module")
def engine(unpacked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, Any]]]:  # noqa: F811
    folder = tmp_path_factory.mktemp("model")
    model(folder)
    llm = start(folder, worker_extension_cls="gcodec.engines.vllm_checks.Worker")
    yield llm, load_file(folder / "model.safetensors")
    del llm
    gc.collect()


def test_an_engine_holds_the_checkpoint(engine: tuple[Any, dict[str, Any]]) -> None:
    llm, weights = engine
    assert vllm_checks.differences(llm, weights) == []
    assert vllm_checks.digests(llm).sum == check.digest(weights).sum
    # Another version, of which the engine knows nothing.
    other = weights | {"model.norm.weight": weights["model.norm.weight"] * 2}
    lines = vllm_checks.differences(llm, other)
    assert len(lines) == 1 and lines[0].startswith("model.norm.weight: other elements in rows 0 to 127")
    assert vllm_checks.differences(llm, weights | {"extra": torch.zeros(3)}) == ["extra: missing"]


def flip(rows: list[int], name: str = f"{LAYER}.qkv_proj.weight") -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for row in rows:
            model.get_parameter(name).data.view(torch.int16)[row, 5] ^= 1

    return change


def stale(model: Any) -> None:
    model.get_parameter("model.layers.0.mlp.down_proj.weight").data.zero_()


def tie(model: Any) -> None:
    model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)


FAULTS = [
    # Rows of q: 0 to 127, of k: 128 to 191, of v: 192 to 255.
    (flip([130]), [f"{LAYER}.k_proj.weight: other elements in rows 2"]),
    (flip([7, 8, 9, 200]), [f"{LAYER}.q_proj.weight: other elements in rows 7 to 9", f"{LAYER}.v_proj.weight: other elements in rows 8"]),
    (flip([300], "model.layers.0.mlp.gate_up_proj.weight"), ["model.layers.0.mlp.up_proj.weight: other elements in rows 44"]),
    (stale, ["model.layers.0.mlp.down_proj.weight: other elements in rows 0 to 127"]),
    (tie, ["lm_head.weight: other elements in rows 0 to 511"]),
]


@pytest.mark.parametrize(("change", "expected"), FAULTS, ids=["bit", "bits", "fused", "stale", "tied"])
def test_a_fault_in_an_engine_is_named(engine: tuple[Any, dict[str, Any]], change: Callable[[Any], None], expected: list[str]) -> None:
    llm, weights = engine
    saved: dict[str, Any] = {}

    def save(model: Any) -> None:
        saved.update({name: x.data.clone() for name, x in model.named_parameters()})

    def restore(model: Any) -> None:
        for name, x in model.named_parameters():
            x.data.copy_(saved[name])

    llm.apply_model(save)
    llm.apply_model(change)
    found = vllm_checks.differences(llm, weights)
    llm.apply_model(restore)
    assert sorted(found) == sorted(expected)
    assert vllm_checks.differences(llm, weights) == []


TWO_RANKS = """
import sys
from pathlib import Path
import vllm
from safetensors.torch import load_file
from gcodec.engines import vllm_checks

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    llm = vllm.LLM(
        model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=2,
        tensor_parallel_size=2, worker_extension_cls="unpacked_worker.Worker",
    )
    weights = load_file(folder / "model.safetensors")
    assert vllm_checks.differences(llm, weights) == []
    found = vllm_checks.digests(llm)
    assert len({(one.name, one.offsets) for one in found.regions}) > len(weights)
    # Rank 1 has heads 2 and 3 of q, head 1 of k, columns 128 to 255 of down_proj.
    llm.collective_rpc("gcodec_damage", args=(1, "model.layers.0.self_attn.qkv_proj.weight", 70))
    llm.collective_rpc("gcodec_damage", args=(1, "model.layers.1.mlp.down_proj.weight", 9))
    print("FOUND", vllm_checks.differences(llm, weights))
"""


def test_a_fault_in_a_shard_of_two_ranks_is_named(tmp_path: Path) -> None:
    model(tmp_path)
    (tmp_path / "two_ranks.py").write_text(TWO_RANKS)
    paths = [str(Path(__file__).parent), str(Path(gcodec.__file__).parents[1])]
    # Threads of two workers on two cores are not bound to them.
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [sys.executable, str(tmp_path / "two_ranks.py"), str(tmp_path)]
    run = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600)
    expected = [
        "model.layers.0.self_attn.k_proj.weight: other elements in rows 38",
        "model.layers.1.mlp.down_proj.weight: other elements in rows 9",
    ]
    assert f"FOUND {expected}" in run.stdout, run.stdout[-2000:] + run.stderr[-4000:]
