"""Code shared by the Python workers: connection, digits, and both streams. `README.md` has the protocol."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gcodec

BATCH = 64
PATIENCE = 120.0
# Limits for the aggregator's stream: this network's tensors take 154 KB.
LIMITS = gcodec.Limits(
    max_frame_bytes=1 << 20, max_tensors=16, max_elements=1 << 18, max_alloc_bytes=8 << 20, max_definitions=4
)


def shard(number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns pixels from 0 to 1, and labels, of every `count`-th digit that is not for the test."""
    file = Path(__file__).resolve().parents[2] / "tools/study/digits/digits.u8"
    records = np.fromfile(file, np.uint8).reshape(-1, 65)
    records = records[np.arange(len(records)) % 5 != 4][number::count]
    return records[:, :64].astype(np.float32) / 16, records[:, 64].astype(np.int64)


def train(
    program: str,
    start: Callable[[gcodec.Update], None],
    gradient: Callable[[np.ndarray, np.ndarray], tuple[float, dict[str, Any]]],
    subtract: Callable[[gcodec.Update], None],
    weights: Callable[[], dict[str, Any]],
) -> None:
    """Trains until the aggregator ends its stream.

    `start` takes the first weights. `gradient` returns the loss of a batch and its gradient by tensor name.
    `subtract` subtracts a step from the weights, each element in one rounded operation. `weights` returns the
    weights. All tensors are the library's own.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", default="127.0.0.1:4747", help="address of the aggregator")
    parser.add_argument("--name", required=True, help="this worker's name on the roster")
    arguments = parser.parse_args()
    host, port = arguments.connect.rsplit(":", 1)
    # Compiles the gradient before the other workers wait for this one.
    pixels, labels = shard(0, 1)
    gradient(pixels[:BATCH], labels[:BATCH])
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer = gcodec.Writer(connection, index=False)
        writer.metadata({"name": arguments.name, "program": program})
        reader = gcodec.Reader(connection, limits=LIMITS, until_end=True)
        feedback = gcodec.Feedback()
        said = reader.metadata
        sender = world = 0
        names: list[str] = []
        for update in reader:
            if not names:
                sender, world = int(said["sender"]), int(said["world"])
                pixels, labels = shard(int(said["shard"]), int(said["shards"]))
                start(update)
                # The aggregator's manifest gives the names and their order: JAX sorts them.
                names = list(update)
            else:
                subtract(update)
            # Step `n` subtracted from the weights of round `n` gives the weights of round `n + 1`.
            step = update.header.step + (update.header.reduction != "none")
            rows: np.ndarray = (step * BATCH + np.arange(BATCH)) % len(labels)
            loss, tree = gradient(pixels[rows], labels[rows])
            if step % 50 == 0:
                print(f"round {step}: loss {loss:.4f} on {BATCH} digits of {len(labels)}")
            codec = f"{said['codec']},seed={step * world + sender}"
            header = gcodec.UpdateHeader(step=step, sender=sender, world=world)
            writer.write({name: tree[name] for name in names}, codec, feedback=feedback, header=header)
        if not names:
            raise SystemExit(f"the aggregator refused: {said.get('refused', 'it sent no weights')}")
        writer.metadata({"says": "weights"})
        tree = weights()
        writer.write({name: tree[name] for name in names}, "raw", header=gcodec.UpdateHeader(sender=sender))
        writer.close()
