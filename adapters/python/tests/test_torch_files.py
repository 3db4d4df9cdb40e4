"""The command reads what PyTorch itself writes: checkpoints of several ranks, modules, older formats."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

COMMAND = [os.environ["GCODEC_CLI"]] if "GCODEC_CLI" in os.environ else [sys.executable, "-m", "gcodec"]


def run(folder: Path, *words: str, code: int = 0) -> str:
    """Runs the command; returns what it prints, and its warnings."""
    done = subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def is_equal(folder: Path, a: str, b: str, tensors: int) -> None:
    text = run(folder, "diff", a, b)
    assert f"equal: {tensors} tensor" in text, text


RANKS = """
import os, sys, torch
import torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

def full():
    return {"rows": torch.arange(35.0).reshape(7, 5), "columns": torch.arange(35.0).reshape(7, 5) * 2,
            "few": torch.ones(1), "copies": torch.arange(6.0), "half": torch.arange(8.0).bfloat16(),
            "scalar": torch.tensor(3), "turned": torch.arange(6.0).reshape(2, 3).t(), "complex": torch.ones(2) * 1j}

def main(rank, folder):
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    at = {"rows": Shard(0), "columns": Shard(1), "few": Shard(0), "copies": Replicate()}
    model = {k: distribute_tensor(v, mesh, [at[k]]) if k in at else v for k, v in full().items()}
    dcp.save({"model": model, "step": 40}, checkpoint_id=folder + "/dcp")
    torch.save(model, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1],), 2)
    torch.save({"model": full()}, sys.argv[1] + "/full.pt")
"""


def test_checkpoints_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    subprocess.run([sys.executable, "ranks.py", "."], cwd=tmp_path, check=True, timeout=240)
    is_equal(tmp_path, "dcp", "full.pt", 8)
    listed = run(tmp_path, "inspect", "dcp", "--tensors")
    assert "model.rows" in listed and "2 chunks along dimension 1" in listed, listed
    assert "step 40" in run(tmp_path, "inspect", "dcp")
    run(tmp_path, "encode", "dcp", "-o", "x.gcu", "--codec", "lossless")
    is_equal(tmp_path, "x.gcu", "dcp", 8)
    # A rank's own file has its part, under the tensor's name.
    part = run(tmp_path, "inspect", "rank0.pt", "--tensors")
    assert "rows" in part and "4x5" in part and "one rank's part of 7x5" in part, part
    assert "_local_tensor" not in part and "mesh" not in part, part
    (tmp_path / "dcp" / "__1_0.distcp").unlink()
    rest = run(tmp_path, "inspect", "dcp", "--tensors", code=3)
    assert "the file is not there" in rest and "model.copies" in rest, rest


class Layer(torch.nn.Module):
    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("mean", torch.zeros(2))
        for name, part in parts.items():
            object.__setattr__(self, name, part)


class Config:
    def __init__(self) -> None:
        self.width = 3
        self.itself = self


class Net(torch.nn.Module):
    def __init__(self, layers: list[torch.nn.Module]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)


def parents() -> torch.nn.Module:
    net = Net([Layer(), Layer()])
    for layer in net.layers:
        object.__setattr__(layer, "parent", net)
    return net


def configs() -> torch.nn.Module:
    config = Config()
    return Net([Layer(config=config, again=[config] * 50) for _ in range(20)])


def neighbours() -> torch.nn.Module:
    layers = [Layer() for _ in range(12)]
    for one, other in zip(layers, layers[1:], strict=False):
        object.__setattr__(one, "next", other)
        object.__setattr__(other, "last", one)
    return Net(list(layers))


def tied() -> torch.nn.Module:
    layers = [Layer(), Layer()]
    layers[1].fc.weight = layers[0].fc.weight
    return Net([*layers, layers[0]])


@pytest.mark.parametrize("model", [parents, configs, neighbours, tied])
def test_modules_are_their_state_dicts(model: Any, tmp_path: Path) -> None:
    net = model()
    torch.save(net, tmp_path / "model.pt")
    torch.save(net.state_dict(), tmp_path / "state.pt")
    is_equal(tmp_path, "model.pt", "state.pt", len(net.state_dict()))


def test_formats(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).eval()
    state = net.state_dict()
    torch.save(state, tmp_path / "new.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(state, tmp_path / "protocol.pt", _use_new_zipfile_serialization=False, pickle_protocol=4)
    torch.jit.save(torch.jit.script(net), tmp_path / "script.pt")
    torch.export.save(torch.export.export(net, (torch.ones(2, 2),)), tmp_path / "e.pt2")
    for name in ("old.pt", "protocol.pt", "script.pt", "e.pt2"):
        is_equal(tmp_path, name, "new.pt", len(state))
    for name, new in (("two.pt", True), ("two_old.pt", False)):
        with (tmp_path / name).open("ab") as file:
            for value in (1.0, 2.0):
                torch.save({"w": torch.full((3,), value)}, file, _use_new_zipfile_serialization=new)
        assert "one after another" in run(tmp_path, "inspect", name, code=3)


def test_tensors_of_every_form(tmp_path: Path) -> None:
    hooked = torch.nn.Parameter(torch.ones(3))
    hooked.tag = "x"
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    torch.save(
        {
            "expanded": torch.arange(3).expand(4, 3),
            "unfolded": torch.arange(10.0).unfold(0, 4, 1),
            "few": torch.arange(1000.0)[7:9],
            "hooked": hooked,
            "negative": conjugate.imag,
            "": torch.ones(2),
        },
        tmp_path / "a.pt",
    )
    torch.save(
        {
            "expanded": torch.arange(3).repeat(4, 1),
            "unfolded": torch.arange(10.0).unfold(0, 4, 1).contiguous(),
            "few": torch.tensor([7.0, 8.0]),
            "hooked": torch.ones(3),
            "negative": torch.tensor([-2.0, 1.0]),
            "5": torch.ones(2),
        },
        tmp_path / "b.pt",
    )
    is_equal(tmp_path, "a.pt", "b.pt", 6)
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    large = torch.zeros(1).expand(1 << 20, 1 << 20)
    torch.save({"w": jagged, "c": conjugate, "large": large}, tmp_path / "odd.pt")
    text = run(tmp_path, "inspect", "odd.pt", "--tensors")
    for part in ("w.values", "w.offsets", "complex64", "save a contiguous copy"):
        assert part in text, text
    torch.save(torch.ones(2), tmp_path / "bare.pt")
    assert "\ntensor " in run(tmp_path, "inspect", "bare.pt", "--tensors")
