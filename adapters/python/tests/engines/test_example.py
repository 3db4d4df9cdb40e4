"""The example of weight sync runs: a killed engine, and one that falls behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: `cargo xtask engines` installs it")
pytest.importorskip("zstandard", reason="zstandard is not installed: `cargo xtask engines` installs it")

PROGRAM = Path(__file__).parents[4] / "examples/weight_sync/run.py"


@pytest.mark.parametrize("way", ["store", "in place"])
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_all_checks_hold(engine: str, way: str) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed: `cargo xtask engines` installs it")
    command = [sys.executable, str(PROGRAM), "--engine", engine, "--steps", "8", *(["--in-place"] if way == "in place" else [])]
    out = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, out.stdout + out.stderr
    checks = [line for line in out.stdout.splitlines() if line.startswith(("ok", "FAILED"))]
    assert len(checks) == (4 if (engine, way) == ("vllm", "store") else 5) and all(line.startswith("ok") for line in checks), out.stdout
    assert len([line for line in out.stdout.splitlines() if "%" in line]) == 8
