"""A Flower app that learns digits, for test_flower.py: in one process, in the deployment engine and in the
simulation engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from digits import digits
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import gcodec
import gcodec.engines.flower

CLIENTS, ROUNDS = 2, 4
RULES = {"*.bias": "lossless", "*.running_*": gcodec.Int8(group=16)}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    # Normalisation adds running means, and a count of batches, an integer without dimensions.
    return torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.BatchNorm1d(48), torch.nn.ReLU(), torch.nn.Linear(48, 10)
    )


def client_app(*mods: Any) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        # The simulation engine assigns parts to its nodes.
        node = context.node_config
        part, parts = int(node.get("part", node.get("partition-id"))), int(node.get("num-partitions", CLIENTS))
        pixels, labels, _, _ = (torch.from_numpy(x) for x in digits())
        pixels, labels = pixels[part::parts], labels[part::parts]
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model.train()
        for first in range(0, len(labels), 32):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pixels[first : first + 32]), labels[first : first + 32])
            loss.backward()
            optimizer.step()
        rounds = context.state.config_records.get("gcodec", {}).get("rounds", 0)
        metrics = MetricRecord({"num-examples": len(labels), "loss": float(loss.detach()), "compressed-before": rounds})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        correct, count = score(message.content["arrays"])
        metrics = MetricRecord({"num-examples": count, "correct": correct / count})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def score(arrays: ArrayRecord) -> tuple[int, int]:
    """Returns the number of test digits that are classified correctly, and their total."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    model.eval()
    _, _, pixels, labels = (torch.from_numpy(x) for x in digits())
    with torch.no_grad():
        return int((model(pixels).argmax(1) == labels).sum()), len(labels)


def initial() -> ArrayRecord:
    return ArrayRecord(network().state_dict())


def compressed(plain: FedAvg | None = None) -> gcodec.engines.flower.Compressed:
    return gcodec.engines.flower.Compressed(plain or FedAvg(), gcodec.Int8(group=64), rules={"*.bias": "lossless"})


COMPRESS = gcodec.engines.flower.mod(gcodec.TopK(density=0.1, values="bf16"), rules=RULES)

# The engines find apps by name. The deployment engine uses these.
client = client_app(COMPRESS)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    # The engine starts a process for each message, which imports PyTorch: the simulation engine evaluates.
    result = compressed(FedAvg(fraction_evaluate=0.0)).start(grid=grid, initial_arrays=initial(), num_rounds=2)
    correct, count = score(result.arrays)
    Path(os.environ["GCODEC_TEST_RESULT"]).write_text(f"{correct} {count} {len(result.train_metrics_clientapp)}")


# The simulation engine uses these: plain FedAvg, then with compression, on the same nodes.
def only_if_asked(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    if message.content["config"].get("plain", False):
        return call_next(message, context)
    return COMPRESS(message, context, call_next)


class Traffic:
    """Traffic of a grid: bytes of arrays, their types, and the kinds of support and values of the biases."""

    def __init__(self, grid: Grid) -> None:
        self.down, self.up = 0, 0
        self.stypes: set[str] = set()
        self.biases: set[str] = set()
        self._send = grid.send_and_receive
        grid.send_and_receive = self._counting  # type: ignore[method-assign]
        self._grid = grid

    def _counting(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        self.down += sum(map(self._look, messages))
        replies = list(self._send(messages, timeout=timeout))
        self.up += sum(map(self._look, replies))
        return replies

    def _look(self, message: Message) -> int:
        records = message.content.array_records.values()
        for array in (array for record in records for array in record.values()):
            self.stypes.add(array.stype)
            if array.stype == gcodec.engines.flower.STYPE:
                report = gcodec.inspect(array.data)
                assert report.ok and len(array.data) == report.bytes
                (update,) = report.updates
                self.biases |= {f"{t.support} x {t.values}" for t in update.tensors if t.name.endswith(".bias")}
        return sum(record.count_bytes() for record in records)

    def end(self) -> dict[str, Any]:
        self._grid.send_and_receive = self._send  # type: ignore[method-assign]
        return {"down": self.down, "up": self.up, "stypes": sorted(self.stypes), "biases": sorted(self.biases)}


either = client_app(only_if_asked)
comparison = ServerApp()


@comparison.main()
def compare(grid: Grid, context: Context) -> None:
    report = {}
    for name, strategy in {"plain": FedAvg(), "compressed": compressed()}.items():
        traffic, config = Traffic(grid), ConfigRecord({"plain": name == "plain"})
        result = strategy.start(
            grid=grid, initial_arrays=initial(), num_rounds=ROUNDS, train_config=config, evaluate_config=config
        )
        right, count = score(result.arrays)
        before = [metrics["compressed-before"] for _, metrics in sorted(result.train_metrics_clientapp.items())]
        evaluations = len(result.evaluate_metrics_clientapp)
        report[name] = {"right": right, "count": count, "before": before, "evaluations": evaluations, **traffic.end()}
    Path(os.environ["GCODEC_TEST_RESULT"]).write_text(json.dumps(report))
