"""The programs of docs/trainers.md run, where the package of each is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "trainers.md"
PROGRAMS = {name: program for program, name in re.findall(r"```python\n(# (\w+)\.py\n.*?)```", PAGE.read_text(), re.S)}

# Megatron-core puts its buffers on a GPU, by a literal device. Here they go to the host.
ON_HOST = """
import torch
from torch.overrides import TorchFunctionMode


class OnHost(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        if "cuda" in str(keywords.get("device")):
            keywords["device"] = "cpu"
        return function(*arguments, **keywords)


torch.cuda.current_device = lambda: "cpu"
OnHost().__enter__()
"""

# DeepSpeed would compile a reduction in shared memory, which is not used here.
WITHOUT_SHARED_MEMORY = """
import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
"""


def test_every_program_is_run_here() -> None:
    assert set(PROGRAMS) == {"own_loop", "with_deepspeed", "with_megatron", "with_torchft"}


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: `cargo xtask engines` installs it")


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@dataclass
class Run:
    """A running program, whose output goes to a file: a pipe that nobody reads would stop it."""

    process: subprocess.Popen[str]
    output: Path


def torchrun(folder: Path, program: str, processes: int, **variables: str) -> Run:
    port = free_port()
    file, output = folder / f"program-{port}.py", folder / f"{port}.txt"
    file.write_text(program)
    at = ["--nproc-per-node", str(processes), "--master-addr", "127.0.0.1", "--master-port", port]
    command = [sys.executable, "-m", "torch.distributed.run", *at, str(file)]
    own = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **variables}
    with output.open("w") as out:
        environment = {**os.environ, **own}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, text=True)
    return Run(process, output)


def check(running: list[Run]) -> None:
    """Checks that two ranks have learnt, with the same weights at the end."""
    try:
        [run.process.wait(timeout=240) for run in running]
    finally:
        [run.process.kill() for run in running]
    said = "".join(run.output.read_text() for run in running)
    # Two ranks may write to one file: a line of the one can begin before the other's has ended.
    found = re.findall(r"rank \d: weights (\S+) loss ([0-9.]+)", said)
    assert len(found) == 2 and found[0][0] == found[1][0], said
    # Guessing zero has the variance of the target as loss, 3.
    assert max(float(loss) for _, loss in found) < 0.5, said


def test_own_loop(tmp_path: Path) -> None:
    check([torchrun(tmp_path, PROGRAMS["own_loop"], 2)])


def test_deepspeed(tmp_path: Path) -> None:
    need("deepspeed")
    check([torchrun(tmp_path, WITHOUT_SHARED_MEMORY + PROGRAMS["with_deepspeed"], 2)])


def test_megatron(tmp_path: Path) -> None:
    need("megatron")
    check([torchrun(tmp_path, ON_HOST + PROGRAMS["with_megatron"], 2)])


def test_torchft(tmp_path: Path) -> None:
    need("torchft")
    with lighthouse() as address:
        variables = {"TORCHFT_LIGHTHOUSE": address}
        program = PROGRAMS["with_torchft"]
        check([torchrun(tmp_path, program, 1, REPLICA=str(replica), **variables) for replica in range(2)])


@contextmanager
def lighthouse() -> Iterator[str]:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=100)
    try:
        yield server.address()
    finally:
        server.shutdown()
