"""Flower: a mod and a strategy that send compressed arrays."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_app import CLIENTS, ROUNDS, RULES, client_app, initial, score
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import gcodec
import gcodec.engines.flower


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Here(Grid):
    """Nodes in this process, each with its app and context. Messages are copied, as over a network."""

    def __init__(self, app: ClientApp) -> None:
        self.app = app
        self.contexts = {n + 10: Context(1, n + 10, {"part": n}, RecordDict(), {}) for n in range(CLIENTS)}
        self.down = self.up = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        replies = []
        for message in messages:
            message = copy.deepcopy(message)
            self.down += sum(r.count_bytes() for r in message.content.array_records.values())
            reply = self.app(message, self.contexts[message.metadata.dst_node_id])
            self.up += sum(r.count_bytes() for r in reply.content.array_records.values())
            replies.append(copy.deepcopy(reply))
        return replies

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *_: Any, **__: Any) -> Any: ...
    def get_nodes(self) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...


def federated(app: ClientApp, strategy: Any) -> tuple[Here, Any]:
    grid = Here(app)
    return grid, strategy.start(grid=grid, initial_arrays=initial(), num_rounds=ROUNDS)


def near_plain(right: int, expected: int, count: int) -> None:
    """One run each. The difference of two binomial counts exceeds three standard errors in 1 of 700 cases."""
    rate = expected / count
    assert right / count > rate - 3 * (2 * rate * (1 - rate) / count) ** 0.5, (right, expected, count)


def test_fedavg_learns_with_a_fraction_of_the_bytes() -> None:
    plain_grid, plain = federated(client_app(), FedAvg())
    mod = gcodec.engines.flower.mod(gcodec.TopK(density=0.05), rules=RULES)
    strategy = gcodec.engines.flower.Compressed(FedAvg(), gcodec.Int8(group=64), rules={"*.bias": "lossless"})
    grid, compressed = federated(client_app(mod), strategy)
    (right, count), (expected, _) = score(compressed.arrays), score(plain.arrays)
    near_plain(right, expected, count)
    print(f"right: {right} of {count}, plain {expected}; bytes up {grid.up} of {plain_grid.up}, down {grid.down} of {plain_grid.down}")
    assert grid.up < plain_grid.up / 8 and grid.down < plain_grid.down / 2.5
    assert len(compressed.train_metrics_clientapp) == len(compressed.evaluate_metrics_clientapp) == ROUNDS


def test_without_loss_it_is_fedavg() -> None:
    """Only differences and sums of f32 round. Compression by clients only, by the server only, and by
    both."""
    _, plain = federated(client_app(), FedAvg())
    mod = gcodec.engines.flower.mod("lossless")
    for app, strategy in (
        (client_app(mod), gcodec.engines.flower.Compressed(FedAvg())),
        (client_app(gcodec.engines.flower.mod("lossless")), gcodec.engines.flower.Compressed(FedAvg(), "raw")),
    ):
        _, result = federated(app, strategy)
        assert score(result.arrays)[0] == pytest.approx(score(plain.arrays)[0], abs=3)
        for name, array in plain.arrays.items():
            # Training is stable: differences of 2^-24 stay below this bound for a few dozen steps.
            assert np.allclose(result.arrays[name].numpy(), array.numpy(), atol=2e-3), name


def message(arrays: ArrayRecord) -> Message:
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    return Message(content, dst_node_id=10, message_type="train")


def adding(change: dict[str, Any], *mods: Any) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        arrays = {n: Array(a.numpy() + change.get(n, 0)) for n, a in msg.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=msg)

    return app


def test_a_mod_sends_changes_and_keeps_the_rest_in_the_context() -> None:
    base = {"w": np.arange(6, dtype=np.float32), "count[0]": np.array([5], np.int64)}
    change = {"w": np.array([0, 4, 0, -1, 0, 0], np.float32), "count[0]": np.array([1], np.int64)}
    app = adding(change, gcodec.engines.flower.mod("topk:k=1", rules={"*": "topk:k=1"}))
    context = Context(1, 10, {}, RecordDict(), {})
    seen = []
    for _ in range(2):
        arrays = ArrayRecord({n: Array(a) for n, a in base.items()})
        reply = app(message(arrays), context)
        (array,) = reply.content["arrays"].values()
        assert (array.stype, array.dtype, array.shape) == ("gcodec", "uint8", (len(array.data),))
        seen.append(gcodec.decode(array.data, framework="numpy"))
    assert seen[0]["w"].tolist() == [0, 4, 0, 0, 0, 0] and seen[0]["count[0]"].tolist() == [6]
    # The residual of the other element makes -1 - 1; 4 is larger in magnitude.
    assert seen[1]["w"].tolist() == [0, 4, 0, 0, 0, 0]
    kept = {n: a.numpy().tolist() for n, a in context.state["gcodec.residuals"].items()}
    assert kept == {"w": [0, 0, 0, -2, 0, 0]}
    assert context.state["gcodec"]["rounds"] == 2


def test_a_bad_reply_is_left_out() -> None:
    strategy = gcodec.engines.flower.Compressed(FedAvg(), limits=gcodec.Limits(max_alloc_bytes=1 << 20))
    base = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    grid = Here(client_app())
    sent = list(strategy.configure_train(1, base, ConfigRecord(), grid))
    metrics = MetricRecord({"num-examples": 1})

    def reply(data: bytes) -> Message:
        record = ArrayRecord({"gcodec": Array("uint8", (len(data),), "gcodec", data)})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=sent[0])

    good = gcodec.encode({"w": np.ones(4, np.float32)}, "raw")
    bad = [
        good[:-3],
        b"",
        gcodec.encode({"v": np.ones(4, np.float32)}, "raw"),
        gcodec.encode({"w": np.ones(5, np.float32)}, "raw"),
        gcodec.encode({"w": np.zeros(1 << 20, np.float32)}, "topk:k=1"),
    ]
    replies = [reply(good), *map(reply, bad), Message(Error(1, "it broke"), reply_to=sent[0])]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None and arrays["w"].numpy().tolist() == [1, 1, 1, 1]


def test_codecs_with_state_of_their_own_are_refused() -> None:
    with pytest.raises(gcodec.InputError, match="mod takes no Dgc, .* use gcodec.TopK"):
        gcodec.engines.flower.mod(gcodec.Dgc())  # type: ignore[arg-type]
    with pytest.raises(gcodec.InputError, match="Compressed takes no Dgc"):
        gcodec.engines.flower.Compressed(FedAvg(), gcodec.Dgc())  # type: ignore[arg-type]


def test_rules_that_match_nothing_are_refused() -> None:
    base = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    app = adding({}, gcodec.engines.flower.mod("topk:k=1", rules={"*.bias": "lossless"}))
    with pytest.raises(gcodec.InputError, match=r"'\*\.bias' of gcodec\.engines\.flower\.mod matches no tensor: there are 'w'"):
        app(message(base), Context(1, 10, {}, RecordDict(), {}))
    strategy = gcodec.engines.flower.Compressed(FedAvg(), rules={"*.bias": "lossless"})
    with pytest.raises(gcodec.InputError, match=r"of gcodec\.engines\.flower\.Compressed matches no tensor"):
        list(strategy.configure_train(1, base, ConfigRecord(), Here(client_app())))


def test_delta_is_refused() -> None:
    with pytest.raises(gcodec.InputError):
        gcodec.engines.flower.mod("topk", rules={"*": "delta"})
    with pytest.raises(gcodec.InputError):
        gcodec.engines.flower.Compressed(FedAvg(), "delta")


PROJECT = """
[project]
name = "gcodec-digits"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "gcodec"
[tool.flwr.app.components]
serverapp = "flower_app:{server}"
clientapp = "flower_app:{client}" """


class Flower:
    """Flower's own programs on the loopback interface: a link with its nodes, and their app."""

    def __init__(self, folder: Path, server: str, client: str) -> None:
        tests, self.folder, self.scripts = Path(__file__).parent, folder, _scripts()
        self.project, home = folder / "app", folder / "home"
        self.project.mkdir()
        home.mkdir()
        (self.project / "pyproject.toml").write_text(PROJECT.format(server=server, client=client))
        shutil.copy(tests / "flower_app.py", self.project)
        self.link, *self.nodes = free_ports(1 + CLIENTS)
        settings = f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{self.link}"\ninsecure = true\n'
        (home / "config.toml").write_text(settings)
        self.result = folder / "result"
        # Programs of this environment, which import this package and the modules of the tests.
        paths = os.pathsep.join([str(tests), str(Path(gcodec.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **os.environ,
            "PATH": f"{self.scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": paths,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "GCODEC_TEST_RESULT": str(self.result),
        }
        self.log = (folder / "log").open("w")
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Flower:
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.5)
        for process in self.running:
            os.killpg(process.pid, signal.SIGTERM)
        [process.wait(timeout=30) for process in self.running]
        self.log.close()

    def start_link(self, *options: str) -> None:
        self._start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.link), *options)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.link), timeout=1):
                return
            time.sleep(0.2)

    def start_node(self, part: int) -> None:
        address = ("--superlink", f"127.0.0.1:{self.link}", "--host", "127.0.0.1", "--port", str(self.nodes[part]))
        self._start("flower-supernode", "--insecure", *address, "--node-config", f"part={part}")

    def run(self, *options: str) -> str:
        """Returns the final output of the app."""
        command = [sys.executable, str(self.scripts / "flwr"), "run", str(self.project), "loop", *options]
        environment = self.environment
        subprocess.run(
            command, cwd=self.folder, env=environment, stdout=self.log, stderr=self.log, timeout=60, check=False
        )
        deadline = time.monotonic() + 300
        while not (self.result.exists() and self.result.read_text()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert self.result.exists(), (self.folder / "log").read_text()[-4000:]
        return self.result.read_text()

    def _start(self, program: str, *arguments: str) -> None:
        command = [sys.executable, str(self.scripts / program), *arguments]
        # A new session, so that all its processes can be ended together.
        self.running.append(
            subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,
            )
        )


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    [s.close() for s in sockets]
    return ports


