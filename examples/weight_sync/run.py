"""A trainer and two engines on this machine, with a killed engine and one that falls behind.

    python examples/weight_sync/run.py                      # vLLM if it is installed, else transformers
    python examples/weight_sync/run.py --engine transformers --steps 8
    python examples/weight_sync/run.py --in-place           # engines without a second copy of the weights

It prints a row for each step, and checks at the end; it exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gcodec.store import Store

HERE = Path(__file__).parent
QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
}


class Process:
    """A process that prints lines of JSON."""

    def __init__(self, *command: str) -> None:
        environment = os.environ | QUIET
        self.process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        for read in (self._read_lines, self._read_errors):
            threading.Thread(target=read, daemon=True).start()

    def _read_lines(self) -> None:
        for line in self.process.stdout or ():
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def _read_errors(self) -> None:
        self.errors.extend(self.process.stderr or ())

    def ask(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
        except OSError:
            raise SystemExit("".join(self.errors[-20:])) from None

    def having(self, key: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if key in line]

    def until(self, condition: Callable[[], Any], seconds: float = 240) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() not in (None, 0) or time.monotonic() > end:
                raise SystemExit("".join(self.errors[-20:]) or "a process does not go on")
            time.sleep(0.02)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Engine:
    """An inference process, and a client that always has one request to it."""

    def __init__(self, name: str, *options: str) -> None:
        self.name, self.options = name, options
        self.swaps: list[dict[str, Any]] = []
        self.answered = 0
        self.start()

    def start(self) -> None:
        self.process = Process(str(HERE / "serve.py"), *self.options)
        threading.Thread(target=self._client, args=(self.process,), daemon=True).start()

    def _client(self, process: Process) -> None:
        rng, asked = random.Random(self.name), 0
        while process.process.poll() is None:
            answers = len(process.having("answer"))
            if process.having("swap") and answers == asked:
                process.ask({"prompt": [rng.randrange(512) for _ in range(8)]})
                asked += 1
            time.sleep(0.01)

    @property
    def version(self) -> int:
        return max((swap["swap"] for swap in self.process.having("swap")), default=0)

    def reaches(self, version: int) -> None:
        self.process.until(lambda: self.version >= version)

    def digest(self) -> str:
        self.process.ask({"digest": True})
        self.process.until(lambda: self.process.having("digest"))
        return str(self.process.having("digest")[-1]["digest"])

    def keep(self) -> None:
        """Keeps what the process reported."""
        self.swaps += self.process.having("swap")
        self.answered += len(self.process.having("answer"))

    def kill(self) -> None:
        self.keep()
        self.process.end()


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--engine", choices=["transformers", "vllm"], default="vllm" if importlib.util.find_spec("vllm") else "transformers")
    args.add_argument("--steps", type=int, default=16, help="at least 8")
    args.add_argument("--in-place", action="store_true", help="streams change the engines' own parameters, in place of a store")
    given = args.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(given, Path(folder))


def run(given: argparse.Namespace, folder: Path) -> int:
    begin, store = time.monotonic(), folder / "store"
    options = ["--store", str(store), "--engine", given.engine]
    if given.engine == "vllm":
        sys.path.insert(0, str(HERE))
        from task import checkpoint

        checkpoint(folder / "checkpoint")
        options += ["--checkpoint", str(folder / "checkpoint")]
    streams = ["--streams", str(folder / "streams")] if given.in_place else []
    options += streams
    trainer = Process(str(HERE / "train.py"), "--store", str(store), *streams)
    a, b = Engine("a", *options), Engine("b", *options)
    try:
        return scene(given, Store(store), trainer, a, b, begin)
    finally:
        for process in (trainer, a.process, b.process):
            process.end()


def scene(given: argparse.Namespace, store: Store, trainer: Process, a: Engine, b: Engine, begin: float) -> int:
    steps = given.steps

    def train(count: int, *followers: Engine) -> None:
        for _ in range(count):
            version = len(trainer.having("version")) + 2
            trainer.ask({})
            trainer.until(lambda version=version: len(trainer.having("version")) > version - 2)
            for engine in followers:
                engine.reaches(version)

    # Version 1 is the checkpoint: both serve it before the first step.
    a.reaches(1)
    b.reaches(1)
    train(2, a, b)
    a.kill()
    train(1, b)
    a.start()
    behind = b.version
    b.process.ask({"follow": False})
    # The trainer goes on while a starts.
    train(steps // 2 - 1)
    a.reaches(behind + 1)
    train(steps - len(trainer.having("version")), a)
    fold, replay = store.fold(behind, steps + 1)
    b.process.ask({"follow": True})
    a.reaches(steps + 1)
    b.reaches(steps + 1)
    digests = a.digest(), b.digest()
    a.keep()
    b.keep()
    rows = trainer.having("version")
    table(rows, a, b)
    rejoined = a.process.having("swap")[0]
    folded = next(swap for swap in b.swaps if swap["swap"] == steps + 1)
    late = [swap for swap in b.swaps if swap["swap"] > behind]
    if given.in_place:
        taken = sum(swap["bytes"] for swap in late)
        caught_up = {f"b stayed at version {behind} and took {len(late)} deltas one by one: {taken:,} bytes": len(late) == steps + 1 - behind}
    else:
        took = folded.get("steps", 1) == 1 and folded.get("bytes", fold) == fold
        caught_up = {f"b stayed at version {behind} and folded {steps + 1 - behind} deltas: {fold:,} bytes for {replay:,}": fold < replay and took}
    checks = {
        f"a was killed and rejoined at version {rejoined['swap']}, from an anchor": rejoined["swap"] > 3,
        **caught_up,
        "both serve the same bits": digests[0] == digests[1],
        f"{a.answered + b.answered} requests were answered meanwhile": a.answered > 0 and b.answered > 0,
    }
    if "steps" in rejoined:
        checks["these are the trainer's bits"] = digests[0] == rows[-1]["digest"]
    print()
    for check, holds in checks.items():
        print(f"{'ok     ' if holds else 'FAILED '} {check}")
    print(f"{time.monotonic() - begin:.0f} seconds")
    return 0 if all(checks.values()) else 1


def table(rows: list[dict[str, Any]], a: Engine, b: Engine) -> None:
    engines = "".join(f" | {engine.name}: since publish   pause" for engine in (a, b))
    print(f"step  reward  changed      bytes   weights/bytes   XOR+zstd/bytes{engines}")
    for row in rows:
        size, columns = row["bytes"], ""
        for engine in (a, b):
            swap = next((swap for swap in engine.swaps if swap["swap"] == row["version"]), None)
            columns += " |                     -       -" if swap is None else f" | {swap['since'] * 1e3:18.0f} ms {swap['pause'] * 1e3:4.0f} ms"
        print(
            f"{row['step']:4}  {row['reward']:6.3f}  {row['changed']:6.2%}  {size:9,}   {row['full'] / size:13.1f}   {row['xor_zstd'] / size:14.2f}{columns}"
        )


if __name__ == "__main__":
    sys.exit(main())
