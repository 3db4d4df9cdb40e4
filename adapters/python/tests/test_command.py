"""The package brings the command `gcodec`, with the output and the exit codes of the binary."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import gcodec

MODULE = [sys.executable, "-m", "gcodec"]
SCRIPT = [str(Path(sysconfig.get_path("scripts")) / "gcodec")]


@pytest.fixture
def folder(tmp_path: Path, gradient: np.ndarray) -> Path:
    """A folder with a stream, its tensors, and the stream truncated."""
    np.savez(tmp_path / "w.npz", w=gradient)
    data = gcodec.encode({"w": gradient}, "topk:density=0.02", header=gcodec.UpdateHeader(step=7))
    (tmp_path / "run.gcu").write_bytes(data)
    (tmp_path / "cut.gcu").write_bytes(data[:100])
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--version", 0, "gcodec 1."),
        ("inspect run.gcu", 0, "run.gcu: gcodec 1.0, 1 update, step 7, sender 0, "),
        ("verify run.gcu", 0, "run.gcu: "),
        ("diff w.npz run.gcu", 1, "1 of 1 common tensors differ"),
        ("inspect --no-such run.gcu", 2, "Usage: gcodec inspect [OPTIONS]"),
        ("", 2, "Usage: gcodec [OPTIONS] <COMMAND>"),
        ("verify cut.gcu", 3, "error: cut.gcu: the stream is truncated at byte 0x64"),
        ("inspect missing.gcu", 74, "error: missing.gcu: "),
        # Only a build with all features has these.
        ("completions bash", 0, "complete -F _gcodec"),
        ("log missing", 2, "error: missing: the store has no versions"),
        ("view run.gcu", 2, "error: standard input or output is not a terminal"),
    ],
)
def test_it_is_the_binary(words: str, code: int, said: str, folder: Path) -> None:
    def run(program: list[str]) -> tuple[int, bytes, bytes]:
        done = subprocess.run([*program, *words.split()], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    found = run(MODULE)
    assert found[0] == code and said.encode() in found[1] + found[2], found
    assert run(SCRIPT) == found
    if binary := os.environ.get("GCODEC_CLI"):
        assert run([binary]) == found


def test_a_name_need_not_be_text(folder: Path) -> None:
    name = b"\xff.gcu"
    (folder / os.fsdecode(name)).write_bytes((folder / "run.gcu").read_bytes())
    assert subprocess.run([*MODULE, "verify", "--quiet", name], cwd=folder).returncode == 0


def test_a_closed_pipe_is_no_failure(folder: Path) -> None:
    with subprocess.Popen([*MODULE, "man"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0


def is_being_written(folder: Path, pid: int) -> bool:
    """Whether a process has an unfinished file in a folder: on Linux an open file without a name."""
    links = []
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(link))
    return any(folder.glob("*.tmp")) or any(link.startswith(f"{folder.resolve()}/#") for link in links)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_unfinished_file(number: int, folder: Path) -> None:
    before = sorted(folder.iterdir())
    # It waits for the second input, which never comes: the first is written by then.
    words = ["encode", "w.npz", "-", "-o", "x.gcu", "--codec", "raw"]
    with subprocess.Popen([*MODULE, *words], cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        deadline = time.monotonic() + 20
        while not is_being_written(folder, child.pid):
            assert child.poll() is None and time.monotonic() < deadline, "no temporary file"
            time.sleep(0.01)
        child.send_signal(number)
        # Python itself would print a traceback, and end by the signal.
        assert child.wait() == 130
        assert child.stderr.read() == b""
    assert sorted(folder.iterdir()) == before


def test_the_package_has_its_version() -> None:
    assert gcodec.__version__ == version("gcodec")
