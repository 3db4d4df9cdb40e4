"""`examples/federation`: PyTorch, JAX and Rust train one network together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gcodec


def test_three_libraries_train_one_network(command: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    program = os.environ.get("GCODEC_FEDERATION")
    if program is None or not Path(program).exists():
        pytest.skip("no federation example: set GCODEC_FEDERATION to target/debug/gcodec-federation (`cargo xtask python` does)")
    record = tmp_path / "federation.gcu"
    environment = {**os.environ, "GCODEC_PYTHON": sys.executable, "GCODEC_CLI": command}
    # The program has a time limit for each wait, and checks its own results.
    run = subprocess.run([program, "launch", "--record", record], env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ("torch", "jax", "rust"):
        assert f"{name} has the same weights, bit for bit" in run.stdout
    assert run.stdout.count("\nok  ") == 9, run.stdout
    report = gcodec.inspect(record)
    assert len(report.updates) >= 301
    assert report.metadata["roster"] == "torch jax rust guest"
