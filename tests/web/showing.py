"""Second ports on loopback, and the few lines of HTTP that tests need to talk to them."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from fkd_server.access.tls import ServerTls
from fkd_server.web.access import Gate
from fkd_server.web.https import Https
from fkd_server.web.limits import WebLimits
from fkd_server.web.look import Look
from fkd_server.web.look_token import LookToken
from fkd_server.web.meters import Meters
from fkd_server.web.metrics import RunCollector, watch_process
from fkd_server.web.server import WebServer
from tests.server.tiny import TinyRun

PATIENCE_S = 20.0

TOKEN = "0123456789abcdef0123456789abcdef"
EVERYWHERE = "0.0.0.0"
"""Where a port says it listens; in these tests it listens on loopback all the same."""


@dataclass
class Clocks:
    """Time that passes when told to."""

    monotonic: float = 1000.0
    wall: float = 1.8e9


@dataclass
class Shown:
    """A second port at work."""

    port: int
    meters: Meters
    registry: CollectorRegistry
    clocks: Clocks
    tls: ssl.SSLContext | None = None
    unready: list[str] = field(default_factory=lambda: [""])

    def connect(self, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        """A connection of its own."""
        context = tls or self.tls
        if context is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_S, context=context)

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: str | None = None,
        tls: ssl.SSLContext | None = None,
        **headers: str,
    ) -> Answer:
        """One request; underscores in names of headers are dashes."""
        connection = self.connect(tls)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def look(self, path: str, **headers: str) -> Answer:
        """A request with the token."""
        return self.ask(path, Authorization=f"Bearer {TOKEN}", **headers)


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@contextmanager
def showing(
    run: TinyRun | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
    tls: ServerTls | None = None,
    limits: WebLimits | None = None,
    unready: str = "",
) -> Iterator[Shown]:
    """Serve the second port of a run from a thread until the block is left."""
    clocks, registry, why = Clocks(), CollectorRegistry(), [unready]
    watch_process(registry, lambda: why[0])
    meters = Meters(registry)
    begun, stop = threading.Event(), threading.Event()
    port = 0

    async def live() -> None:
        nonlocal port
        word = LookToken(token) if token is not None else None
        gate = Gate(host, word, tls, lambda: clocks.monotonic, lambda: clocks.wall)
        https = Https(tls) if tls is not None and not gate.on_loopback else None
        server = WebServer(gate, Look(lambda: why[0]), registry, https, limits)
        await server.start("127.0.0.1", 0)
        port = int(server.address.rpartition(":")[2])
        if run is not None:
            ends = tls.expires if tls is not None else None
            server.show(run.overview, RunCollector(run.overview, run.blobs.parent, ends))
        begun.set()
        await asyncio.to_thread(stop.wait)
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(live()), name="second port")
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        yield Shown(port, meters, registry, clocks, None, why)
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@dataclass(frozen=True)
class Message:
    """A server-sent event."""

    name: str
    data: Any
    number: int | None


class Watcher:
    """A page that is told what is new."""

    def __init__(self, shown: Shown, path: str = "/api/stream", **headers: str) -> None:
        self._connection = shown.connect()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", path, None, named)
        self._response = self._connection.getresponse()
        self.status = self._response.status

    def messages(self) -> Iterator[Message]:
        """As they come, until the stream ends."""
        found: dict[str, str] = {}
        while line := self._response.readline():
            text = line.decode().rstrip("\n")
            if not text and "event" in found:
                number = int(found["id"]) if "id" in found else None
                yield Message(found["event"], json.loads(found["data"]), number)
            if not text:
                found = {}
            elif not text.startswith(":"):
                name, _, value = text.partition(": ")
                found[name] = value

    def next(self, name: str, where: Callable[[Any], bool] = lambda data: True) -> Message:
        """The next message of a name."""
        return next(m for m in self.messages() if m.name == name and where(m.data))

    def ended(self) -> bool:
        """Read on to the end of the stream; False if it goes on."""
        try:
            for _ in self.messages():
                pass
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._connection.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)
