"""Who may be connected to the second port, and for how long: a bounded number; knows neither paths nor runs.

A newcomer takes the place of a connection that has not shown that it may look: the oldest of the address that has most
of them. So whoever opens many connections closes its own, and others, who have few, get through.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fkd_server.complaints import network_of
from fkd_server.web.https import Https
from fkd_server.web.limits import WebLimits

YOUNG_S = 1.0
"""A connection this young may be about to show that it may look: it stays, unless its address has many."""
MANY = 4


@dataclass
class _Connection:
    transport: asyncio.Transport
    host: str
    since: float
    trusted: bool = False


class Doors:
    """Lets connections in; called by the event loop for each that arrives."""

    def __init__(
        self,
        serve: Callable[[], asyncio.Protocol],
        https: Https | None,
        limits: WebLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open for everybody.

        Args:
            serve: Makes what speaks HTTP on a connection.
            https: For TLS.
            limits: How many, and how long a handshake may take.
            clock: Seconds, for how old they are.
        """
        self._serve = serve
        self._https = https
        self._limits = limits
        self._clock = clock
        self._connections: dict[object, _Connection] = {}
        self._handshakes: set[asyncio.Task[None]] = set()

    def __call__(self) -> asyncio.Protocol:
        """What a new connection talks to first."""
        return _Arrival(self)

    def trust(self, transport: asyncio.BaseTransport | None) -> None:
        """The other end has shown that it may look: it is not closed to make room."""
        if transport is not None:
            connection = self._connections.get(transport.get_extra_info("peername"))
            if connection is not None:
                connection.trusted = True

    def arrived(self, arrival: _Arrival, transport: asyncio.Transport) -> None:
        """A connection is open: hand it to what speaks HTTP, after a handshake if there is TLS."""
        self._connections = {
            peer: known for peer, known in self._connections.items() if not known.transport.is_closing()
        }
        if len(self._connections) >= self._limits.connections and not self._make_room():
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self._connections[peer] = _Connection(transport, network_of(str(peer[0])), self._clock())
        if self._https is None:
            arrival.hand_over(self._serve(), transport)
            return
        handshake = asyncio.get_running_loop().create_task(self._shake_hands(arrival, transport, self._https))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    def close(self) -> None:
        """Drop connections that are not talking HTTP yet."""
        for handshake in self._handshakes:
            handshake.cancel()

    def _make_room(self) -> bool:
        unproven = [(peer, known) for peer, known in self._connections.items() if not known.trusted]
        crowds = Counter(known.host for _, known in unproven)
        settled = self._clock() - YOUNG_S
        may_go = [each for each in unproven if each[1].since <= settled or crowds[each[1].host] > MANY]
        if not may_go:
            return False
        peer, known = max(may_go, key=lambda each: crowds[each[1].host])  # of equals the first: the oldest
        known.transport.abort()
        del self._connections[peer]
        return True

    async def _shake_hands(self, arrival: _Arrival, transport: asyncio.Transport, https: Https) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                transport,
                arrival,
                https.context(),
                server_side=True,
                ssl_handshake_timeout=self._limits.handshake_s,
                ssl_shutdown_timeout=1.0,
            )
        except (
            OSError,
            asyncio.CancelledError,
        ):  # ssl.SSLError is an OSError: a scanner, a probe without TLS
            transport.abort()
            return
        if secure is not None and not arrival.lost:
            arrival.hand_over(self._serve(), secure)


class _Arrival(asyncio.Protocol):
    """Keeps what comes until there is somebody to take it: a TLS record or two."""

    def __init__(self, doors: Doors) -> None:
        self.lost = False
        self._doors = doors
        self._early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._doors.arrived(self, transport)

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def hand_over(self, protocol: asyncio.Protocol, transport: asyncio.Transport) -> None:
        """From now on this protocol talks."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._early:
            protocol.data_received(bytes(self._early))
            self._early.clear()
