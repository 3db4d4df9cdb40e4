"""The type stubs match the native module, and the package passes a strict type check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gcodec

SETTINGS = Path(__file__).parents[1] / "pyproject.toml"


def run(*arguments: str, cwd: Path) -> None:
    environment = {**os.environ, "MYPY_CACHE_DIR": str(cwd / ".mypy_cache")}
    out = subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


def test_the_stubs_are_the_modules(tmp_path: Path) -> None:
    # CPython before 3.12 does not show the buffer protocol of a class.
    unseen = tmp_path / "unseen"
    unseen.write_text("gcodec._native.Encoded.__buffer__\n")
    arguments = ("--allowlist", str(unseen), "--ignore-unused-allowlist")
    run("mypy.stubtest", "gcodec._native", *arguments, cwd=tmp_path)


def test_the_package_is_typed(tmp_path: Path) -> None:
    package = Path(gcodec.__file__).parent
    assert (package / "py.typed").exists() and (package / "_native.pyi").exists()
    run("mypy", "--config-file", str(SETTINGS), "-p", "gcodec", cwd=tmp_path)


def test_a_program_is_checked_against_it(tmp_path: Path) -> None:
    right = tmp_path / "right.py"
    right.write_text(
        "import functools\nimport gcodec\n"
        "data: bytes = gcodec.encode({}, gcodec.TopK(k=3, values='bf16'))\n"
        "encode = functools.partial(gcodec.encode, rules={'b': 'raw'})\n"
        "encode({}, 'topk', feedback=gcodec.Feedback(), order='name')\n"
        "options: gcodec.Options = {'rules': {'b': 'raw'}}\n"
        "gcodec.encode({}, 'topk', **options)\n"
        "for update in gcodec.Reader('x'):\n    step: int = update.header.step\n    shape: tuple[int, ...] = update['w'].shape\n"
    )
    run("mypy", "--strict", str(right), cwd=tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import functools\nimport gcodec\ngcodec.TopK(densty=3)\ngcodec.decode(b'', framework='keras')\n"
        "gcodec.encode({}, 'topk', rule={})\ngcodec.encode({}, 'topk', non_finite='ignore')\n"
        "functools.partial(gcodec.encode, rule={})\n"
    )
    out = subprocess.run([sys.executable, "-m", "mypy", str(wrong)], cwd=tmp_path, capture_output=True, text=True)
    assert "Found 5 errors" in out.stdout, out.stdout
