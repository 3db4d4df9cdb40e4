"""Threads, forks, and the interpreter lock."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gcodec

CODEC = gcodec.TopK(density=0.02, values="bf16")


def numbers(seed: int, count: int = 400_000) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def test_threads_give_the_same_bytes() -> None:
    arrays = [numbers(i) for i in range(6)]
    expected = [gcodec.encode(array, CODEC) for array in arrays]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            assert list(pool.map(lambda array: gcodec.encode(array, CODEC), arrays)) == expected
        decoded = pool.map(gcodec.decode, expected)
        assert all(d["tensor"].size == 400_000 for d in decoded)


def test_one_feedback_for_several_threads_is_consistent() -> None:
    feedback = gcodec.Feedback()
    arrays = {f"t{i}": numbers(i, 60_000) for i in range(8)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: gcodec.encode({item[0]: item[1]}, "topk", feedback=feedback), arrays.items()))
    alone = gcodec.Feedback()
    for name, array in arrays.items():
        gcodec.encode({name: array}, "topk", feedback=alone)
    one, two = feedback.state_dict(), alone.state_dict()
    assert {n: t.tobytes() for n, t in one.items()} == {n: t.tobytes() for n, t in two.items()}


def test_the_interpreter_runs_while_we_code() -> None:
    array = numbers(0, 16_000_000)
    encoded: list[float] = []

    def work() -> None:
        start = time.monotonic()
        gcodec.encode(array, gcodec.Lossless())
        encoded.extend((start, time.monotonic()))

    thread = threading.Thread(target=work)
    thread.start()
    ticks = []
    while thread.is_alive():
        ticks.append(time.monotonic())
        time.sleep(0.001)
    thread.join()
    during = [t for t in ticks if encoded[0] < t < encoded[1]]
    # If the lock were held, this thread could run only before and after the coding, under any load.
    middle = [t for t in during if 0.25 < (t - encoded[0]) / (encoded[1] - encoded[0]) < 0.75]
    assert len(middle) >= 3, (len(during), encoded[1] - encoded[0])


def test_a_forked_process_codes() -> None:
    array = numbers(1)
    expected = gcodec.encode(array, CODEC)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            # Waiting for threads that do not exist in the child would never end.
            signal.alarm(60)
            right = gcodec.encode(array, CODEC) == expected and gcodec.decode(expected)["tensor"].size == array.size
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert gcodec.encode(array, CODEC) == expected


def fork_while_threads_code() -> None:
    array = numbers(2)
    expected = gcodec.encode(array, CODEC)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            gcodec.encode(array, CODEC)

    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os._exit(0 if gcodec.encode(array, CODEC) == expected else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        [thread.join() for thread in threads]


def test_a_fork_while_other_threads_code() -> None:
    # In a process of its own: JAX, which other tests load, has threads that do not survive a fork.
    process = multiprocessing.get_context("spawn").Process(target=fork_while_threads_code)
    process.start()
    process.join()
    assert process.exitcode == 0


def encode_elsewhere(codec: gcodec.Codec, tensor: gcodec.Tensor) -> tuple[bytes, gcodec.Codec]:
    return gcodec.encode(tensor, codec), codec


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_codecs_and_tensors_go_to_other_processes(way: str) -> None:
    array = numbers(3, 50_000)
    tensor = gcodec.decode(gcodec.encode(array, "raw"))["tensor"]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(way)) as pool:
        data, codec = pool.submit(encode_elsewhere, CODEC, tensor).result(timeout=120)
    assert codec == CODEC and data == gcodec.encode(array, CODEC)


def test_the_number_of_threads_is_asked_of_the_environment(tmp_path: Path) -> None:
    program = "import gcodec; print(gcodec.num_threads())"
    environment = {**os.environ, "RAYON_NUM_THREADS": "3"}
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert out.stdout.strip() == "3"


def test_importing_it_imports_no_framework(tmp_path: Path) -> None:
    program = "import sys, gcodec; print([m for m in ('numpy', 'torch', 'jax', 'ml_dtypes') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"
