"""Size and speed of model files and distributed checkpoints: plain, zstd, ZipNN and gcodec, in one run.

    python adapters/python/benches/checkpoints.py train FOLDER SECONDS   # makes the model
    python adapters/python/benches/checkpoints.py models FOLDER [RUNS]
    python adapters/python/benches/checkpoints.py vllm FOLDER [RUNS]
    python adapters/python/benches/checkpoints.py states FOLDER [RUNS]

`train` trains a Qwen2 of 213 million parameters on the bytes of Python's standard library, and saves the
model as f32 and bf16, and the training state. Each measurement is a process of its own; the ways take
turns, and the best of RUNS (default 3) counts. Files are in the page cache, and every weight is copied or
read after loading, since a mapped file is not loaded before. Wall time, processor time of all threads,
and the growth of the peak of the memory of the process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MAIN = Path(__file__)


def size_of(key: str) -> int:
    return int(re.search(key + r":\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


def measured(work: Callable[[], Any]) -> dict[str, float]:
    """Runs `work`, and returns wall and processor seconds, and the growth of the peak memory in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    before, wall, cpu = size_of("VmRSS"), time.perf_counter(), time.process_time()
    kept = work()
    out = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "peak": (size_of("VmHWM") - before) / 1e6}
    del kept
    return out


