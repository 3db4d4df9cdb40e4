"""Real exchanges between processes on links of a rate and a latency: times of steps, as CSV.

    python tools/scale/real/run.py [--output FOLDER] [--only PART] [--workers N ..] [--rates MBIT ..]
        [--latencies MS ..] [--codecs SPEC ..] [--gradient FILE] [--compute S] [--bucket MIB]

Linux, as root, with iproute2 and the Python package of gcodec with torch. Every worker is a process in a
network namespace of its own; see network.py. The gradients are real ones of the public set. FOLDER gets:

- parts.csv: what each codec costs one process alone (part `parts`).
- real.csv: exchanges alone, without compute (part `exchange`, 33 minutes).
- more.csv: the same of more codecs, with fewer workers on faster links (part `more`).
- overlap.csv: steps with compute of another device, exchanged after it or during it (part `overlap`).
- aggregator.csv: rounds of the Rust aggregator of examples/federation and its workers (part `aggregator`); it
  needs `cargo build --release -p gcodec-federation`.

Columns: number of workers; rate of a link in Mbit/s; latency from one machine to another in ms; codec; number
of steps; seconds of the step of middle length, the fastest and the slowest; seconds of coding in it; bytes
that a worker sent and received in a step, as gcodec counts them; seconds of compute; number of buckets. The
codec `none` is plain gradients, and `small` an all-gather of 8 bytes. At 20,000 Mbit/s the links limit
nothing.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import aggregator
import network

HERE = Path(__file__).parent
GRADIENTS = Path(os.environ.get("GCODEC_GRADIENTS", HERE.parents[2].parent / "shared" / "gradients"))
FILES = [GRADIENTS / f"resnet_step0200_worker{n}.safetensors" for n in range(4)]
CODECS = [
    "none",
    "int8",
    "natural",
    "topk:density=0.01",
    "topk:density=0.001",
    "sbc:density=0.001",
    "scalecom:density=0.01",
    "scalecom:density=0.001",
]
MORE_CODECS = [
    "raw",
    "lossless",
    "sign",
    "topk:density=0.1",
    "topk:density=0.01,values=pow2",
    "sidco:density=0.001,values=pow2",
    "scalecom:density=0.1",
]
# What is measured with compute.
OVERLAPPED = ["none", "int8", "topk:density=0.01"]
# More codecs, and steps with compute, run with fewer workers on faster links: each takes minutes otherwise.
FEW, FAST = 8, 100
# A rate that the machine does not reach: what it carries is measured first.
FREE = 20_000
ROW = ["workers", "mbit", "ms", "codec", "steps", "seconds", "fastest", "slowest", "coding", "sent", "received"]
OVERLAP_ROW = [*ROW, "compute", "buckets"]


class Workers:
    """The processes of one training, on a network."""

    def __init__(self, world: int, files: list[Path]) -> None:
        # Without a name server, torch warns of each connection.
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="eth0", TORCH_CPP_LOG_LEVEL="ERROR")
        self._connections = 0
        self._processes = []
        for rank in range(world):
            command = [sys.executable, str(HERE / "worker.py"), str(rank), str(world), str(files[rank % len(files)])]
            inside = ["ip", "netns", "exec", network.name(rank), *command]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._processes.append(subprocess.Popen(inside, env=environment, **pipes))

    def connect(self) -> None:
        """Connects the workers anew, as windows of old connections fit the links that they began on."""
        self._connections += 1
        self._ask({"connect": f"tcp://{network.address(0)}:{29500 + self._connections}"})

    def measure(self, codec: str, compute: float = 0.0, bucket: float | None = None) -> list[dict[str, Any]]:
        """Returns what each worker measured: after seconds of compute, or with buckets of so many MiB during
        it."""
        return self._ask({"codec": codec, "compute": compute, "bucket": bucket})

    def _ask(self, what: dict[str, Any]) -> list[dict[str, Any]]:
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


def write_parts(path: Path, asked: argparse.Namespace) -> None:
    """Measures what each codec costs one process alone."""
    command = [sys.executable, str(HERE / "parts.py"), str(asked.files[0]), *CODECS, *MORE_CODECS]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    with path.open("w") as file:
        file.write(about())
        table = csv.DictWriter(file, ["codec", "plain", "update", "values", "encode", "add", "sum"], restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(json.loads(line) for line in lines)
    print(path.read_text(), end="")


def about() -> str:
    """Returns the first line of a file of results."""
    return f"# {date.today()}, {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release().split('-')[0]}\n"


@contextmanager
def written(path: Path, titles: list[str]) -> Iterator[Any]:
    """Gives a function that writes a row to a new file of results, and prints it."""
    with path.open("w") as file:
        file.write(about())
        table = csv.writer(file, lineterminator="\n")
        table.writerow(titles)
        print(*titles)

        def write(*cells: Any) -> None:
            table.writerow(cells)
            file.flush()
            print(*cells, flush=True)

        yield write


def links(asked: argparse.Namespace, free: bool = True) -> list[tuple[float, float]]:
    """Returns the rates and latencies of links, those that the machine does not fill first."""
    first = [(FREE, 0.0), *((FREE, ms) for ms in asked.latencies if ms > 0)][:2]
    return [*(first if free else []), *((rate, ms) for rate in asked.rates for ms in asked.latencies)]


def connected(asked: argparse.Namespace) -> Iterator[tuple[int, float, float, Workers]]:
    """Gives each number of workers on each link: the number, rate and latency, and the workers."""
    for world in asked.workers:
        with network.Network(world) as net:
            workers = Workers(world, asked.files)
            for mbit, ms in links(asked):
                net.shape(mbit, ms)
                workers.connect()
                yield world, mbit, ms, workers
            workers.end()


def exchanges(path: Path, codecs: list[str], asked: argparse.Namespace) -> None:
    """Measures exchanges alone."""
    with written(path, ROW) as write:
        for world, mbit, ms, workers in connected(asked):
            for codec in ["small", *((asked.codecs or codecs) if mbit != FREE else ["none"])]:
                write(*row(world, mbit, ms, codec, workers.measure(codec)))


def overlaps(path: Path, asked: argparse.Namespace) -> None:
    """Measures steps with compute, whose exchange begins after it or during it."""
    with written(path, OVERLAP_ROW) as write:
        for world, mbit, ms, workers in connected(asked):
            for codec in ["small", "none"] if mbit == FREE else ["small"]:
                write(*row(world, mbit, ms, codec, workers.measure(codec)), 0, 1)
            codecs = [] if mbit == FREE else asked.codecs or OVERLAPPED
            for codec, bucket in itertools.product(codecs, (None, asked.bucket)):
                results = workers.measure(codec, asked.compute, bucket)
                write(*row(world, mbit, ms, codec, results), asked.compute, results[0]["buckets"])


def rounds(path: Path, asked: argparse.Namespace) -> None:
    """Measures rounds of the aggregator."""
    if not aggregator.PROGRAM.exists():
        print(f"SKIPPED: rounds of the aggregator: {aggregator.PROGRAM} is missing: cargo build --release -p gcodec-federation")
        return
    with written(path, aggregator.ROW) as write:
        for world in asked.workers:
            with network.Network(world + 1) as net:
                for mbit, ms in [(FREE, 0.0), *links(asked, free=False)]:
                    net.shape(mbit, ms)
                    for codec in asked.codecs or aggregator.CODECS:
                        write(world, mbit, ms, codec, *aggregator.measure(world, codec))


def main() -> None:
    parser = argparse.ArgumentParser(description="Times real exchanges on shaped links.")
    parser.add_argument("--output", type=Path, default=HERE.parents[2] / "docs" / "scale", help="folder of the results")
    parser.add_argument("--only", choices=["parts", "exchange", "more", "overlap", "aggregator"], help="measure this part only")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 100, 1000], help="megabits per second")
    parser.add_argument("--latencies", type=float, nargs="+", default=[0, 10, 50], help="milliseconds from one machine to another")
    parser.add_argument("--codecs", nargs="+", help="codecs, and `none`, instead of those of the part")
    parser.add_argument("--gradient", help="a file of the public set, for all workers, instead of four workers' ones")
    parser.add_argument("--compute", type=float, default=0.3, help="seconds of compute of a step, in the part overlap")
    parser.add_argument("--bucket", type=float, default=1, help="MiB of a bucket that is exchanged during the compute")
    asked = parser.parse_args()
    asked.files = [GRADIENTS / asked.gradient] if asked.gradient else FILES
    why = network.problem() or ("" if asked.files[0].exists() else f"{asked.files[0]} of the public gradients is missing")
    if why:
        print(f"SKIPPED: real exchanges: {why}")
        return
    asked.output.mkdir(parents=True, exist_ok=True)
    wanted = {asked.only} if asked.only else {"parts", "exchange", "more", "overlap", "aggregator"}
    few = argparse.Namespace(**vars(asked))
    few.workers = [world for world in asked.workers if world <= FEW]
    few.rates = [rate for rate in asked.rates if rate >= FAST]
    if "parts" in wanted:
        write_parts(asked.output / "parts.csv", asked)
    if "exchange" in wanted:
        exchanges(asked.output / "real.csv", CODECS, asked)
    if "more" in wanted:
        exchanges(asked.output / "more.csv", MORE_CODECS, few)
    if "overlap" in wanted:
        overlaps(asked.output / "overlap.csv", few)
    if "aggregator" in wanted:
        rounds(asked.output / "aggregator.csv", asked)


if __name__ == "__main__":
    main()
