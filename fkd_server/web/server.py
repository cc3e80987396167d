"""The second port as a server: paths, headers and limits; what is shown comes from elsewhere.

GET and HEAD only, and POST /login: nothing here changes the run. Without a token or an operator's certificate a caller
from another machine gets /livez, /readyz and the log-in form with its style, which are the same everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from fkd_common.addresses import join_address
from fkd_common.errors import (
    FkdError,
    InvalidUploadError,
    NotFoundError,
    PortInUseError,
    UnauthenticatedError,
    UsageError,
)
from fkd_common.message_json import as_json
from fkd_server.complaints import Complaints
from fkd_server.overview import Overview
from fkd_server.web.access import Gate
from fkd_server.web.answers import (
    add_headers,
    json_answer,
    plain,
    read_page,
    refusal,
    see_other,
)
from fkd_server.web.connections import Doors
from fkd_server.web.conversation import conversations
from fkd_server.web.downloads import send_download
from fkd_server.web.https import Https
from fkd_server.web.limits import BACKLOG, MAX_BODY_BYTES, WebLimits
from fkd_server.web.login import LogIn
from fkd_server.web.look import Look
from fkd_server.web.metrics import encoder_for
from fkd_server.web.stream import Stream

PAGE_FOLDER = Path(__file__).parent / "page"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """Serves the second port in the coordinator's event loop; it listens before there is a run to show."""

    def __init__(
        self,
        gate: Gate,
        look: Look,
        registry: CollectorRegistry,
        https: Https | None = None,
        limits: WebLimits | None = None,
    ) -> None:
        """Listen nowhere yet.

        Args:
            gate: Decides who may look.
            look: Asks the run.
            registry: The metrics.
            https: For TLS.
            limits: What callers may hold.
        """
        self._gate = gate
        self._look = look
        self._registry = registry
        self._https = https
        self._complaints = Complaints()
        self._log_in = LogIn(gate, self._complaints, secure=https is not None)
        self._limits = limits = limits or WebLimits()
        self._stream = Stream(look, limits, self._complaints)
        self._page = read_page(PAGE_FOLDER)
        self._log = structlog.get_logger()
        app = web.Application(middlewares=[self._in_time], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(add_headers)
        app.add_routes(self._routes())
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            shutdown_timeout=1.0,
        )
        self.address = ""
        """HOST:PORT, once it listens."""
        self._listening: asyncio.Server | None = None
        self._doors: Doors | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen on an address (port 0: a free one).

        Raises:
            PortInUseError: The port cannot be bound; it may be tried again.
            UsageError: The host is none, or not this machine.
        """
        if self._doors is None:
            await self._runner.setup()
            assert self._runner.server is not None
            talks = conversations(self._runner.server, self._limits, self._complaints)
            self._doors = Doors(talks, self._https, self._limits)
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._doors, host, port, backlog=BACKLOG
            )
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno in (None, errno.EADDRNOTAVAIL):
                raise UsageError(
                    f"--http-host {host}: expected an address of this machine, or a name that resolves to one "
                    f"({error.strerror or error}); leave it out for 127.0.0.1"
                ) from error
            raise PortInUseError(
                f"cannot listen on {host}:{port}: the port is taken or not allowed ({error.strerror or error}); choose "
                "another with --http-port, or 0 for none"
            ) from error
        self.address = join_address(host, self._listening.sockets[0].getsockname()[1])

    def show(self, overview: Overview, metrics: Collector) -> None:
        """From now on there is a run to show."""
        self._look.show(overview)
        self._registry.register(metrics)

    async def stop(self) -> None:
        """End streams, let answers that are under way finish, stop listening."""
        self._stream.close()
        if self._listening is not None:
            self._listening.close()
        if self._doors is not None:
            self._doors.close()
        await self._runner.cleanup()
        self._look.close()

    def _routes(self) -> list[web.RouteDef]:
        for_all: dict[str, _Handler] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/login": self._login_form,
            "/static/{name}": self._static,
        }
        for_viewers: dict[str, _Handler] = {
            "/": self._index,
            "/metrics": self._metrics,
            "/api/status": self._answering(lambda overview, number: overview.status()),
            "/api/rounds": self._answering(lambda overview, number: overview.rounds(number), "first"),
            "/api/ledger": self._answering(lambda overview, number: overview.ledger(number), "offset"),
            "/api/events": self._answering(lambda overview, number: overview.events(number), "after"),
            "/download/{name}": self._download,
        }
        routes = [web.get(path, self._for_anyone(handler)) for path, handler in for_all.items()]
        routes += [web.get(path, self._for_viewers(handler)) for path, handler in for_viewers.items()]
        routes.append(web.get("/api/stream", self._for_viewers(self._watch), allow_head=False))
        routes.append(web.post("/login", self._for_anyone(self._log_in.answer)))
        return routes

    # -- who and how long -------------------------------------------------------------------------

    @web.middleware
    async def _in_time(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Make and send an answer in time: else a peer that takes nothing would hold its connection for good.

        Viewers' streams and downloads go on for longer, and see to it themselves, piece by piece.
        """
        if request.path.startswith(("/api/stream", "/download/")):
            return await self._refusing(request, handler)
        try:
            async with asyncio.timeout(self._limits.answer_s):
                response = await self._refusing(request, handler)
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return plain(
                HTTPStatus.SERVICE_UNAVAILABLE, "too slow"
            )  # for the form: nobody is there to take it
        return response

    async def _refusing(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Turn errors into answers."""
        try:
            return await handler(request)
        except web.HTTPException as error:  # no such path, another method, too large a body
            said = f"{error.reason}: {request.method} {request.path[:200]}"
            return plain(error.status, said, error.headers)
        except FkdError as error:
            if error.reason == "TOO_MANY_GUESSES":  # the right word is answered at once: others come slowly
                await asyncio.sleep(self._limits.wrong_guess_s)
            return refusal(request, error)
        except ConnectionError:
            raise  # it went away
        except Exception as error:  # a bug here ends neither the run nor the log's form
            self._log.error("look_failed", path=request.path[:200], detail=repr(error))
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a bug: the coordinator's log says more")

    def _for_anyone(self, handler: _Handler) -> _Handler:
        """On loopback: for this machine only, whatever is asked."""

        async def answer(request: web.Request) -> web.StreamResponse:
            with self._saying_no(request):
                self._gate.check_host(request)
            return await handler(request)

        return answer

    def _for_viewers(self, handler: _Handler) -> _Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                self._admit(request)
            except UnauthenticatedError:
                if self._gate.takes_token and "text/html" in request.headers.get("Accept", ""):
                    return see_other("/login")
                raise
            return await handler(request)

        return answer

    def _admit(self, request: web.Request) -> None:
        """See who looks.

        Raises:
            FkdError: The caller may not; it is in the log.
        """
        with self._saying_no(request):
            self._gate.viewer(request)
        if self._doors is not None and not self._gate.open_to_this_machine:
            self._doors.trust(request.transport)

    @contextlib.contextmanager
    def _saying_no(self, request: web.Request) -> Iterator[None]:
        """Have refusals in the log."""
        try:
            yield
        except FkdError as error:
            self._complaints.warning(
                "look_refused", request.remote or "", path=request.path[:200], reason=error.reason
            )
            raise

    # -- for all ----------------------------------------------------------------------------------

    async def _livez(self, request: web.Request) -> web.StreamResponse:
        return plain(HTTPStatus.OK, "ok")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        if why := self._look.unready():
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, why)
        return plain(HTTPStatus.OK, "ok")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return self._file(request.match_info["name"], html=False)

    async def _login_form(self, request: web.Request) -> web.StreamResponse:
        return self._file("login.html", html=True)

    # -- for viewers ------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._file("index.html", html=True)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        encode, content_type = encoder_for(request.headers.get("Accept", ""))
        body = await self._look.think(lambda: encode(self._registry))
        return web.Response(body=body, headers={"Content-Type": content_type})

    def _answering(self, question: Callable[[Overview, int], Any], parameter: str = "") -> _Handler:
        """The answer of the run as JSON; with a parameter, from a number on."""

        async def answer(request: web.Request) -> web.StreamResponse:
            number = _number(request, parameter) if parameter else 0
            return await self._look.ask(lambda overview: json_answer(as_json(question(overview, number))))

        return answer

    async def _download(self, request: web.Request) -> web.StreamResponse:
        return await send_download(request.match_info["name"], request, self._look, self._limits.answer_s)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        return await self._stream.serve(request, self._gate.viewer)

    def _file(self, name: str, *, html: bool) -> web.Response:
        if name not in self._page or html != name.endswith(".html"):
            raise NotFoundError(f"no file {name[:80]!r}")
        content_type, body = self._page[name]
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-cache"})


def _number(request: web.Request, parameter: str) -> int:
    given = request.query.get(parameter, "0")
    if not (given.isascii() and given.isdecimal() and len(given) <= 10):
        raise InvalidUploadError(
            f"{parameter} = {given[:40]!r}: expected a whole number from 0 on", reason="MALFORMED"
        )
    return int(given)
