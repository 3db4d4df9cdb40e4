"""vLLM on the CPU follows versions of weights: a random Qwen2 of two layers, without a tokenizer."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import gcodec
import gcodec.sync

vllm = pytest.importorskip("vllm", reason="vLLM is not installed: `cargo xtask engines` installs it")
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from vllm.distributed.weight_transfer.base import ModuleSource  # noqa: E402
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory  # noqa: E402

import gcodec.engines.vllm  # noqa: E402
from gcodec.store import Store  # noqa: E402

PROMPT = {"prompt_token_ids": [1, 2, 3, 4]}


def model(folder: Path) -> Qwen2ForCausalLM:
    """Makes the model and its checkpoint."""
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    made = Qwen2ForCausalLM(config).to(torch.bfloat16)
    made.save_pretrained(folder)
    return made


def start(folder: Path, **settings: Any) -> Any:
    return vllm.LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=2,
        weight_transfer_config={"backend": "gcodec"},
        **settings,
    )


@pytest.fixture(scope="module")
def unpacked() -> Iterator[None]:
    """Packing for the CPU would remove the weights that loaders write to. No other device packs."""
    import vllm.model_executor.layers.utils as utils

    def linear(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    packing = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = linear
    yield
    utils.dispatch_cpu_unquantized_gemm = packing


def tokens(llm: Any) -> list[int]:
    chosen = vllm.SamplingParams(max_tokens=8, temperature=0, detokenize=False)
    return list(llm.generate([PROMPT], chosen, use_tqdm=False)[0].outputs[0].token_ids)


def parameters(llm: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = llm.apply_model(lambda m: {n: p.detach().clone() for n, p in m.named_parameters()})[0]
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[n].view(torch.int16), other[n].view(torch.int16)) for n in one)


def train(weights: Any, seed: int, share: float = 0.03) -> None:
    """Changes a share of the elements of every matrix."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in weights.values():
            chosen = torch.rand(tensor.shape, generator=generator) < share
            tensor.copy_(torch.where(chosen, (tensor.float() * -3 + 0.01).to(tensor.dtype), tensor))


def update(llm: Any, **info: Any) -> None:
    llm.start_weight_update()
    llm.update_weights({"update_info": info})
    llm.finish_weight_update()


