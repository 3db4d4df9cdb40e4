"""Time and memory of `gcodec` on one large file, next to `cp`, as rows of a Markdown table.

    python3 benches/files.py target/release/gcodec FILE.safetensors [BASE.safetensors]
    python3 benches/files.py target/release/gcodec FILE.safetensors --turns 5  # beside `cp`, in turns
    python3 benches/files.py target/release/gcodec --tensors 1000000    # so many tensors of 8 bytes

Memory is the peak of anonymous pages, sampled every 5 ms (Linux). Each command runs twice, and the second run
counts: the first one fills the page cache. In turns, each run begins after a `sync` and without the file that
it writes, and the cells are medians. The results are written beside FILE and removed.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def anonymous(pid: int) -> int:
    """Returns the anonymous memory of a process in kB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def measure(command: list[str]) -> tuple[float, ...]:
    """Runs a command. Returns its wall, user and system seconds, and the peak of its memory in kB."""
    before, start, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        time.sleep(0.005)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return wall, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, peak


def row(name: str, cells: tuple[float, ...]) -> None:
    """Prints a row of the table."""
    wall, user, system, peak = cells
    print(f"| {name} | {wall:.1f} s | {user:.1f} s | {system:.1f} s | {peak / 1000:.0f} MB |", flush=True)


def write_many(tensors: int, path: Path) -> None:
    """Writes a file of tensors of four bf16 elements."""
    entry = '"layers.%d.expert.%d.weight":{"dtype":"BF16","shape":[4],"data_offsets":[%d,%d]}'
    entries = (entry % (i // 10, i % 10, 8 * i, 8 * i + 8) for i in range(tensors))
    header = f"{{{','.join(entries)}}}".encode()
    header += b" " * (-len(header) % 8)
    # Near 1, and finite.
    elements = ((0x3F80_3F80_3F80_3F80 ^ i % 64).to_bytes(8, "little") for i in range(tensors))
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(elements))


def main() -> None:
    in_turns = len(sys.argv) == 5 and sys.argv[3] == "--turns"
    if not in_turns and not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    print("| command | wall | user | system | memory |\n|---|---:|---:|---:|---:|")
    if in_turns:
        turns(sys.argv[1], sys.argv[2], int(sys.argv[4]))
    elif sys.argv[2] == "--tensors":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "many.safetensors"
            write_many(int(sys.argv[3]), path)
            table(sys.argv[1], str(path), [])
    else:
        table(sys.argv[1], sys.argv[2], sys.argv[3:])


def turns(gcodec: str, file: str, count: int) -> None:
    """Measures commands that write a large file, in turns."""
    whole, copy = f"{file}.whole.gcu", f"{file}.copy.safetensors"
    commands = {
        "`cp`": (copy, ["cp", file, copy]),
        "`cp`, and `sync` of the copy": (copy, ["sh", "-c", 'cp "$0" "$1" && sync "$1"', file, copy]),
        "`encode --codec lossless`": (whole, [gcodec, "encode", "-q", file, "-o", whole, "--codec", "lossless"]),
        "`decode` of it": (copy, [gcodec, "decode", "-q", whole, "-o", copy]),
    }
    cells: dict[str, list[tuple[float, ...]]] = {name: [] for name in commands}
    try:
        for _ in range(count):
            for name, (result, command) in commands.items():
                Path(result).unlink(missing_ok=True)
                os.sync()
                cells[name].append(measure(command))
        for name, runs in cells.items():
            row(name, tuple(map(statistics.median, zip(*runs))))
    finally:
        for path in (whole, copy):
            Path(path).unlink(missing_ok=True)


def table(gcodec: str, file: str, bases: list[str]) -> None:
    """Measures all commands."""
    whole, delta, copy = (f"{file}.{name}" for name in ("whole.gcu", "delta.gcu", "copy.safetensors"))
    new, store, residuals = f"{file}.new.safetensors", f"{file}.store", f"{file}.residuals.safetensors"
    feedback = [gcodec, "encode", "-q", file, "-o", new, "--codec", "int8", "--feedback", residuals]
    rows = [
        ("`cp`", ["cp", file, copy]),
        ("`encode --codec lossless`", [gcodec, "encode", "-q", file, "-o", whole, "--codec", "lossless"]),
        ("`decode` of it", [gcodec, "decode", whole, "-o", copy]),
        ("`diff` of it with the file", [gcodec, "diff", file, whole]),
        ("`diff` of it with itself", [gcodec, "diff", whole, whole]),
        ("`encode --codec int8 --feedback`", feedback),
        ("`bench --codec int8`", [gcodec, "bench", file, "--codec", "int8", "--runs", "2"]),
    ]
    for base in bases:
        encode = [gcodec, "encode", "-q", file, "-o", delta, "--codec", "delta", "--base", base]
        rows += [
            ("`encode --codec delta`", encode),
            ("`decode` of the delta", [gcodec, "decode", delta, "-o", copy, "--base", base]),
            ("`audit` of the delta", [gcodec, "audit", delta, "--base", base]),
            ("`publish` of the base", [gcodec, "publish", "-q", store, base]),
            ("`pull` of it", [gcodec, "pull", "-q", store, "-o", copy]),
            ("`publish` of the file", [gcodec, "publish", "-q", store, file]),
            ("`publish --base` of the file", [gcodec, "publish", "-q", store, file, "--base", copy]),
            ("`pull` of the file", [gcodec, "pull", "-q", store, "-o", new]),
            ("`pull --base` of the file", [gcodec, "pull", "-q", store, "-o", new, "--base", copy]),
            ("`fold` of the delta", [gcodec, "fold", "-q", store, "1", "2"]),
        ]
    # What a command of a store has written, so that its second run writes it again.
    second = f"*/{2:020}*"
    written = {"`publish` of the base": "*/*", "`publish` of the file": second, "`publish --base` of the file": second}
    written["`fold` of the delta"] = "*/*-f[0-9]*-*"
    try:
        for name, command in rows:
            for _ in range(2):
                for path in Path(store).glob(written.get(name, "none")):
                    path.unlink()
                cells = measure(command)
            row(name, cells)
    finally:
        shutil.rmtree(store, ignore_errors=True)
        for path in (whole, delta, copy, new, residuals):
            if os.path.exists(path):
                os.remove(path)


if __name__ == "__main__":
    main()
