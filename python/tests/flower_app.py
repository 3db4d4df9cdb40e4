"""A Flower app that learns digits, for test_flower.py: in one process, and by the deployment engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from digits import digits
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import gcodec
import gcodec.flower

CLIENTS, ROUNDS = 2, 4
RULES = {"*.bias": "lossless", "*.running_*": gcodec.Int8(group=16)}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    # Normalisation has running means and a count of batches, an integer without dimensions.
    return torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.BatchNorm1d(48), torch.nn.ReLU(), torch.nn.Linear(48, 10)
    )


def client_app(*mods: Any) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        part = int(context.node_config["part"])
        pixels, labels, _, _ = (torch.from_numpy(x) for x in digits())
        pixels, labels = pixels[part::CLIENTS], labels[part::CLIENTS]
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model.train()
        for first in range(0, len(labels), 32):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pixels[first : first + 32]), labels[first : first + 32])
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(labels), "loss": float(loss.detach())})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        correct, count = score(message.content["arrays"])
        metrics = MetricRecord({"num-examples": count, "correct": correct / count})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def score(arrays: ArrayRecord) -> tuple[int, int]:
    """How many of the digits that were not trained on are read right, and of how many."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    model.eval()
    _, _, pixels, labels = (torch.from_numpy(x) for x in digits())
    with torch.no_grad():
        return int((model(pixels).argmax(1) == labels).sum()), len(labels)


def initial() -> ArrayRecord:
    return ArrayRecord(network().state_dict())


# The deployment engine's: it finds them by these names.
client = client_app(gcodec.flower.mod(gcodec.TopK(density=0.05), rules=RULES))
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = gcodec.flower.Compressed(FedAvg(), gcodec.Int8(group=64), rules={"*.bias": "lossless"})
    result = strategy.start(grid=grid, initial_arrays=initial(), num_rounds=2)
    correct, count = score(result.arrays)
    Path(os.environ["GCODEC_TEST_RESULT"]).write_text(f"{correct} {count} {len(result.train_metrics_clientapp)}")
