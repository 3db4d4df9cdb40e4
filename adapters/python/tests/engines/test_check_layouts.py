"""vLLM's workers on the CPU digest experts and int4 as the CPU's kernels hold them: faults are named."""

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
from models import make, restored  # noqa: E402
from test_vllm import start, tokens, unpacked  # noqa: E402, F401

import gcodec  # noqa: E402
from gcodec import check, sync  # noqa: E402
from gcodec.engines import vllm_checks, vllm_layouts  # noqa: E402

WORKER = "gcodec.engines.vllm_checks.Worker"
Engine = tuple[str, Any, dict[str, Any]]


@pytest.fixture(scope="module", params=["qwen2-moe", "mixtral", "int4"])
def engine(request: pytest.FixtureRequest, unpacked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:  # noqa: F811
    folder = tmp_path_factory.mktemp(request.param)
    weights = make(request.param, folder)
    llm = start(folder, worker_extension_cls=WORKER)
    yield request.param, llm, weights
    del llm
    gc.collect()


def compared(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in weights.items() if not name.endswith(vllm_layouts.UNUSED)}


def test_an_engine_holds_the_checkpoint(engine: Engine) -> None:
    kind, llm, weights = engine
    assert len(tokens(llm)) == 8, "the engine answers with the weights as they are packed"
    assert vllm_checks.differences(llm, weights) == []
    assert vllm_checks.digests(llm).sum == check.digest(compared(weights)).sum
    found = vllm_checks.digests(llm).units()
    assert found == check.digest(compared(weights)).units() and len(found) == (14 if kind == "int4" else 0)


def flip(name: str, at: tuple[int, ...], mask: int = 1) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        bits = model.get_parameter(name).data
        bits = bits.view(torch.int16) if bits.element_size() == 2 else bits
        bits[at] ^= mask

    return change


def swap(name: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        stack = model.get_parameter(name).data
        stack.copy_(stack[[1, 0, 2, 3]])

    return change


def stale(name: str, expert: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.get_parameter(name).data[expert] = 0

    return change


QWEN, MIXTRAL = "model.layers.1.mlp.experts", "model.layers.0.block_sparse_moe.experts"
INT4 = "model.layers.1"
# Blocks of 16 rows: flat places in an expert's w13 are [block][column][row of the block].
FAULTS = {
    # 48 rows of gate are padded to 64; up begins at block 4.
    ("qwen2-moe", "up"): (flip(f"{QWEN}.routed_experts.w13_weight", (2, 64 + 17, 5)), [f"{QWEN}.2.up_proj.weight: other elements in rows 21"]),
    ("qwen2-moe", "stale"): (stale(f"{QWEN}.routed_experts.w2_weight", 3), [f"{QWEN}.3.down_proj.weight: other elements in rows 0 to 127"]),
    ("qwen2-moe", "shared"): (
        flip("model.layers.0.mlp.shared_expert.gate_up_proj.weight", (100, 3)),
        ["model.layers.0.mlp.shared_expert.up_proj.weight: other elements in rows 4"],
    ),
    ("mixtral", "swap"): (
        swap(f"{MIXTRAL}.routed_experts.w13_weight"),
        [f"{MIXTRAL}.{e}.{w}.weight: other elements in rows 0 to 63" for e in (0, 1) for w in ("w1", "w3")],
    ),
    ("mixtral", "router"): (
        flip("model.layers.0.block_sparse_moe.gate.weight", (3, 9)),
        ["model.layers.0.block_sparse_moe.gate.weight: other elements in rows 3"],
    ),
    # Block 9 has rows 144 to 159 of q, k and v, or 16 to 31 of k; word 7 of it has rows 24 to 31 of column 3.
    ("int4", "nibble"): (
        flip(f"{INT4}.self_attn.qkv_proj.weight_packed", (9, 7), 0xF00),
        [f"{INT4}.self_attn.k_proj.weight_packed: other elements in rows 26"],
    ),
    ("int4", "scale"): (
        flip(f"{INT4}.mlp.gate_up_proj.weight_scale", (2, 300)),
        [f"{INT4}.mlp.up_proj.weight_scale: other elements in rows 44"],
    ),
}


@pytest.mark.parametrize(("engine", "change", "expected"), [(kind, *FAULTS[kind, fault]) for kind, fault in FAULTS], ids=map(" ".join, FAULTS), indirect=["engine"])
def test_a_fault_is_named(engine: Engine, change: Callable[[Any], None], expected: list[str]) -> None:
    _, llm, weights = engine
    with restored(llm):
        llm.apply_model(change)
        assert sorted(vllm_checks.differences(llm, weights)) == sorted(expected)
    assert vllm_checks.differences(llm, weights) == []


@pytest.mark.parametrize("engine", ["qwen2-moe", "mixtral"], indirect=True)
def test_experts_that_no_kernel_packed(engine: Engine) -> None:
    """As Triton's kernels hold them: a stack of matrices as they are. There is no GPU for these kernels here,
    so that vLLM's packing is taken back."""
    kind, llm, weights = engine

    def unpack(model: Any) -> None:
        from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend

        for name, parameter in model.named_parameters():
            if "routed_experts" in name:
                count, rows, columns = parameter.shape
                blocks = parameter.data.view(count, -1, columns, 16).transpose(2, 3).reshape(count, rows, columns).clone()
                parameter.data.copy_(blocks)
                # From now on the layer would answer wrongly.
                model.get_submodule(name.rpartition(".")[0]).quant_method.unquantized_backend = UnquantizedMoeBackend.TRITON

    def pack(model: Any) -> None:
        from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend

        for module in model.modules():
            if type(module).__name__ == "RoutedExperts":
                module.quant_method.unquantized_backend = UnquantizedMoeBackend.CPU

    with restored(llm):
        llm.apply_model(unpack)
        assert vllm_checks.differences(llm, weights) == []
        name = "model.layers.1.mlp.experts" if kind == "qwen2-moe" else MIXTRAL
        llm.apply_model(flip(f"{name}.routed_experts.w2_weight", (1, 30, 7)))
        leaf = "down_proj" if kind == "qwen2-moe" else "w2"
        assert vllm_checks.differences(llm, weights) == [f"{name}.1.{leaf}.weight: other elements in rows 30"]
        llm.apply_model(pack)


@pytest.mark.parametrize("engine", ["int4"], indirect=True)
def test_a_version_of_int4_units_is_loaded(engine: Engine, tmp_path: Path) -> None:
    """The trainer quantises and sends a delta; the engine lets its kernels pack whole units."""
    _, llm, weights = engine
    new = make("int4", tmp_path, seed=1)
    receiver = sync.Receiver({name: x.clone() for name, x in weights.items()})
    staged = receiver.stage(sync.Sender(weights).delta(new))

    def load(patches: Any) -> None:
        tensors = {name: receiver.weights[name].clone() for name in receiver.weights}
        patches.apply_(tensors)
        llm.apply_model(lambda model: write(model, tensors))

    with restored(llm):
        before = tokens(llm)
        staged.commit(load)
        assert vllm_checks.differences(llm, new) == []
        assert vllm_checks.digests(llm).units() == check.digest(compared(new)).units()
        other = start(tmp_path, worker_extension_cls=WORKER)
        assert tokens(llm) == tokens(other) != before
        # Elements of one version and a scale of another.
        llm.apply_model(lambda model: write(model, new | {f"{INT4}.mlp.down_proj.weight_scale": weights[f"{INT4}.mlp.down_proj.weight_scale"]}))
        lines = vllm_checks.differences(llm, new)
        assert len(lines) == 1 and lines[0].startswith(f"{INT4}.mlp.down_proj.weight_scale: other elements in rows")
    assert vllm_checks.differences(llm, weights) == []


def write(model: Any, tensors: dict[str, Any]) -> None:
    """Writes a checkpoint's tensors into the layers; vLLM's kernels pack them as after loading."""
    fused = model.packed_modules_mapping
    for path, module in model.named_modules():
        parent, _, leaf = path.rpartition(".")
        paths = [f"{parent}.{source}".lstrip(".") for source in fused.get(leaf, [leaf])]
        if vllm_layouts._is_int4_of_the_cpu(module):
            for name in ("weight_packed", "weight_scale"):
                getattr(module, name).data = torch.cat([tensors[f"{one}.{name}"] for one in paths])
            module.quant_method.process_weights_after_loading(module)
        for name, parameter in module._parameters.items():
            if parameter is not None and f"{paths[0]}.{name}" in tensors and not name.startswith("weight_"):
                parameter.data.copy_(torch.cat([tensors[f"{one}.{name}"] for one in paths]))


@pytest.mark.parametrize("engine", ["mixtral"], indirect=True)
def test_layers_that_are_not_known_are_refused(engine: Engine) -> None:
    _, llm, _ = engine

    def ask(model: Any) -> str:
        module = next(m for m in model.modules() if type(m).__name__ == "RoutedExperts")
        kernel = module.quant_method.moe_kernel.fused_experts
        kernel.isa = "amx"
        try:
            vllm_layouts.layout(model)
        except gcodec.InputError as e:
            return str(e)
        finally:
            kernel.isa = "vec"
        return "known"

    assert "the layout of experts for CPU, CPUUnquantizedExperts, is not known" in llm.apply_model(ask)[0]


TWO_RANKS = """
import sys
from pathlib import Path
import vllm
from gcodec.engines import vllm_checks
from models import make

if __name__ == "__main__":
    folder, kind, extra = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    weights = make(kind, folder)
    llm = vllm.LLM(
        model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=2,
        tensor_parallel_size=2, worker_extension_cls="unpacked_worker.Worker", enable_expert_parallel="experts" in extra,
    )
    assert vllm_checks.differences(llm, weights) == []
    name, row = {
        "qwen2-moe": ("model.layers.1.mlp.experts.routed_experts.w2_weight", 1),
        "mixtral": ("model.layers.1.block_sparse_moe.experts.routed_experts.w13_weight", 1),
        "int4": ("model.layers.1.mlp.down_proj.weight_packed", 2),
    }[kind]
    llm.collective_rpc("gcodec_damage", args=(1, name, row))
    print("FOUND", vllm_checks.differences(llm, weights))
"""

TWO = [
    # Experts of 24 rows of 48 on each rank, padded to 32.
    (["qwen2-moe"], "model.layers.1.mlp.experts.1.down_proj.weight"),
    (["mixtral"], "model.layers.1.block_sparse_moe.experts.1.w1.weight"),
    # Expert 1 of the second rank is expert 3.
    (["mixtral", "experts"], "model.layers.1.block_sparse_moe.experts.3.w1.weight"),
    (["int4"], "model.layers.1.mlp.down_proj.weight_packed"),
]


@pytest.mark.parametrize(("arguments", "expected"), TWO, ids=[" ".join(arguments) for arguments, _ in TWO])
def test_a_fault_on_one_of_two_ranks_is_named(tmp_path: Path, arguments: list[str], expected: str) -> None:
    (tmp_path / "two_ranks.py").write_text(TWO_RANKS)
    paths = [str(Path(__file__).parent), str(Path(gcodec.__file__).parents[1])]
    # Threads of two workers on two cores are not bound to them.
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [sys.executable, str(tmp_path / "two_ranks.py"), str(tmp_path / "model"), *arguments]
    run = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600)
    found = f"FOUND ['{expected}: other elements in rows"
    assert found in run.stdout, run.stdout[-2000:] + run.stderr[-4000:]
