"""Serves the page over made-up runs that a test changes at will; knows the contract, and no coordinator."""

from __future__ import annotations

import json
import queue
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import fkd_server.web
from fkd_common.message_json import as_json
from fkd_common.pb import admin_pb2 as pb
from tests.page import federation

PAGE = Path(fkd_server.web.__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGES = {"rounds": 100, "events": 200}

Message = tuple[str, dict[str, Any]]


class StandIn:
    """A coordinator's second port, as the page sees it."""

    def __init__(self) -> None:
        self.status = federation.running()
        self.rounds: list[pb.RoundStatus] = []
        self.events: list[pb.EventStatus] = []
        self.unready = ""
        """Why there is no run to see; empty if there is one."""
        self.logged_in = True
        self._streams: list[queue.Queue[Message | None]] = []
        self._lock = threading.Lock()
        self._gone = False
        stand_in = self

        class Handler(_Handler):
            world = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def show(self, status: pb.StatusResponse | None = None) -> StandIn:
        """Show another run, from here on."""
        self.drop()
        self.status = status or federation.running()
        self.rounds = federation.rounds(self.status)
        self.events = federation.events(self.status)
        self.unready, self.logged_in = "", True
        return self

    def tell(self) -> None:
        """Everybody who watches learns the status as it is now."""
        self._push("status", as_json(self.status))

    def close_round(self, status: pb.RoundStatus) -> None:
        """A round is over, or its accuracy has come."""
        self.rounds = [each for each in self.rounds if each.round != status.round] + [status]
        self._push("round", as_json(status))

    def happen(self, event: pb.EventStatus) -> None:
        """Something happened."""
        self.events.append(event)
        self._push("log", as_json(event))

    def drop(self, *, stay_away: bool = False) -> None:
        """All streams break; if it stays away, every further request is refused."""
        self._gone = stay_away
        with self._lock:
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.put(None)

    def come_back(self) -> None:
        """Answer again."""
        self._gone = False

    @property
    def gone(self) -> bool:
        """Whether requests are refused."""
        return self._gone

    def watch(self) -> queue.Queue[Message | None]:
        """A new stream, which begins with where things stand."""
        stream: queue.Queue[Message | None] = queue.Queue()
        stream.put(
            ("unready", {"detail": self.unready}) if self.unready else ("status", as_json(self.status))
        )
        with self._lock:
            self._streams.append(stream)
        return stream

    def _push(self, name: str, content: dict[str, Any]) -> None:
        with self._lock:
            for stream in self._streams:
                stream.put((name, content))


class Serve(Protocol):
    """Shows a run."""

    def __call__(self, status: pb.StatusResponse | None = None) -> StandIn:
        """One in its seventh round, if no other is given."""


class _Handler(BaseHTTPRequestHandler):
    world: StandIn
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(ConnectionError):  # the browser went away
            super().handle()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if self.world.gone:
            self.close_connection = True
            return
        if parts.path == "/":
            self._file("index.html")
        elif parts.path == "/login":
            self._file("login.html")
        elif parts.path.startswith("/static/"):
            self._file(parts.path.removeprefix("/static/"))
        elif not self.world.logged_in:
            self._send(401, "text/plain", b"this is for operators")
        elif parts.path == "/api/stream":
            self._stream()
        elif parts.path.startswith("/api/"):
            self._api(parts.path.removeprefix("/api/"), parse_qs(parts.query))
        else:
            self._send(404, "text/plain", b"no such page")

    def _file(self, name: str) -> None:
        path = PAGE / name
        self._send(200, TYPES[path.suffix], path.read_bytes())

    def _api(self, name: str, asked: dict[str, list[str]]) -> None:
        world = self.world
        if world.unready:
            self._send(503, "text/plain", world.unready.encode())
            return
        if name == "status":
            content: dict[str, Any] = as_json(world.status)
        elif name == "rounds":
            found = [each for each in world.rounds if each.round >= int(asked["first"][0])]
            content = {"rounds": [as_json(each) for each in found[: PAGES[name]]]}
        else:
            newer = [each for each in world.events if each.number > int(asked["after"][0])]
            content = {"events": [as_json(each) for each in newer[: PAGES[name]]]}
        self._send(200, "application/json", json.dumps(content).encode())

    def _stream(self) -> None:
        self.close_connection = True
        stream = self.world.watch()
        self._head(200, "text/event-stream")
        self.end_headers()
        while (message := stream.get()) is not None:
            name, content = message
            self.wfile.write(f"event: {name}\ndata: {json.dumps(content)}\n\n".encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self._head(code, kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, code: int, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'")
        # The page's own files are kept from one test to the next: reading them again is half the time of opening it.
        self.send_header("Cache-Control", "max-age=600" if self.path.startswith("/static/") else "no-store")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # named so by the base class
        """Tests look at the page, not at a log."""
