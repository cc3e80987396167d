"""The run as server-sent events: one reader asks the run for all who watch; bounded watchers, bounded backlogs.

A watcher that falls behind misses statuses, which the next one makes up for. If it falls further behind, its stream
ends; a browser comes back by itself and says which event it saw last.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from fkd_common.errors import BusyError, FkdError
from fkd_common.message_json import as_json
from fkd_common.pb import admin_pb2 as pb
from fkd_server.complaints import Complaints
from fkd_server.overview import Overview
from fkd_server.web.limits import WebLimits
from fkd_server.web.look import Look

MAX_BACKLOG = 1500
"""Messages that wait for one watcher, beside the last status: all events that are kept, and some more."""
LOOK_EVERY_S = 0.5
STATUS_EVERY_S = 5.0
STATUS_BYTES_PER_S = 200_000
"""A status that changes is told again no sooner than its size allows: 1,000 clients fill some 400 kB."""
PING_EVERY_S = 15.0

_ALWAYS_CHANGES = ("serving_s", "deadline_s")
"""Fields of a status that are no news."""


class Stream:
    """Tells all watchers what is new."""

    def __init__(self, look: Look, limits: WebLimits, complaints: Complaints) -> None:
        self._look = look
        self._complaints = complaints
        self._limits = limits
        self._watchers: set[_Watcher] = set()
        self._reader: asyncio.Task[None] | None = None
        self._status = b""
        self._shown: dict[str, Any] = {}
        self._shown_at = -STATUS_EVERY_S
        self._event = 0
        """The last one told."""
        self._beginning = asyncio.Lock()
        self._closed = False

    async def serve(
        self, request: web.Request, may_look: Callable[[web.Request], object]
    ) -> web.StreamResponse:
        """Tell one watcher, until it goes, falls behind, may no longer look, or the coordinator stops.

        Args:
            request: Where the messages go; its Last-Event-ID, or `after`, says which event the watcher has seen.
            may_look: Raises FkdError once it may not.

        Raises:
            BusyError: There are enough watchers.
        """
        if len(self._watchers) >= self._limits.watchers or self._closed:
            raise BusyError(
                f"{len(self._watchers)} pages are watching already: close one", reason="TOO_MANY_WATCHERS"
            )
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            response = web.StreamResponse(
                headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            async with asyncio.timeout(self._limits.answer_s):
                await response.prepare(request)
            await self._begin_reading()
            await self._catch_up(
                watcher, request.headers.get("Last-Event-ID") or request.query.get("after", "")
            )
            watcher.show(self._status)
            await self._write(watcher, request, response, may_look)
        except Exception as error:  # the answer has begun: it can only end, and a browser comes back
            if not isinstance(
                error, OSError | FkdError
            ):  # it went away or takes nothing, or the disk does not answer
                self._complaints.warning("look_failed", "", path=request.path, detail=repr(error))
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._watchers.discard(watcher)
        return response

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        if self._reader is not None:
            self._reader.cancel()
        for watcher in self._watchers:
            watcher.end()

    async def _begin_reading(self) -> None:
        """See that somebody asks the run; what happened while nobody watched is no news."""
        async with self._beginning:
            if self._reader is None or self._reader.done():
                await self._read_once(tell=False)
                self._reader = asyncio.create_task(self._read(), name="stream")

    async def _catch_up(self, watcher: _Watcher, seen: str) -> None:
        """What happened since the watcher was here last, up to what the reader has told."""
        told = self._event
        if seen.isascii() and seen.isdecimal() and told:
            # Higher than any: from before a restart, when numbers began anew.
            after = int(seen[:18]) if int(seen[:18]) <= told else 0
            missed = await self._look.ask(lambda overview: list(overview.all_events(after)))
            watcher.add_before(
                [_message("log", event, event.number) for event in missed if event.number <= told]
            )

    async def _write(
        self,
        watcher: _Watcher,
        request: web.Request,
        response: web.StreamResponse,
        may_look: Callable[[web.Request], object],
    ) -> None:
        pinged = time.monotonic()
        while not watcher.over:
            for message in watcher.take():
                async with asyncio.timeout(self._limits.answer_s):
                    await response.write(message)
            if time.monotonic() - pinged >= PING_EVERY_S:
                pinged = time.monotonic()
                async with asyncio.timeout(self._limits.answer_s):
                    await response.write(b": ping\n\n")
            await watcher.wait(STATUS_EVERY_S)
            try:
                may_look(request)  # certificates are revoked, and cookies end, while a page is open
            except FkdError:
                return
        async with asyncio.timeout(self._limits.answer_s):
            await response.write_eof()

    async def _read(self) -> None:
        """Ask the run what is new, for as long as somebody watches."""
        while self._watchers:
            await asyncio.sleep(LOOK_EVERY_S)
            await self._read_once(tell=True)

    async def _read_once(self, *, tell: bool) -> None:
        try:
            self._tell(await self._look.ask(self._news), tell=tell)
            return
        except FkdError as error:  # the run is being prepared, or its disk does not answer
            detail = str(error)
        except Exception as error:  # a bug: the next look may do without it, and nobody is to wait unknowing
            self._complaints.warning("look_failed", "", path="/api/stream", detail=repr(error))
            detail = "the run cannot be told, which is a bug: the coordinator's log says more"
        self._show_status(_encoded("unready", {"detail": detail}), {"detail": detail})

    def _tell(self, news: _News, *, tell: bool) -> None:
        self._show_status(news.status, news.compared)
        if news.events:
            self._event = news.events[-1].number
        if tell:
            messages = [_message("round", each) for each in news.rounds]
            messages += [_message("log", each, each.number) for each in news.events]
            for watcher in self._watchers:
                watcher.add(messages)

    def _news(self, overview: Overview) -> _News:
        """In a thread: what there is to tell."""
        status = as_json(overview.status())
        message = _encoded("status", status)
        for name in _ALWAYS_CHANGES:
            del status[name]
        for client in status["clients"]:
            del client["last_seen_s"]
        events = list(overview.all_events(self._event))
        changed = {event.round for event in events if event.name in ("round_closed", "evaluated")}
        rounds = [overview.rounds(number).rounds[:1] for number in sorted(changed)]
        return _News(message, status, events, [each for found in rounds for each in found])

    def _show_status(self, message: bytes, shown: dict[str, Any]) -> None:
        pause = STATUS_EVERY_S
        if shown != self._shown:
            pause = min(pause, len(message) / STATUS_BYTES_PER_S)
        if time.monotonic() - self._shown_at < pause:
            self._status = message  # for those who come now
            return
        self._status, self._shown, self._shown_at = message, shown, time.monotonic()
        for watcher in self._watchers:
            watcher.show(message)


@dataclass(frozen=True)
class _News:
    """What the run answered."""

    status: bytes
    compared: dict[str, Any]
    """The status without what always changes."""
    events: list[pb.EventStatus]
    rounds: list[pb.RoundStatus]


class _Watcher:
    """What waits for one who watches."""

    def __init__(self) -> None:
        self.over = False
        self._status: bytes = b""
        self._backlog: deque[bytes] = deque()
        self._news = asyncio.Event()

    def show(self, status: bytes) -> None:
        """The run stands elsewhere."""
        if status:
            self._status = status
            self._news.set()

    def add(self, messages: Iterable[bytes]) -> None:
        """Something happened."""
        self._backlog.extend(messages)
        self._news.set()
        if len(self._backlog) > MAX_BACKLOG:
            self.end()

    def add_before(self, messages: list[bytes]) -> None:
        """Something happened before what waits already."""
        self._backlog.extendleft(reversed(messages))
        self.add(())

    def end(self) -> None:
        """No more."""
        self.over = True
        self._news.set()

    def take(self) -> Iterable[bytes]:
        """What there is now, one after another."""
        self._news.clear()
        while self._backlog:
            yield self._backlog.popleft()
        if self._status:
            status, self._status = self._status, b""
            yield status

    async def wait(self, at_most_s: float) -> None:
        """Until there is news."""
        try:
            await asyncio.wait_for(self._news.wait(), at_most_s)
        except TimeoutError:
            return


def _message(name: str, content: pb.RoundStatus | pb.EventStatus, number: int | None = None) -> bytes:
    return _encoded(name, as_json(content), number)


def _encoded(name: str, content: dict[str, Any], number: int | None = None) -> bytes:
    """One event as the browser reads it; JSON has no line breaks of its own."""
    data = json.dumps(content, separators=(",", ":"), allow_nan=False)
    identity = f"id: {number}\n" if number is not None else ""
    return f"event: {name}\n{identity}data: {data}\n\n".encode()
