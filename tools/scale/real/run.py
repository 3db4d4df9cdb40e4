"""Real exchanges between processes on links of a rate and a latency: times of steps, as CSV.

    python tools/scale/real/run.py [--output FOLDER] [--workers N ..] [--rates MBIT ..] [--latencies MS ..]

Linux, as root, with iproute2 and the Python package of gcodec with torch. Every worker is a process in a
network namespace of its own; see network.py. The gradients are real ones of the public set. A step is an
exchange alone: no compute. FOLDER gets real.csv, one row for each measurement, and parts.csv, what each codec
costs one process alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import network

HERE = Path(__file__).parent
GRADIENTS = Path(os.environ.get("GCODEC_GRADIENTS", HERE.parents[2].parent / "shared" / "gradients"))
FILES = [GRADIENTS / f"resnet_step0200_worker{n}.safetensors" for n in range(4)]
CODECS = ["none", "int8", "natural", "topk:density=0.01", "topk:density=0.001", "sbc:density=0.001", "scalecom:density=0.01"]
# A rate that the machine does not reach: what it carries is measured first.
FREE = 20_000
ROW = ["workers", "mbit", "ms", "codec", "steps", "seconds", "fastest", "slowest", "coding", "sent", "received"]


class Workers:
    """The processes of one training, on a network."""

    def __init__(self, world: int) -> None:
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="eth0")
        self._connections = 0
        self._processes = []
        for rank in range(world):
            command = [sys.executable, str(HERE / "worker.py"), str(rank), str(world), str(FILES[rank % len(FILES)])]
            inside = ["ip", "netns", "exec", network.name(rank), *command]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._processes.append(subprocess.Popen(inside, env=environment, **pipes))

    def connect(self) -> None:
        """Connects the workers anew, as windows of old connections fit the links that they began on."""
        self._connections += 1
        self._ask({"connect": f"tcp://{network.address(0)}:{29500 + self._connections}"})

    def measure(self, codec: str) -> list[dict[str, Any]]:
        """Returns what each worker measured."""
        return self._ask({"codec": codec})

    def _ask(self, what: dict[str, str]) -> list[dict[str, Any]]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()
        return [self._line(process) for process in self._processes]

    def _line(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        if not (line := process.stdout.readline()):
            raise RuntimeError("a worker ended; its message is above")
        return dict(json.loads(line))

    def end(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def row(world: int, mbit: float, ms: float, codec: str, results: list[dict[str, Any]]) -> list[Any]:
    """Returns the row of one measurement. A step is as long as on its slowest worker, and each phase of its
    coding too, as all workers meet after it."""
    steps = [max(of_step) for of_step in zip(*(result["seconds"] for result in results), strict=True)]
    phases = zip(*(result.get("phases", [[0.0]]) for result in results), strict=True)
    coding = [sum(max(of_phase) for of_phase in zip(*of_step, strict=True)) for of_step in phases]
    traffic = [round(median(result.get(key, 0) for result in results)) for key in ("sent", "received")]
    times = (median(steps), min(steps), max(steps), median(coding))
    return [world, mbit, ms, codec, len(steps), *(f"{t:.6f}" for t in times), *traffic]


def parts() -> list[dict[str, Any]]:
    """Returns what each codec costs one process alone."""
    command = [sys.executable, str(HERE / "parts.py"), str(FILES[0]), *CODECS]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def about() -> str:
    """Returns the first line of a file of results."""
    return f"# {date.today()}, {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release().split('-')[0]}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Times real exchanges on shaped links.")
    parser.add_argument("--output", type=Path, default=HERE.parents[2] / "docs" / "scale", help="folder of the results")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 100, 1000], help="megabits per second")
    parser.add_argument("--latencies", type=float, nargs="+", default=[0, 10, 50], help="milliseconds from one machine to another")
    asked = parser.parse_args()
    why = network.problem() or ("" if FILES[0].exists() else f"{GRADIENTS} with the public gradients is missing")
    if why:
        print(f"SKIPPED: real exchanges: {why}")
        return
    asked.output.mkdir(parents=True, exist_ok=True)
    costs = parts()
    with (asked.output / "parts.csv").open("w") as file:
        file.write(about())
        table = csv.DictWriter(file, ["codec", "plain", "update", "values", "encode", "add", "sum"], restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(costs)
    with (asked.output / "real.csv").open("w") as file:
        file.write(about())
        table = csv.writer(file, lineterminator="\n")
        table.writerow(ROW)
        for world in asked.workers:
            with network.Network(world) as net:
                workers = Workers(world)
                free = [(FREE, 0.0), *((FREE, ms) for ms in asked.latencies if ms > 0)][:2]
                for mbit, ms in [*free, *((rate, ms) for rate in asked.rates for ms in asked.latencies)]:
                    net.shape(mbit, ms)
                    workers.connect()
                    for codec in ["small", *(CODECS if mbit != FREE else CODECS[:1])]:
                        measured = row(world, mbit, ms, codec, workers.measure(codec))
                        table.writerow(measured)
                        file.flush()
                        print(*measured, flush=True)
                workers.end()


if __name__ == "__main__":
    main()
