"""Rounds of the Rust aggregator of examples/federation and its workers, each in a namespace of its own."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import network

PROGRAM = Path(__file__).parents[3] / "target" / "release" / "gcodec-federation"
PORT = 4747
# Codecs of the workers' gradients of 38,410 elements: sparse updates and a sparse sum, and both dense.
CODECS = ["topk:density=0.02,values=pow2", "dither:levels=8"]
# Bytes of the weights, with which the record of a training begins.
WEIGHTS = 4 * 38_410
# Rounds, and the first ones, in which the windows of connections open.
ROUNDS, FIRST = 16, 4
ROW = ["workers", "mbit", "ms", "codec", "rounds", "seconds", "fastest", "slowest", "update", "sum"]


def measure(world: int, codec: str) -> list[Any]:
    """Returns the row of one training after its codec: rounds, their middle, shortest and longest time, and
    the bytes of an update and of a sum. The aggregator is the machine after the workers."""
    names = [f"w{number}" for number in range(world)]
    address = f"{network.address(world)}:{PORT}"
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.gcu"
        training = ["--rounds", str(ROUNDS), "--codec", codec, "--pace", "0", "--deadline", "600000", "--record", str(record)]
        command = [str(PROGRAM), "aggregator", "--listen", address, "--roster", ",".join(names), *training]
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
        server = subprocess.Popen(["ip", "netns", "exec", network.name(world), *command], **pipe)
        # It says when it listens.
        assert server.stdout is not None
        server.stdout.readline()
        workers = [_worker(number, name, address) for number, name in enumerate(names)]
        ends, update = _follow(server)
        for process in [server, *workers]:
            if process.wait(120) != 0:
                raise RuntimeError(f"{process.args} ended with {process.returncode}")
        total = (record.stat().st_size - WEIGHTS) // ROUNDS
    seconds = [after - before for before, after in zip(ends[FIRST - 1 :], ends[FIRST:], strict=False)]
    times = (f"{one:.6f}" for one in (median(seconds), min(seconds), max(seconds)))
    return [len(seconds), *times, update, total]


def _worker(number: int, name: str, address: str) -> subprocess.Popen[bytes]:
    command = [str(PROGRAM), "worker", "--connect", address, "--name", name]
    return subprocess.Popen(["ip", "netns", "exec", network.name(number), *command], stdout=subprocess.DEVNULL)


def _follow(server: subprocess.Popen[str]) -> tuple[list[float], int]:
    """Returns when each round ended, and the mean bytes of an update, from the lines that the aggregator
    prints."""
    ends, update = [], 0
    assert server.stdout is not None
    for line in server.stdout:
        words = line.split()
        if words[0] == "round" and words[2].startswith("w"):
            ends.append(time.perf_counter())
        elif words[:2] == ["an", "update"]:
            update = int(words[5])
    return ends, update
