"""Replicas of torchft: a discarded step loses nothing, and a replica that dies is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: `cargo xtask engines` installs it")
import torch  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402

PROGRAM = Path(__file__).with_name("torchft_replica.py")


@pytest.fixture
def lighthouse() -> Iterator[str]:
    server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=100, heartbeat_timeout_ms=1000)
    yield server.address()
    server.shutdown()


def start(replica: int, folder: Path, what: str, lighthouse: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(PROGRAM), str(replica), str(folder), what]
    with (folder / f"{replica}.txt").open("a") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out)


def ends(running: list[subprocess.Popen[bytes]], folder: Path) -> list[dict[str, Any]]:
    """Returns what both replicas wrote."""
    try:
        [process.wait(timeout=200) for process in running]
    finally:
        [process.kill() for process in running]
    files = [folder / f"{replica}.pt" for replica in range(2)]
    assert all(file.exists() for file in files), "\n".join(file.with_suffix(".txt").read_text() for file in files)
    return [torch.load(file) for file in files]


def test_a_discarded_step_loses_nothing(tmp_path: Path, lighthouse: str) -> None:
    one, two = ends([start(replica, tmp_path, "discard", lighthouse) for replica in range(2)], tmp_path)
    assert one["discarded"] == two["discarded"] == 1 and one["unchanged"] and two["unchanged"]
    for number in range(2):
        assert torch.equal(one["weights"][number], two["weights"][number])
        assert torch.equal(one["got"][number], two["got"][number])
        mean = (one["given"][number] + two["given"][number] - one["kept"][number] - two["kept"][number]) / 2
        assert float((mean - one["got"][number]).norm() / mean.norm()) < 1e-5


def test_a_replica_that_dies_is_replaced(tmp_path: Path, lighthouse: str) -> None:
    first, dying = (start(replica, tmp_path, "die", lighthouse) for replica in range(2))
    assert dying.wait(timeout=200) == 1
    one, two = ends([first, start(1, tmp_path, "go on", lighthouse)], tmp_path)
    for number in range(2):
        assert torch.equal(one["weights"][number], two["weights"][number])