def best(runs: int, ways: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    """Runs each way in processes that take turns, and returns the least of each number."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, arguments in ways.items():
            out = subprocess.run([sys.executable, MAIN, "one", *arguments], check=True, capture_output=True, text=True)
            found[way].append(json.loads(out.stdout.splitlines()[-1]))
    return {way: {key: min(run[key] for run in all) for key in all[0]} for way, all in found.items()}


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |", flush=True)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# Making the model.


def train(folder: Path, seconds: float) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=18,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for group in optimizer.param_groups:
            group["lr"] = 3e-4 * min(1, (step + 1) / 20)
        batch = torch.stack([data[at : at + 257] for at in torch.randint(len(data) - 257, (4,))])
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(step, round(loss.item(), 3), flush=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / "state.pt")
    model.save_pretrained(folder / "f32")
    model.to(torch.bfloat16).save_pretrained(folder / "bf16")


# Model files.


def zstd_of(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=3).compress(data)


def zipnn_of(dtype: str) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from zipnn import ZipNN
    return ZipNN(bytearray_dtype=dtype, threads=2)


def compress(way: str, dtype: str, file: Path, target: Path) -> None:
    if way == "gcodec":
        from gcodec import _native

        # As the command, without its start and its notes.
        _native.command(["gcodec", "compress", str(file), "-o", str(target), "--force", "-q"])
    elif way == "zstd":
        target.write_bytes(zstd_of(file.read_bytes()))
    elif way == "zipnn":
        target.write_bytes(zipnn_of({"bf16": "bfloat16", "f32": "float32"}[dtype]).compress(bytearray(file.read_bytes())))
    else:
        target.write_bytes(file.read_bytes())


def load(way: str, dtype: str, path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file, and copies them into others, as a model does that is there already."""
    import safetensors.torch

    import gcodec

    if way == "gcodec":
        weights: Any = gcodec.safe_open(path, "pt").items()
    elif way == "plain":
        file = safetensors.safe_open(path, "pt")
        weights = ((name, file.get_tensor(name)) for name in file.offset_keys())
    else:
        import zstandard

        data = path.read_bytes()
        whole = zstandard.ZstdDecompressor().decompress(data) if way == "zstd" else bytes(zipnn_of(dtype).decompress(data))
        weights = safetensors.torch.load(whole).items()
    return {name: torch.empty_like(tensor).copy_(tensor) for name, tensor in weights}


def into(way: str, path: Path) -> dict[str, torch.Tensor]:
    """Loads all tensors at once, as `load_file` does, and reads each."""
    import safetensors.torch

    import gcodec

    found = gcodec.load_file(path) if way == "gcodec" else safetensors.torch.load_file(path)
    for tensor in found.values():
        tensor.view(torch.uint8).reshape(-1)[::4096].sum()
    return found


def given(way: str, path: Path) -> dict[str, float]:
    """Loads all tensors into tensors that are there."""
    import safetensors.torch

    import gcodec

    if way == "gcodec":
        with gcodec.safe_open(path, "pt") as file:
            model = {name: torch.ones_like(tensor) for name, tensor in file.items()}
            taken = measured(lambda: file.get_tensors(out=model))
        return taken
    model = {name: torch.ones_like(tensor) for name, tensor in safetensors.torch.load_file(path).items()}

    def copy() -> None:
        with safetensors.safe_open(path, "pt") as file:
            for name, tensor in model.items():
                tensor.copy_(file.get_tensor(name))

    return measured(copy)


def pretrained(way: str, folder: Path) -> Any:
    from transformers import Qwen2ForCausalLM

    import gcodec.transformers

    if way == "gcodec":
        model = gcodec.transformers.from_pretrained(Qwen2ForCausalLM, folder, dtype="auto")
    else:
        model = Qwen2ForCausalLM.from_pretrained(folder, dtype="auto")
    for weight in model.parameters():
        weight.data.view(torch.uint8).reshape(-1)[::4096].sum()
    return model


def served(folder: str, load_format: str) -> dict[str, float]:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    import vllm
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    taken: dict[str, float] = {}
    load_weights = DefaultModelLoader.load_weights

    def timed(self: Any, model: Any, config: Any) -> None:
        taken.update(measured(lambda: load_weights(self, model, config)))

    DefaultModelLoader.load_weights = timed
    vllm.LLM(
        model=folder, load_format=load_format, skip_tokenizer_init=True, dtype="auto", enforce_eager=True, max_model_len=64, max_num_seqs=2
    )
    return taken


def models(folder: Path, runs: int) -> None:
    plain_files = {dtype: folder / dtype / "model.safetensors" for dtype in ("bf16", "f32")}
    columns = ("MB", "% of plain", "compress, s", "(CPU)", "read and copy, s", "(CPU)", "peak, MB")
    row("model, way", *columns)
    row(*["---"] * (len(columns) + 1))
    for dtype, file in plain_files.items():
        place = folder / f"{dtype}-files"
        place.mkdir(exist_ok=True)
        targets = {way: place / f"model.{way}" for way in ("plain", "zstd", "zipnn", "gcodec")}
        made = best(runs, {way: ["compress", way, dtype, str(file), str(to)] for way, to in targets.items()})
        found = best(runs, {way: ["load", way, dtype, str(path)] for way, path in targets.items()})
        for way, path in targets.items():
            sizes = (path.stat().st_size / 1e6, path.stat().st_size / file.stat().st_size * 100)
            row(f"{dtype}, {way}", *sizes, made[way]["wall"], made[way]["cpu"], found[way]["wall"], found[way]["cpu"], found[way]["peak"])
        shutil.rmtree(place)
    print()
    row("model, call", "plain, s", "gcodec, s", "ratio", "plain, CPU s", "gcodec, CPU s", "plain, peak MB", "gcodec, peak MB")
    row(*["---"] * 8)
    for dtype in plain_files:
        streams = folder / f"{dtype}-streams"
        make_streams(folder / dtype, streams)
        for call, of in (("into given tensors", "given"), ("load_file, touched", "into"), ("transformers", "pretrained")):
            plain, ours = folder / dtype, streams
            if of != "pretrained":
                plain, ours = plain / "model.safetensors", ours / "model.safetensors.gcu"
            compare(f"{dtype}, {call}", best(runs, {"plain": [of, "plain", str(plain)], "gcodec": [of, "gcodec", str(ours)]}))


def vllm_models(folder: Path, runs: int) -> None:
    row("model, call", "plain, s", "gcodec, s", "ratio", "plain, CPU s", "gcodec, CPU s", "plain, peak MB", "gcodec, peak MB")
    row(*["---"] * 8)
    for dtype in ("bf16",):
        streams = folder / f"{dtype}-streams"
        make_streams(folder / dtype, streams)
        ways = {"plain": ["served", str(folder / dtype), "auto"], "gcodec": ["served", str(streams), "gcodec"]}
        compare(f"{dtype}, vLLM, load_weights", best(runs, ways))


def compare(name: str, found: dict[str, dict[str, float]]) -> None:
    plain, ours = found["plain"], found["gcodec"]
    row(name, plain["wall"], ours["wall"], ours["wall"] / plain["wall"], plain["cpu"], ours["cpu"], plain["peak"], ours["peak"])


def make_streams(plain: Path, streams: Path) -> None:
    if not streams.exists():
        subprocess.run([sys.executable, "-m", "gcodec", "compress", plain, "-o", streams], check=True)
        for file in plain.glob("*.json"):
            (streams / file.name).write_bytes(file.read_bytes())


# Training states.


def state_of(folder: Path, dtype: str) -> dict[str, Any]:
    state = torch.load(folder / "state.pt", weights_only=True, mmap=True)
    cast = lambda x: x.to(torch.bfloat16) if dtype == "bf16" and x.numel() > 1 else x.clone()  # noqa: E731
    moments = state["optimizer"]["state"]
    return {
        "model": {name: cast(x) for name, x in state["model"].items()},
        "optimizer": {f"{number}.{name}": cast(x) for number, of in moments.items() for name, x in of.items()},
        "step": state["step"],
    }


def saved(way: str, dtype: str, folder: Path, place: Path) -> dict[str, float]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._extension import ZStandard

    from gcodec.torch.checkpoint import CheckpointWriter

    state = state_of(folder, dtype)
    extensions = [ZStandard()] if way == "zstd" else None
    writer = CheckpointWriter(place, sync_files=False) if way == "gcodec" else dcp.FileSystemWriter(place, sync_files=False, _extensions=extensions)
    return measured(lambda: dcp.save(state, storage_writer=writer, no_dist=True))


def restored(way: str, dtype: str, folder: Path, place: Path) -> dict[str, float]:
    import torch.distributed.checkpoint as dcp

    from gcodec.torch.checkpoint import CheckpointReader

    state = state_of(folder, dtype)
    into: dict[str, Any] = {
        part: {name: torch.full_like(x, 3) for name, x in of.items()} if isinstance(of, dict) else 0 for part, of in state.items()
    }
    reader = CheckpointReader(place) if way == "gcodec" else dcp.FileSystemReader(place)
    taken = measured(lambda: dcp.load(into, storage_reader=reader, no_dist=True))
    same = (torch.equal(x.view(torch.uint8) if x.dim() else x, into[part][name].view(torch.uint8) if x.dim() else into[part][name])
            for part, of in state.items() if isinstance(of, dict) for name, x in of.items())
    assert all(same) and into["step"] == state["step"]
    return taken


def states(folder: Path, runs: int) -> None:
    row("training state, way", "MB", "% of plain", "save, s", "(CPU)", "peak, MB", "load, s", "(CPU)", "peak, MB")
    row(*["---"] * 9)
    for dtype in ("bf16", "f32"):
        sizes: dict[str, int] = {}
        found: dict[str, list[dict[str, dict[str, float]]]] = {way: [] for way in ("plain", "zstd", "gcodec")}
        for _ in range(runs):
            for way in found:
                place = folder / f"state-{dtype}-{way}"
                made = best(1, {way: ["saved", way, dtype, str(folder), str(place)]})[way]
                back = best(1, {way: ["restored", way, dtype, str(folder), str(place)]})[way]
                sizes[way] = bytes_in(place)
                found[way].append({"save": made, "load": back})
                shutil.rmtree(place)
        for way, all_runs in found.items():
            least = [min(run[what][key] for run in all_runs) for what in ("save", "load") for key in ("wall", "cpu", "peak")]
            row(f"{dtype}, {way}", sizes[way] / 1e6, sizes[way] / sizes["plain"] * 100, *least)


def one(what: str, *arguments: str) -> None:
    """Runs one measurement, and prints its numbers."""
    paths = [Path(argument) for argument in arguments]
    match what:
        case "compress":
            taken = measured(lambda: compress(arguments[0], arguments[1], paths[2], paths[3]))
        case "load":
            paths[2].read_bytes()
            taken = measured(lambda: load(arguments[0], arguments[1], paths[2]))
        case "into":
            paths[1].read_bytes()
            taken = measured(lambda: into(arguments[0], paths[1]))
        case "given":
            paths[1].read_bytes()
            taken = given(arguments[0], paths[1])
        case "pretrained":
            from transformers import Qwen2ForCausalLM  # noqa: F401

            import gcodec.transformers  # noqa: F401

            [file.read_bytes() for file in paths[1].glob("model*")]
            taken = measured(lambda: pretrained(arguments[0], paths[1]))
        case "served":
            [file.read_bytes() for file in paths[0].glob("model*")]
            taken = served(*arguments)
        case "saved":
            taken = saved(arguments[0], arguments[1], paths[2], paths[3])
        case "restored":
            taken = restored(arguments[0], arguments[1], paths[2], paths[3])
        case _:
            raise SystemExit(f"no measurement {what!r}")
    print(json.dumps(taken))


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "one":
        one(*arguments)
    elif what == "train":
        train(Path(arguments[0]), float(arguments[1]))
    else:
        runs = int(arguments[1]) if len(arguments) > 1 else 3
        {"models": models, "vllm": vllm_models, "states": states}[what](Path(arguments[0]), runs)


if __name__ == "__main__":
    main()
