"""A real coordinator, served over gRPC from a thread of the test's process; and transports that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fkd_client.transfer import TensorMessage
from fkd_client.transport import GrpcTransport
from fkd_common.config import RunConfig
from fkd_common.method.student_layout import initial_student
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import Method, Transport
from fkd_common.tensors import Tensors, encode
from fkd_server.coordinator import Coordinator
from fkd_server.grpc_server import GrpcServer
from fkd_server.prepare import ANCHORS_FILE, CLASSES_KEY, EXTRACTOR_FILE
from fkd_server.run import Run, assemble
from fkd_server.settings import ServerSettings

PATIENCE_S = 30.0
"""Longest wait for anything."""

CLASSES = ("cat", "dog")
DIM = 512


def write_prepared(folder: Path) -> Path:
    """What a coordinator serves: 2.5 MiB that stand in for an extractor, and three anchors."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(5 << 17,)).astype(np.float32)
    (folder / EXTRACTOR_FILE).write_bytes(encode({"weights": weights}))
    anchors: Tensors = {
        "images": np.zeros((3, 8, 8, 1), np.uint8),
        "embeddings": rng.normal(size=(3, DIM)).astype(np.float32),
    }
    (folder / ANCHORS_FILE).write_bytes(encode(anchors, {CLASSES_KEY: json.dumps(CLASSES)}))
    return folder


@dataclass
class Served:
    """A coordinator at work."""

    run: Run
    address: str

    @property
    def coordinator(self) -> Coordinator:
        return self.run.coordinator

    @property
    def config(self) -> RunConfig:
        return self.run.config


@contextmanager
def serve(settings: ServerSettings, cache: Path) -> Iterator[Served]:
    """Serve one run until the block is left; time passes for it, ten times a second."""
    run = assemble(settings, cache)
    ready, stop = threading.Event(), threading.Event()
    port = 0

    async def live() -> None:
        nonlocal port
        server = GrpcServer()
        port = server.listen("127.0.0.1", 0)
        await server.start(run.service, run.admin)
        ready.set()
        while not stop.is_set():
            await server.tick()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(stop.wait, 0.1), 1.0)
        await server.stop(0.0)

    thread = threading.Thread(target=lambda: asyncio.run(live()), name="coordinator")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield Served(run, f"127.0.0.1:{port}")
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def student_message(served: Served, key: types.TaskKey) -> TensorMessage:
    """A student nobody has trained, ready to be submitted."""
    state = initial_student(1, DIM, served.config.hidden, len(CLASSES), served.config.norm)
    request = pb.SubmitStudentRequest(key=key, num_samples=10, reliability=0.5)
    return TensorMessage("SubmitStudent", request, state)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


Reply = Callable[[bytes], bytes]


@dataclass
class Watched:
    """A transport that counts calls, and lets a test spoil the nth one of a method, before or after it is made."""

    inner: Transport
    before: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)
    after: dict[tuple[str, int], Reply] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        with self.news:
            self.calls.append(method.name)
            self.requests.append(request)
            place = (method.name, self.calls.count(method.name))
        if place in self.before:
            self.before[place]()
        reply = self.inner.call(method, request, timeout_s)
        with self.news:
            self.news.notify_all()
        return self.after[place](reply) if place in self.after else reply

    def close(self) -> None:
        self.inner.close()

    def wait_for_calls(self, name: str, count: int) -> None:
        """Until a method has been called so often, beginning now."""
        with self.news:
            goal = self.calls.count(name) + count
            assert self.news.wait_for(lambda: self.calls.count(name) >= goal, PATIENCE_S)


def watched(served: Served) -> Watched:
    return Watched(GrpcTransport(served.address))
