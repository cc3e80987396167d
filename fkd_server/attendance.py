"""Who is there: registrations, sessions and signs of life; knows no rounds and asks nobody for anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from fkd_common.errors import RefusedError, SupersededError
from fkd_server.run_state import ClientRecord, Event, Journal, KnownClient

MAX_CLIENTS = 10_000
"""Names a run remembers: without certificates anybody who reaches the port can make them up."""


BEATS_PER_S = 100.0
"""Signs of life that all clients at work are to send together; about a tenth of what one core can answer."""


class Attendance:
    """The clients of a run, by name; one session each."""

    def __init__(
        self, heartbeat_s: float, limit_s: float, journal: Journal, on_event: Callable[[Event], None]
    ) -> None:
        """Start with nobody.

        Args:
            heartbeat_s: How often clients send signs of life, unless they are very many.
            limit_s: Seconds of silence after which a client counts as gone; longer for those told to take their time.
            journal: Makes registrations durable.
            on_event: Told of everyone who comes and goes.
        """
        self.clients: dict[str, ClientRecord] = {}
        self._heartbeat_s, self._limit_s = heartbeat_s, limit_s
        self._journal = journal
        self._emit = on_event
        self._sessions: dict[bytes, str] = {}

    def resume(self, clients: Iterable[KnownClient], now: float) -> None:
        """Take up who had registered with an earlier process: sessions stay valid, silence counts from later on."""
        known = list(clients)
        leisure = self._beat_s(len(known)) / self._heartbeat_s  # as they may have been told
        for client in known:
            self._sessions[client.session] = client.name
            self.clients[client.name] = ClientRecord(
                client.name,
                client.session,
                last_seen=now + self._limit_s * leisure,
                alive=client.ready,  # who had not asked for work is not waited for; any call brings it back
                ready=client.ready,
                contributed=client.contributed,
                relay=client.relay,
                unheard=client.ready,
                leisure=leisure,
            )

    def register(
        self, name: str, session: bytes, now: float, awaited: Collection[str] = (), *, relay: bool = False
    ) -> None:
        """Open a session; it supersedes an older one of the same client.

        Args:
            name: The client.
            session: Its token.
            now: The time.
            awaited: Clients that must not be forgotten to make room.
            relay: Whether it sends sums over clients of its own.

        Raises:
            RefusedError: The run knows too many clients, or the client as a relay and it is none now, or the reverse.
        """
        again = name in self.clients
        if again and self.clients[name].contributed and self.clients[name].relay != relay:
            was, comes = ("relay", "site") if self.clients[name].relay else ("site", "relay")
            raise RefusedError(
                f"{name} has taken part in this run as a {was} and comes back as a {comes}: give the {comes} another "
                "name",
                reason="ANOTHER_KIND",
            )
        if not again and len(self.clients) >= MAX_CLIENTS:
            self._make_room(awaited)
        self._journal.client_joined(name, session, relay)
        if again:
            self._sessions.pop(self.clients[name].session)
        self._sessions[session] = name
        contributed = again and self.clients[name].contributed
        self.clients[name] = ClientRecord(name, session, now, contributed=contributed, relay=relay)
        self._emit(Event("client_joined", {"client": name, "again": again, "live": len(self.live())}))

    def client_of(self, session: bytes) -> ClientRecord:
        """The client that holds a session.

        Raises:
            SupersededError: A newer process of the client took over, or this coordinator never opened the session.
        """
        name = self._sessions.get(session)
        if name is None:
            raise SupersededError(
                "this session has ended: another process registered under the same name (give one of them another "
                "--name), or the coordinator has lost its state folder and begun anew (start this one again)"
            )
        return self.clients[name]

    def seen(
        self, session: bytes, now: float, activity: str | None = None, progress: float = 0.0
    ) -> ClientRecord:
        """Note a sign of life; what a client says of its progress is a share, or it is none."""
        client = self.client_of(session)
        client.last_seen, client.unheard = now, False
        if activity is not None:
            client.activity, client.progress = activity, _share(progress)
        if not client.alive:
            client.alive, client.left = True, False
            self._emit(Event("client_returned", {"client": client.name}))
        return client

    def still_poll(self, sessions: Iterable[bytes], now: float) -> None:
        """Polls that are held are signs of life; those of sessions that have ended are not."""
        for session in sessions:
            if session in self._sessions and not self.client_of(session).left:
                self.seen(session, now)

    def _make_room(self, awaited: Collection[str]) -> None:
        """Forget somebody who is gone and never contributed."""
        for client in self.clients.values():
            if not (client.alive or client.contributed or client.name in awaited):
                self._journal.client_forgotten(client.name)
                del self._sessions[client.session], self.clients[client.name]
                return
        raise RefusedError(
            f"this run knows {MAX_CLIENTS} clients already, and takes no more names",
            reason="TOO_MANY_CLIENTS",
        )

    def asks_for_work(self, client: ClientRecord) -> None:
        """A client that polls is ready."""
        if not client.ready:
            self._journal.client_ready(client.name)
            client.ready = True
            self._emit(Event("client_ready", {"client": client.name, "ready": len(self.ready())}))

    def leave(self, session: bytes, reason: str = "") -> None:
        """A client goes away on purpose; `reason` names the kind of error, if one made it."""
        client = self.client_of(session)
        if client.ready:
            self._journal.client_away(client.name)
        client.alive = client.ready = client.unheard = False
        client.left = True
        self._emit(Event("client_left", {"client": client.name, "reason": reason or None}))

    def notice_silence(self, now: float) -> None:
        """Count those as gone of whom nothing has been heard for too long."""
        for client in self.live():
            if now - client.last_seen > self._limit_s * client.leisure:
                if client.ready:
                    self._journal.client_away(client.name)
                client.alive = client.ready = False
                silent = round(now - client.last_seen, 1)
                self._emit(Event("client_lost", {"client": client.name, "silent_s": silent}))

    def next_beat_s(self, session: bytes) -> float:
        """When a client at work is to send its next sign of life: the more there are, the less often."""
        every = self._beat_s(len(self.live()))
        self.client_of(session).leisure = every / self._heartbeat_s
        return every

    def _beat_s(self, clients: int) -> float:
        return max(self._heartbeat_s, clients / BEATS_PER_S)

    def forgive(self, seconds: float) -> None:
        """Nothing could be heard for so long: it is not held against anybody."""
        for client in self.clients.values():
            client.last_seen += seconds

    def is_alive(self, name: str) -> bool:
        """Whether a client of this name shows signs of life."""
        return name in self.clients and self.clients[name].alive

    def told(self, name: str) -> None:
        """A client, if there is one of that name, has learnt that the run is over."""
        if name in self.clients:
            self.clients[name].told = True

    def untold(self) -> list[str]:
        """Who is worth waiting for at the end, besides those alive: who comes back would wait for the run in vain.

        Relays that took part, which have clients of their own, and whoever only this process has not heard yet.
        """
        return [
            client.name
            for client in self.clients.values()
            if not (client.told or client.alive) and (client.unheard or (client.relay and client.contributed))
        ]

    def live(self) -> list[ClientRecord]:
        """Clients that show signs of life."""
        return [client for client in self.clients.values() if client.alive]

    def ready(self) -> list[str]:
        """Names of the live clients that have asked for work, sorted."""
        return sorted(client.name for client in self.live() if client.ready)


def _share(said: float) -> float:
    """What is within 0 to 1."""
    return min(1.0, max(0.0, said)) if math.isfinite(said) else 0.0
