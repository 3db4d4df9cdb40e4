"""The programs of docs/engines.md run, where the package of each is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "engines.md"
PROGRAMS = {name: program for program, name in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", PAGE.read_text(), re.S)}
NEEDS = {
    "any.py": "torch",
    "streams.py": "torch",
    "verl_engine.py": "verl",
    "follow.py": "transformers",
    "grpo.py": "trl",
    "slime_hooks.py": "safetensors",
    "folders.py": "safetensors",
    "sparse_patches.py": "torch",
}


def test_every_program_is_run_here() -> None:
    # The block of vLLM is what test_vllm.py does; those of an encoding, what test_versions.py does.
    assert set(PROGRAMS) == set(NEEDS)


@pytest.mark.parametrize("name", list(NEEDS))
def test_program(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed: `cargo xtask engines` installs it")
    out = subprocess.run([sys.executable, "-c", PROGRAMS[name]], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert out.returncode == 0 and "version" in out.stdout, out.stderr
