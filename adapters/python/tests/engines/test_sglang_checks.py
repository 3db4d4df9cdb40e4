"""SGLang's layers and loaders on the CPU: every rank digests its weights, and faults are named."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest
import torch

import gcodec
from gcodec import check
from gcodec.engines import sglang, sglang_checks

if importlib.util.find_spec("sglang") is None:
    pytest.skip("sglang is not installed: `cargo xtask engines` installs it", allow_module_level=True)
from test_vllm import model  # noqa: E402


@pytest.mark.parametrize("world", [1, 2])
def test_faults_of_a_model_are_named(tmp_path: Path, world: int) -> None:
    model(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    paths = [str(Path(__file__).parent), str(Path(gcodec.__file__).parents[1])]
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(paths), sglang_checks.REPORT: str(tmp_path / "report.json"), sglang.CHECKPOINT: str(tmp_path / "model")}
    program = str(Path(__file__).parent / "sglang_ranks.py")
    commands = [[sys.executable, program, str(rank), str(world), port, str(tmp_path / "model")] for rank in range(world)]
    ranks = [subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        printed = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), printed[0][1][-3000:] + printed[-1][1][-3000:]
    cases = [line for line in printed[0][0].splitlines() if line.partition(" ")[0] in ("equal", "bits", "loaded", "refused", "updated", "other", "garbage", "no", "quantised")]
    # With one rank the middle row of q, k and v is the first of k; the second rank of two begins k at 64.
    bits = [f"{name}: other elements" for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight")]
    assert cases[0] == "equal []" and cases[2] == "loaded []"
    assert sorted(literal_eval(cases[1].removeprefix("bits "))) == bits
    # No rank loads what the last one refuses.
    assert cases[3:5] == ["refused []", "updated []"]
    refused = f'rank {world - 1}: tensor "lm_head.weight": the base is not the one'
    assert all(refused in errors for _, errors in printed), [errors[-1500:] for _, errors in printed]
    assert cases[5] == "other ['model.norm.weight: other elements']"
    assert cases[6].startswith("garbage refused: the check takes one tensor of bytes called 'gcodec.digests', and got ['w']")
    assert cases[7].startswith("no digests refused: not the output of `gcodec digest --json`")
    assert cases[8].startswith("quantised refused: model.layers.0.mlp.down_proj.weight: the layout of object is not known")


def test_a_request_has_digests_alone() -> None:
    weights = {"w": torch.randn(300, 400)}
    [(name, data)] = sglang_checks.request(weights)
    assert name == sglang_checks.DIGESTS and data.numel() < 300
    digests = check.Digests.from_json(data.numpy().tobytes())
    assert digests.differences(check.digest(weights)) == []
    assert sglang_checks.request(digests)[0][1].tolist() == data.tolist()
