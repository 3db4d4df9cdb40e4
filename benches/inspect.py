"""Measures `gcodec inspect` and `verify` on large inputs, which it makes: the table of docs/inspect.md.

    cargo build --release -p gcodec-cli
    python3 benches/inspect.py target/release/gcodec ../shared/gradients

Each row has the processor time and the time of the best of three runs, and the largest memory of any. `--only
WORD` runs the rows with this word. The last column has the processor time of each thread of one run, of
those that took a hundredth of a second or more (Linux). The files take 2 GB in a temporary folder. Needs
Python alone.
"""

import argparse
import json
import multiprocessing
import os
import struct
import subprocess
import tempfile
import time
from pathlib import Path

GRADIENT = "gpt_step0300_worker0.safetensors"
ELEMENTS = 268_000_000


def header(tensors):
    """Returns the beginning of a .safetensors file: tensors are names and shapes of f32."""
    entries, end = {}, 0
    for name, shape in tensors:
        begin, elements = end, 1
        for dim in shape:
            elements *= dim
        end = begin + 4 * elements
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def many(path, count):
    """Writes `count` tensors of 4 elements."""
    head, _ = header((f"layers.{i // 100}.w{i % 100}", [4]) for i in range(count))
    path.write_bytes(head + struct.pack("<4f", 1.0, 0.0, -2.0, 0.5) * count)


def hole(path, count, elements):
    """Writes tensors of zeros that take no place on the disk."""
    head, size = header((f"layers.{i}.weight", [elements]) for i in range(count))
    path.write_bytes(head)
    os.truncate(path, len(head) + size)


def tiled(path, gradient, elements=ELEMENTS):
    """Repeats the elements of a gradient, up to a gigabyte."""
    data = gradient.read_bytes()
    values = data[8 + int.from_bytes(data[:8], "little") :]
    copies = elements * 4 // len(values)
    head, _ = header((f"layers.{i}.weight", [len(values) // 4]) for i in range(copies))
    with path.open("wb") as out:
        out.write(head)
        for _ in range(copies):
            out.write(values)


def apart(function, *arguments):
    """Calls a function in another process: the memory of a program that is started, as the system counts it,
    is at least that of the process that starts it."""
    child = multiprocessing.Process(target=function, args=arguments)
    child.start()
    child.join()
    if child.exitcode != 0:
        raise SystemExit(f"{function.__name__}: exit code {child.exitcode}")


def run(command, out=os.devnull):
    """Runs a command; returns its processor time and time in seconds, and its memory in MB."""
    start = time.monotonic()
    into = [(os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT, 0o644)]
    child = os.posix_spawn(command[0], [str(part) for part in command], os.environ, file_actions=into)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise SystemExit(f"{command}: exit status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - start, usage.ru_maxrss / 1000


def by_thread(command):
    """Runs a command; returns the processor time of each of its threads in seconds, the largest first."""
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            for task in Path(f"/proc/{child.pid}/task").glob("*/stat"):
                try:
                    fields = task.read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                found[task.parent.name] = (int(fields[11]) + int(fields[12])) / ticks
            time.sleep(0.02)
    return sorted((seconds for seconds in found.values() if seconds >= 0.01), reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gcodec", type=Path)
    parser.add_argument("gradients", type=Path)
    parser.add_argument("--only", default="", metavar="WORD")
    args = parser.parse_args()
    tool = args.gcodec.resolve()
    print("| command | threads | CPU s | s | MB | CPU s of each thread |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        made = set()

        def make(name):
            path = folder / name
            if name in made:
                return path
            made.add(name)
            if name == "big.gcu":
                apart(tiled, folder / "big.safetensors", args.gradients / GRADIENT)
                run([tool, "encode", folder / "big.safetensors", "-o", path, "--codec", "lossless", "-q"])
                (folder / "big.safetensors").unlink()
            elif name == "quarter.safetensors":
                apart(tiled, path, args.gradients / GRADIENT, ELEMENTS // 4)
            elif name == "quarter.gcu":
                run([tool, "encode", make("quarter.safetensors"), "-o", path, "--codec", "lossless", "-q"])
            elif name.startswith("hole"):
                hole(path, 300, 8_390_000)
            elif name.startswith("many"):
                apart(many, path, int(path.stem[4:]))
            else:
                header_of, _ = header([("w", [4]), ("b", [4]), ("v", [4]), ("u", [4])])
                one = folder / "one.safetensors"
                one.write_bytes(header_of + struct.pack("<4f", 1.0, 0.0, -2.0, 0.5) * 4)
                run([tool, "encode", *[one] * int(path.stem[5:]), "-o", path, "--codec", "lossless", "-q"])
            return path

        for line, threads in [
            ("decode big.gcu -o -", 1),
            ("verify big.gcu", 1),
            ("verify big.gcu", 2),
            ("inspect --stats big.gcu", 1),
            ("inspect --stats big.gcu", 2),
            ("inspect big.gcu", 1),
            *((f"{of} quarter.{ending}", threads)
                for of, ending in [("verify", "gcu"), ("inspect --stats", "gcu"), ("inspect --stats", "safetensors")]
                for threads in [1, 2]),
            ("inspect hole.safetensors", 1),
            ("inspect many100000.safetensors", 1),
            ("inspect many1000000.safetensors", 1),
            ("inspect steps1000.gcu", 1),
            ("inspect steps10000.gcu", 1),
            ("verify steps1000.gcu", 1),
            ("verify steps10000.gcu", 1),
        ]:
            if args.only not in line:
                continue
            words = [make(word) if "." in word else word for word in line.split()]
            runs = [run([tool, "--threads", threads, *words]) for _ in range(3)]
            cpu, wall, memory = min(r[0] for r in runs), min(r[1] for r in runs), max(r[2] for r in runs)
            each = ", ".join(f"{seconds:.2f}" for seconds in by_thread([tool, "--threads", threads, *words]))
            print(f"| `gcodec {line}` | {threads} | {cpu:.2f} | {wall:.2f} | {memory:.0f} | {each} |", flush=True)


main()
