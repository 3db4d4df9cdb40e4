"""SkyRL's trainer side over HTTP: a real vLLM server on the CPU, and SkyRL's own client if it is there."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not installed: `cargo xtask engines` installs it")
import torch  # noqa: E402
from test_vllm import model, train  # noqa: E402
from vllm.distributed.weight_transfer.base import ModuleSource  # noqa: E402
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory  # noqa: E402

import gcodec  # noqa: E402
from gcodec import check  # noqa: E402
from gcodec.engines import skyrl, vllm_checks  # noqa: E402
from gcodec.store import Store  # noqa: E402


def client_class() -> Any:
    """Returns SkyRL's client. Its package needs Python 3.12; the file of the client alone does not."""
    found = importlib.util.find_spec("skyrl")
    path = Path(str(found.origin)).parent / "backends/skyrl_train/weight_sync/control_plane.py" if found else None
    if path is None or not path.exists():
        return StandIn
    spec = importlib.util.spec_from_file_location("skyrl_control_plane", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SkyrlWeightSyncClient


class StandIn:
    """The calls of `SkyrlWeightSyncClient` of SkyRL 0.4.0, to one server."""

    def __init__(self, urls: list[str]) -> None:
        self.url = urls[0]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        post(f"{self.url}/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        post(f"{self.url}/start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        post(f"{self.url}/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        post(f"{self.url}/finish_weight_update", {"weight_version": weight_version})

    def reset_prefix_cache(self, reset_running_requests: bool = True) -> None:
        post(f"{self.url}/reset_prefix_cache", {"reset_running_requests": reset_running_requests})

    def pause_generation(self, clear_cache: bool = False) -> None:
        post(f"{self.url}/pause?mode=keep&clear_cache={str(clear_cache).lower()}")

    def resume_generation(self) -> None:
        post(f"{self.url}/resume")

    def close(self) -> None:
        pass


def post(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read() or b"null")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    made = model(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = [str(Path(__file__).parent), str(Path(gcodec.__file__).parents[1])]
    settings = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tmp_path / "model"), "--host", "127.0.0.1", "--port", str(port),
        "--skip-tokenizer-init", "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "2",
        "--weight-transfer-config", '{"backend": "gcodec"}', "--worker-extension-cls", "unpacked_worker.Worker",
    ]  # fmt: skip
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, env=settings, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield url, made
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def held(url: str) -> check.Digests:
    found = post(f"{url}/collective_rpc", {"method": "gcodec_digests"})["results"]
    return vllm_checks.merged(found)


def test_a_server_loads_what_skyrls_trainer_publishes(server: tuple[str, Any], tmp_path: Path) -> None:
    url, made = server
    skyrl.register()
    client = client_class()([url])
    info = skyrl.TrainerInfo(str(tmp_path / "store"), rank=0)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(made))
    # What SkyRL's worker reads.
    assert engine.skyrl_handles_prefix_cache_reset and not engine.skyrl_force_disable_expandable_segments
    assert engine.skyrl_empty_cache_after_send and engine.skyrl_draft_source is None
    weights = dict(made.named_parameters())
    for version in range(1, 4):
        train(weights, version)
        engine.skyrl_set_reset_prefix_cache(version == 2)
        assert check.digest(weights).differences(held(url)) != []
        engine.send_weights()
        assert Store(str(tmp_path / "store")).latest() == version
        assert check.digest(weights).differences(held(url)) == []
        with urllib.request.urlopen(f"{url}/is_paused", timeout=60) as answer:
            assert json.loads(answer.read()) == {"is_paused": False}
    # A version that cannot be read: the server goes on with what it has.
    before = held(url)
    train(weights, 9)
    publish = engine._publish

    def lost() -> None:
        publish()
        for file in (tmp_path / "store" / "data").glob("*4-d*"):
            file.write_bytes(file.read_bytes()[:-9])

    engine._publish = lost
    with pytest.raises((RuntimeError, OSError)):
        engine.send_weights()
    assert held(url).differences(before) == []
    with urllib.request.urlopen(f"{url}/is_paused", timeout=60) as answer:
        assert json.loads(answer.read()) == {"is_paused": False}
    engine.skyrl_draft_source = object()
    with pytest.raises(gcodec.InputError, match="draft models"):
        engine.send_weights()
    # Ranks that send nothing only take part in gathering.
    other = WeightTransferTrainerFactory.trainer_init(skyrl.TrainerInfo("", rank=1), client=None, source=ModuleSource(made))
    other.send_weights()
    assert torch.is_tensor(next(iter(weights.values())))
    client.close()
