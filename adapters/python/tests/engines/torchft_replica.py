"""One replica of test_torchft.py: trains under torchft, and writes what it gave, got and kept.

    python torchft_replica.py REPLICA FOLDER WHAT

WHAT: `discard`, to report an error in the eighth step, which is then repeated; or `die`, to end there.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torchft

import gcodec
import gcodec.engines.torchft

STEPS, EVENT = 16, 8


def main(replica: int, folder: Path, what: str) -> None:
    torch.set_num_threads(1)
    gcodec.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 20)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = torchft.ProcessGroupGloo(timeout=timedelta(seconds=10))
    manager = torchft.Manager(
        pg=group,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), sgd.load_state_dict(state["sgd"])),
        state_dict=lambda: {"model": model.state_dict(), "sgd": sgd.state_dict()},
        min_replica_size=2,
        replica_id=f"replica_{replica}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    optimizer = torchft.Optimizer(manager, sgd)
    average = gcodec.engines.torchft.Average(manager, group, model, gcodec.TopK(density=0.05))
    totals = [[torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()] for _ in range(2)]
    discarded, unchanged, kept = 0, True, average.state_dict()
    torch.manual_seed(1 + replica)
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        given = [p.grad.double() for p in model.parameters()]
        average()
        if not manager.is_participating():
            # A replica that gets its parameters from another one gives nothing.
            given = [torch.zeros_like(gradient) for gradient in given]
        got = [p.grad.double() for p in model.parameters()]
        step = manager.current_step()
        event = step == EVENT and not discarded
        if event and what == "die" and replica == 1:
            os._exit(1)
        if event and what == "discard":
            manager.report_error(RuntimeError("a discarded step"))
            discarded += 1
        optimizer.step()
        if manager.current_step() > step:
            for total, part in zip(totals, (given, got), strict=True):
                for tensor, more in zip(total, part, strict=True):
                    tensor += more
        else:
            unchanged = all(torch.equal(tensor, kept[name]) for name, tensor in average.state_dict().items())
        kept = average.state_dict()
    result = {
        "given": totals[0],
        "got": totals[1],
        "kept": [kept[name].double() for name, _ in model.named_parameters()],
        "weights": [p.detach() for p in model.parameters()],
        "discarded": discarded,
        "unchanged": unchanged,
    }
    torch.save(result, folder / f"{replica}.pt")
    # Its threads may outlive a clean end.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