class Gate(SimpleHTTPRequestHandler):
    """Serves the files of a folder; those with weights only while it is open."""

    open = threading.Event()
    asked = threading.Event()

    def do_GET(self) -> None:
        if "/data/" in self.path:
            self.asked.set()
            self.open.wait()
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served_folder(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Gate, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        Gate.open.set()
        server.shutdown()
        thread.join()


def check_staging(llm: Any, weights: dict[str, torch.Tensor], checkpoint: Path, place: Path) -> None:
    """Compares what the engine serves while a version is on its way, and has it load that without a store."""
    store = Store(place / "weights")
    store.publish(weights)
    with served_folder(place) as address:
        Gate.open.set()
        llm.init_weight_transfer_engine({"init_info": {"store": f"{address}/weights", "checkpoint": str(checkpoint), "version": 1}})
        served, before = parameters(llm), tokens(llm)
        Gate.open.clear()
        Gate.asked.clear()
        train(weights, 20)
        store.publish(weights)
        update(llm, stage=True)
        # The transfer hangs, and the engine answers with the old weights.
        assert Gate.asked.wait(60) and same(parameters(llm), served) and tokens(llm) == before
        engine = llm.llm_engine.model_executor.driver_worker.worker.weight_transfer_engine
        assert not engine._staging.done()
        Gate.open.set()
        assert engine._staging.result(60).version == 2
        assert same(parameters(llm), served) and tokens(llm) == before
    # The server has stopped: in the pause nothing is read or decoded.
    update(llm)
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(parameters(llm)[name], weights[name]) and not same(parameters(llm), served)
    # What is staged and cannot be read is refused when it is to be loaded.
    served = parameters(llm)
    update(llm, stage=True)
    with pytest.raises(gcodec.GcodecError):
        update(llm)
    assert same(parameters(llm), served)


def test_an_engine_follows_and_refuses(tmp_path: Path, unpacked: None) -> None:
    made = model(tmp_path / "v0")
    llm = start(tmp_path / "v0")
    first = tokens(llm)
    weights = {name: p.detach().clone() for name, p in made.named_parameters()}
    assert set(weights) == set(load_file(tmp_path / "v0" / "model.safetensors"))
    sender = gcodec.sync.Sender(weights)
    llm.init_weight_transfer_engine({"init_info": {}})

    def next_version(seed: int) -> str:
        train(weights, seed)
        path = tmp_path / f"{sender.version}.gcu"
        path.write_bytes(sender.delta(weights))
        return str(path)

    for seed in range(2):
        update(llm, path=next_version(seed))
    with socket.create_server(("127.0.0.1", 0)) as server:
        data = Path(next_version(2)).read_bytes()

        def send() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(data)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        update(llm, path=f"tcp://127.0.0.1:{server.getsockname()[1]}")
        thread.join(10)
    assert tokens(llm) != first
    served, before = parameters(llm), tokens(llm)
    by_deltas = served, before
    made.load_state_dict(weights)
    made.save_pretrained(tmp_path / "v3")
    name = "model.layers.0.self_attn.{}.weight"
    fused = served[name.format("qkv_proj")]
    assert torch.equal(fused, torch.cat([weights[name.format(p)] for p in ("q_proj", "k_proj", "v_proj")]))
    name = "model.layers.1.mlp.{}.weight"
    assert torch.equal(served[name.format("gate_up_proj")], torch.cat([weights[name.format(p)] for p in ("gate_proj", "up_proj")]))

    # Streams that are refused; the engine serves what it served before.
    replayed = (tmp_path / "2.gcu").read_bytes()
    good = Path(next_version(9)).read_bytes()
    skipped = {n: w.clone() for n, w in weights.items()}
    train(skipped, 10)
    late = gcodec.encode(skipped, "delta", base=weights, header=gcodec.UpdateHeader(step=4, inner_steps=1))
    foreign = {n: w + 1 for n, w in weights.items()}
    wrong = gcodec.encode(weights, "delta", base=foreign, header=gcodec.UpdateHeader(step=3, inner_steps=1))
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 1
    cases = {
        "replayed": (replayed, "version"),
        "late": (late, "version"),
        "wrong": (wrong, "checksum_mismatch"),
        "damaged": (bytes(damaged), "checksum_mismatch"),
        "cut": (good[:-40], "truncated"),
    }
    for case, (data, kind) in cases.items():
        (tmp_path / case).write_bytes(data)
        with pytest.raises(gcodec.GcodecError) as raised:
            update(llm, path=str(tmp_path / case))
        assert raised.value.kind == kind, case
        assert same(parameters(llm), served) and tokens(llm) == before, case

    # A loader that fails half-way: neither version, so nothing but an anchor is taken.
    engine = llm.llm_engine.model_executor.driver_worker.worker.weight_transfer_engine
    load = engine.model.load_weights

    def fail(entries: Any) -> None:
        load(list(entries)[:3])
        raise RuntimeError("out of memory")

    (tmp_path / "good").write_bytes(good)
    engine.model.load_weights = fail
    with pytest.raises(gcodec.sync.PoisonedError, match="out of memory"):
        update(llm, path=str(tmp_path / "good"))
    engine.model.load_weights = load
    assert not same(parameters(llm), served)
    with pytest.raises(gcodec.sync.PoisonedError, match="anchor"):
        update(llm, path=str(tmp_path / "good"))
    (tmp_path / "anchor").write_bytes(sender.anchor())
    update(llm, path=str(tmp_path / "anchor"), version=4)

    # A store, which begins with the weights that the engine has.
    store = Store(tmp_path / "weights")
    made.load_state_dict(weights)
    made.save_pretrained(tmp_path / "v4")
    store.publish(weights)
    with pytest.raises(gcodec.InputError, match="no store and path"):
        update(llm)
    llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "weights"), "checkpoint": str(tmp_path / "v4"), "version": 1}})
    served = parameters(llm)
    for seed in (11, 12):
        train(weights, seed)
        store.publish(weights)
    (delta,) = (tmp_path / "weights" / "data").glob("*3-d*")
    whole = delta.read_bytes()
    delta.write_bytes(whole[:-9])
    with pytest.raises(gcodec.GcodecError):
        update(llm)
    assert same(parameters(llm), served)
    delta.write_bytes(whole)
    engine.model.load_weights = fail
    with pytest.raises(gcodec.sync.PoisonedError, match="out of memory"):
        update(llm, version=2)
    engine.model.load_weights = load
    update(llm)

    # Reading a version while the engine serves.
    folder = tmp_path / "v4"
    made.load_state_dict(weights)
    made.save_pretrained(folder)
    update(llm)
    check_staging(llm, weights, folder, tmp_path / "staged")
    made.load_state_dict(weights)
    made.save_pretrained(folder)
    store.publish(weights)
    llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "weights"), "checkpoint": str(folder), "version": store.latest()}})

    # A NaN, and an update that changes nothing.
    weights["model.norm.weight"][3] = torch.nan
    store.publish(weights)
    store.publish(weights)
    update(llm)
    assert parameters(llm)["model.norm.weight"].isnan().nonzero().tolist() == [[3]]
    weights["model.norm.weight"][3] = 1.0

    # The trainer's side of vLLM. Engines that load the same weights afresh have the same bits and tokens.
    made.load_state_dict(weights)
    made.save_pretrained(tmp_path / "v7")

    class Client:
        """What a trainer calls, as vLLM's HTTP client does."""

        def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
            llm.init_weight_transfer_engine({"init_info": info})

        def start_weight_update(self) -> None:
            llm.start_weight_update()

        def update_weights(self, info: dict[str, Any]) -> None:
            llm.update_weights({"update_info": info})

        def finish_weight_update(self, weight_version: str | None = None) -> None:
            llm.finish_weight_update(weight_version)

    gcodec.engines.vllm.register()
    info = gcodec.engines.vllm.TrainerInfo(str(tmp_path / "more"), rank=0, codec="delta:values=overwrite")
    trainer = WeightTransferTrainerFactory.trainer_init(info, client=Client(), source=ModuleSource(made))
    first = next(iter(made.parameters()))
    kept = first.detach().clone()
    for version, weight in enumerate((kept, kept * 1.25, kept), 1):
        first.data.copy_(weight)
        trainer.stage_weights()
        trainer.send_weights()
        assert Store(tmp_path / "more").latest() == version
    assert [version.codec for version in Store(tmp_path / "more").log()[:2]] == [info.codec] * 2
    served, before = parameters(llm), tokens(llm)
    del llm, engine, trainer
    gc.collect()
    for version, expected in (("v7", (served, before)), ("v3", by_deltas)):
        fresh = start(tmp_path / version)
        assert same(parameters(fresh), expected[0]) and tokens(fresh) == expected[1]
        del fresh
        gc.collect()
