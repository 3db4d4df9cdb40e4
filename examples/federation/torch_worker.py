"""A worker in PyTorch: `python torch_worker.py --connect ADDRESS --name torch`."""

from __future__ import annotations

import numpy as np
import torch
from session import train

import gcodec

torch.set_num_threads(1)


class Network(torch.nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(64, 512)
        self.output = torch.nn.Linear(512, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden(pixels)))


network = Network()


def start(update: gcodec.Update) -> None:
    network.load_state_dict(update.tensors("torch"))


def gradient(pixels: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, torch.Tensor]]:
    network.zero_grad()
    loss = torch.nn.functional.cross_entropy(network(torch.from_numpy(pixels)), torch.from_numpy(labels))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@torch.no_grad()
def subtract(update: gcodec.Update) -> None:
    for name, parameter in network.named_parameters():
        parameter.sub_(update[name].torch())


train(f"PyTorch {torch.__version__}", start, gradient, subtract, network.state_dict)