def _scripts() -> Path:
    """Returns the folder of Flower's programs, which belongs to the packages of this environment."""
    import flwr

    return Path(flwr.__file__).parents[4] / "bin"


def test_the_deployment_engine_on_loopback(tmp_path: Path) -> None:
    with Flower(tmp_path, "server", "client") as flower:
        flower.start_link()
        [flower.start_node(part) for part in range(CLIENTS)]
        correct, count, rounds = map(int, flower.run().split())
    # Guessing gives 1 in 10.
    assert rounds == 2 and correct > count / 2, (correct, count)


def test_the_simulation_engine(tmp_path: Path) -> None:
    """Plain FedAvg, then with compression, on four nodes of Flower and Ray. The test records the traffic."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("no ray, on which Flower's simulation engine runs: pip install -r adapters/python/requirements-test.txt")
    nodes = 4
    # Socket names must be short, so not below the test's folder. Ray may write there until it ends.
    short = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with short as rays, Flower(tmp_path, "comparison", "either") as flower:
        flower.environment |= {"RAY_TMPDIR": rays, "RAY_USAGE_STATS_ENABLED": "0"}
        flower.start_link("--simulation")
        settings = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus=2"
        report = json.loads(flower.run("--federation-config", settings))
    plain, compressed = report["plain"], report["compressed"]
    near_plain(compressed["right"], plain["right"], plain["count"])
    assert plain["stypes"] == ["numpy.ndarray"] and compressed["stypes"] == [gcodec.engines.flower.STYPE]
    # The rules make these lossless.
    assert compressed["biases"] == ["all x planes"], compressed
    assert compressed["up"] < plain["up"] / 8 and compressed["down"] < plain["down"] / 2.5, report
    # Nodes keep their state between rounds, in whichever process they run.
    assert compressed["before"] == list(range(ROUNDS)) and plain["before"] == [0] * ROUNDS
    assert plain["evaluations"] == compressed["evaluations"] == ROUNDS
    print(report)
