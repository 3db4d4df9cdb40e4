"""Stores on an S3 server on loopback, which the test starts."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gcodec.errors import IoError
from gcodec.store import ConflictError, Follower, Store

server = pytest.importorskip("moto.server", reason="moto is not installed: requirements-test.txt has it")
from werkzeug.serving import make_server  # noqa: E402

CUT_AFTER = 5_000


class Server:
    """moto, behind a layer that notes which ranges of objects are read, and cuts answers on demand."""

    def __init__(self) -> None:
        self.app = server.DomainDispatcherApplication(server.create_backend_app)
        self.cuts = 0
        self.ignores_conditions = False
        self.ranges: list[str | None] = []

    def __call__(self, environment: dict[str, Any], start: Any) -> Iterator[bytes]:
        if self.ignores_conditions:
            environment.pop("HTTP_IF_NONE_MATCH", None)
        answer = self.app(environment, start)
        if environment["REQUEST_METHOD"] != "GET" or "/data/" not in environment["PATH_INFO"]:
            return answer
        self.ranges.append(environment.get("HTTP_RANGE"))
        if self.cuts == 0:
            return answer
        self.cuts -= 1
        return self.cut(b"".join(answer))

    @staticmethod
    def cut(body: bytes) -> Iterator[bytes]:
        yield body[:CUT_AFTER]
        raise ConnectionAbortedError("the test cuts the connection")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    app = Server()
    listening = make_server("127.0.0.1", 0, app, threaded=True)
    endpoint = f"http://127.0.0.1:{listening.server_port}"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(listening.serve_forever)
        try:
            bucket = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
            assert urllib.request.urlopen(bucket).status == 200
            for name, value in {
                "AWS_ENDPOINT": endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
            }.items():
                monkeypatch.setenv(name, value)
            yield app
        finally:
            listening.shutdown()


def weights(step: int) -> dict[str, np.ndarray]:
    w = np.random.default_rng(7).standard_normal((200, 100)).astype(np.float32)
    w[np.random.default_rng(step).random(w.shape) < 0.01] *= 1.001
    return {"w": w, "b": np.arange(10, dtype=np.float32)}


def equal(one: dict[str, np.ndarray], step: int) -> bool:
    return all(np.array_equal(one[name], tensor) for name, tensor in weights(step).items())


def test_an_s3_server_is_a_store(s3: Server) -> None:
    store, other = Store("s3://bucket/run", grace=0.0), Store("s3://bucket/run")
    follower, engine = Follower(other), {}
    for step in range(1, 5):
        assert store.publish(weights(step)).version == step
        update = follower.stage()
        assert update is not None
        update.apply(engine.__setitem__, framework="numpy")
        assert equal(engine, step)
    assert store.fold(1, 4)[0] > 0 and [v.version for v in store.log()] == [4, 3, 2, 1]
    assert np.array_equal(store.tensor("b").numpy(), weights(4)["b"])

    # Publishers at the same time: each number is given once.
    def publish(step: int) -> int | None:
        try:
            return Store("s3://bucket/run").publish(weights(step)).version
        except ConflictError:
            return None

    with ThreadPoolExecutor(3) as pool:
        given = [version for version in pool.map(publish, range(5, 8)) if version is not None]
    assert sorted(given) == list(range(5, 5 + len(given))) and store.latest() == 4 + len(given) > 4
    assert store.gc(dry_run=True).kept > 0


def test_a_download_that_is_cut_continues(s3: Server) -> None:
    store = Store("s3://bucket/cut")
    size = store.publish(weights(1)).anchor_bytes
    assert size is not None and size > 3 * CUT_AFTER
    s3.ranges, s3.cuts = [], 2
    pulled = Store("s3://bucket/cut").pull(framework="numpy")
    assert equal(pulled, 1) and s3.cuts == 0
    # Nothing is sent twice: each further request begins where the one before was cut.
    anchor = [int(asked.removeprefix("bytes=").partition("-")[0]) for asked in s3.ranges if asked]
    assert anchor and max(anchor) >= CUT_AFTER, s3.ranges


def test_a_server_that_ignores_conditions_is_refused(s3: Server) -> None:
    s3.ignores_conditions = True
    for _ in range(2):
        store = Store("s3://bucket/ignoring")
        for _ in range(2):
            with pytest.raises(IoError, match="If-None-Match") as raised:
                store.publish(weights(1))
            assert raised.value.kind == "no-conditional-writes" and store.latest() == 0
    # A store that was made elsewhere is read, and not written.
    s3.ignores_conditions = False
    assert Store("s3://bucket/moved").publish(weights(1)).version == 1
    s3.ignores_conditions = True
    store = Store("s3://bucket/moved")
    assert equal(store.pull(framework="numpy"), 1)
    with pytest.raises(IoError, match="conditional writes"):
        store.publish(weights(2))
    assert store.latest() == 1
