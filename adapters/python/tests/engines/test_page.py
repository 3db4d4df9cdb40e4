"""The programs of docs/engines.md run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: `cargo xtask engines` installs it")

PAGE = Path(__file__).parents[4] / "docs" / "engines.md"


def test_the_programs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    # The block of vLLM is what test_vllm.py does.
    programs = [block for block in blocks if "import" in block]
    assert len(programs) == 2
    for number, program in enumerate(programs):
        folder = tmp_path / str(number)
        folder.mkdir()
        out = subprocess.run([sys.executable, "-c", program], cwd=folder, env=os.environ, capture_output=True, text=True)
        assert out.returncode == 0 and "version" in out.stdout, out.stderr
