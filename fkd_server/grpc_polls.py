"""Polls that are held until there is something to say, one for each session; knows neither gRPC nor messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

RECHECK_S = 5.0
"""A poll is asked again this often: the certificate that it came with may have ended."""


class Polls:
    """Of one event loop."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._changed: asyncio.Future[None] | None = None
        self._held: dict[bytes, asyncio.Future[None]] = {}
        self._stopping = False

    def wake(self) -> None:
        """A held poll might get another answer now."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    def held(self) -> list[bytes]:
        """Sessions whose clients wait in a poll: they are alive."""
        return list(self._held)

    def stop(self) -> None:
        """Hold no more: polls are answered now, whatever there is to say."""
        self._stopping = True
        self.wake()

    async def hold(
        self, session: bytes, wait_s: float, ask: Callable[[bool], Awaitable[bytes | None]]
    ) -> bytes:
        """The answer to a poll, once there is more to report than waiting, or a newer one of its session comes.

        Args:
            session: Whose poll it is.
            wait_s: How long it may be held, in seconds.
            ask: Asks for the answer; given True, it may say None: hold on.
        """
        until = time.monotonic() + wait_s
        newer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while True:
                changed = self._next_change()
                left = until - time.monotonic()
                answer = await ask(left > 0 and not (newer.done() or self._stopping))
                if answer is not None:
                    return answer
                if self._held.get(session) is not newer and not newer.done():
                    self._supersede(session, newer)
                await asyncio.wait(
                    (changed, newer),
                    timeout=max(0.0, min(left, RECHECK_S)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            if self._held.get(session) is newer:
                del self._held[session]

    def _next_change(self) -> asyncio.Future[None]:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _supersede(self, session: bytes, newer: asyncio.Future[None]) -> None:
        """One poll of a session is held: the last."""
        older = self._held.get(session)
        if older is not None and not older.done():
            older.set_result(None)
        self._held[session] = newer
