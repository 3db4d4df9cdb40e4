"""Runs the blocks of Python in docs/python.md, and the first ones of docs/checkpoints.md and both READMEs."""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT

GUIDE = ROOT / "docs/python.md"


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = blocks(GUIDE)
NAMED = {block.partition("\n")[0][2:]: block for block in BLOCKS if block.startswith("# ")}


def test_every_block_is_run_here() -> None:
    assert set(NAMED) == {"ddp.py", "amp.py", "sharded.py", "diloco.py", "several.py", "client_app.py", "server_app.py"}
    assert len(BLOCKS) > len(NAMED)


def test_blocks_without_a_name_are_one_program() -> None:
    program = "\n".join(block for block in BLOCKS if block not in NAMED.values())
    exec(compile(program, str(GUIDE), "exec"), {})


def test_the_quick_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program = blocks(ROOT / "README.md")[0]
    assert len(program.splitlines()) == 10, program
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [f"step {step} kept 1200" for step in range(3)], said
    assert "3 updates, with an index" in said[3]


def test_the_first_lines_of_the_packages_own_page(gradient: np.ndarray) -> None:
    program, names = blocks(ROOT / "adapters/python/README.md")[0], {"gradient": gradient, "bias": gradient[0]}
    exec(compile(program, "adapters/python/README.md", "exec"), {**names, "tree": {"w": gradient, "b": gradient[0]}})


def test_the_page_on_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, transformers, distributed = blocks(ROOT / "docs/checkpoints.md")
    exec(compile(program, "docs/checkpoints.md", "exec"), {})
    # tests/engines has the models of transformers.
    assert transformers.startswith("# transformers\n") and distributed.startswith("# distributed\n")
    exec(compile(distributed, "docs/checkpoints.md", "exec"), {"state": {"w": torch.ones(3), "step": 4}})
    assert (tmp_path / "checkpoint" / "__0_0.gcu").exists()


def lines(name: str, tmp_path: Path, commands: Iterable[list[str]], prefix: str) -> list[str]:
    """Returns the output lines of a script's processes that begin with `prefix`. Exit codes are ignored."""
    (tmp_path / name).write_text(NAMED[name].replace("9876", str(free_port())))
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    try:
        said = "".join(process.communicate(timeout=240)[0] for process in processes)
    finally:
        [process.kill() for process in processes]
    # Two ranks may write to one pipe: a line of the one can begin before the other's has ended.
    found = sorted(re.findall(rf"{prefix}\d: .*?(?={prefix}\d|$)", said, re.MULTILINE))
    assert len(found) == 2, said
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def torchrun(name: str, tmp_path: Path) -> list[str]:
    at = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return lines(name, tmp_path, [[sys.executable, "-m", "torch.distributed.run", *at, name]], "rank ")


def number(line: str, after: str) -> float:
    found = re.search(rf"{after} (-?[0-9.]+)", line)
    assert found is not None, line
    return float(found[1])


def test_ddp(tmp_path: Path) -> None:
    said = torchrun("ddp.py", tmp_path)
    # Guessing zero has the variance of the target as loss, 3.
    assert all(number(line, "loss") < 0.3 for line in said), said


def test_a_scale_of_the_loss(tmp_path: Path) -> None:
    said = torchrun("amp.py", tmp_path)
    # f16 holds less than 2^16, so that a scale of 2^24 overflows until it has fallen.
    assert all(number(line, "loss") < 0.3 and number(line, "scale") < 2**24 for line in said), said
    assert all(number(line, "skipped") > 0 for line in said), said


def test_sharded(tmp_path: Path) -> None:
    said = torchrun("sharded.py", tmp_path)
    assert all(number(line, "loss") < 0.5 for line in said), said
    assert (tmp_path / "checkpoint" / ".metadata").exists()


def test_diloco(tmp_path: Path) -> None:
    said = torchrun("diloco.py", tmp_path)
    assert all(number(line, "loss") < 0.3 for line in said) and said[0].endswith("10 exchanges"), said
    assert number(said[0], "weights") == number(said[1], "weights")


def test_several_processes_of_jax(tmp_path: Path) -> None:
    said = lines("several.py", tmp_path, [[sys.executable, "several.py", str(i)] for i in range(2)], "process ")
    assert all(number(line, "loss") < 0.3 for line in said), said
    assert number(said[0], "weights") == number(said[1], "weights")


def test_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
    from test_flower import Here

    for name in ("client_app.py", "server_app.py"):
        (tmp_path / name).write_text(NAMED[name])
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    client: Any = importlib.import_module("client_app")
    server: Any = importlib.import_module("server_app")
    server.app(Here(client.app), Context(1, 1, {}, RecordDict(), {}))
    # Guessing zero has the mean square of the target as loss, 4.
    assert number(capsys.readouterr().out, "loss:") < 0.3
