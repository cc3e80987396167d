"""From the coordinator's settings to its second port: where it listens, over TLS or not, and for whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from fkd_common.errors import PortInUseError
from fkd_server.run import Run
from fkd_server.settings import ServerSettings
from fkd_server.web.access import Gate
from fkd_server.web.https import Https
from fkd_server.web.look import Look
from fkd_server.web.look_token import LookToken
from fkd_server.web.meters import Meters
from fkd_server.web.metrics import RunCollector, watch_process
from fkd_server.web.server import WebServer

if TYPE_CHECKING:
    from fkd_server.access.tls import ServerTls

PORTS_AFTER = 2
"""The default port is so many after the main one; the one between is for new clients."""
MAX_PORT = 65535
AGAIN_S = 3.0
"""A default port that is taken is tried again so often."""


class SecondPort:
    """What is counted for it, and the server behind it, if there is one."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.meters = Meters(self._registry)
        self._server: WebServer | None = None
        self._tls: ServerTls | None = None
        self._again: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT; empty where there is none, or not yet."""
        return self._server.address if self._server is not None else ""

    async def start(
        self, settings: ServerSettings, tls: ServerTls | None, unready: Callable[[], str]
    ) -> None:
        """Listen, unless there is to be no port; a default one that is taken is tried again until it is free.

        Args:
            settings: Where, and for whom.
            tls: The coordinator's credentials.
            unready: Why the run is not served, in a few words; empty while it is.

        Raises:
            UsageError: It would show the run to people who prove nothing, or in plain text; or the host is not this
                machine.
            PortInUseError: The port that was asked for is taken.
        """
        if settings.http_port == 0:
            return
        self._tls = tls
        watch_process(self._registry, unready)
        self._server = server = _server(settings, tls, Look(unready), self._registry)
        host, port = settings.http_host, settings.http_port or _default_port(settings.port)
        try:
            await server.start(host, port)
        except PortInUseError as error:
            if settings.http_port is not None:
                raise
            structlog.get_logger().warning("http_port_taken", detail=str(error), again_every_s=AGAIN_S)
            self._again = asyncio.create_task(_start_when_free(server, host, port), name="second port")

    def show(self, run: Run) -> None:
        """From now on there is a run."""
        run.recorder.watch(self.meters.on_event)
        if self._server is not None:
            ends = self._tls.expires if self._tls is not None else None
            metrics = RunCollector(run.overview, run.folder.path, ends)
            self._server.show(run.overview, metrics)

    async def stop(self) -> None:
        """Stop listening."""
        if self._again is not None:
            self._again.cancel()
        if self._server is not None:
            await self._server.stop()


async def _start_when_free(server: WebServer, host: str, port: int) -> None:
    """Whoever has the port may be a coordinator that is just ending."""
    while not server.address:
        await asyncio.sleep(AGAIN_S)
        with contextlib.suppress(PortInUseError):
            await server.start(host, port)
    structlog.get_logger().info("http_port_open", http=server.address)


def _server(
    settings: ServerSettings, tls: ServerTls | None, look: Look, registry: CollectorRegistry
) -> WebServer:
    host, token = settings.http_host, settings.http_token
    gate = Gate(host, LookToken(token.get_secret_value()) if token is not None else None, tls)
    if gate.on_loopback:
        return WebServer(gate, look, registry, None)
    settings.check_plain_text("--http-host", host)
    return WebServer(gate, look, registry, Https(tls) if tls is not None else None)


def _default_port(main: int) -> int:
    """Where any main port is good, any other is too."""
    return main + PORTS_AFTER if 0 < main <= MAX_PORT - PORTS_AFTER else 0
