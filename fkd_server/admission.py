"""Who may have a large message under way, and for how long: bounded slots; knows neither gRPC nor messages.

A slot is held by whoever has a message of up to a megabyte in memory. A peer that is slow holds its slot for at
most `transfer_s`, and for about `contended_s` once somebody waits. Callers whose last message came through are
served first, and a share of the slots is theirs alone: so whoever opens many slow calls keeps others like it
waiting, and not the clients at work. Among the rest the newest is first: it is the likeliest to be still there.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from fkd_common.errors import BusyError, FkdError, StaleError

_Result = TypeVar("_Result")

RESERVED_SHARE = 0.25
"""Of the slots: for callers in good standing."""

MAX_REMEMBERED = 16_384
"""Callers whose standing is remembered; the longest unseen is forgotten first."""


class Standing(IntEnum):
    """How a caller's last message went; the order in which callers are let in."""

    GOOD = 0
    UNKNOWN = 1
    POOR = 2
    """Too slow, or refused."""


@dataclass(frozen=True)
class SlotLimits:
    """How many, how long."""

    slots: int
    """Messages under way at once: with the largest message's size, a bound in bytes."""
    per_caller: int
    """Slots one caller may hold or wait for."""
    transfer_s: float
    """Longest time for a peer to send or take one message."""
    contended_s: float
    """The same, about, while others wait for a slot."""
    queue: int = 4096
    """Callers that may wait; one more, and whoever would be served last is refused."""
    wait_s: float = 20.0
    """Longest wait for a slot."""


class Slots:
    """A fixed number of slots, shared by all callers; for one event loop."""

    def __init__(self, limits: SlotLimits) -> None:
        self.limits = limits
        self._free = limits.slots
        self._stuck = 0
        self._callers: Counter[str] = Counter()
        self._strikes: OrderedDict[str, int] = OrderedDict()
        self._reserved = int(RESERVED_SHARE * limits.slots)
        self._waiting: dict[Standing, deque[asyncio.Future[None]]] = {each: deque() for each in Standing}
        self._moving: set[_Clock] = set()
        self._begun = 0

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[Slot]:
        """Hold a slot.

        Raises:
            BusyError: The caller has its share, or no slot came free in time.
        """
        if self._callers[caller] >= self.limits.per_caller:
            raise BusyError(
                f"this client has {self._callers[caller]} transfers under way; at most {self.limits.per_caller} "
                "are let in at once: wait for one to end"
            )
        self._callers[caller] += 1
        try:
            await self._take(self.standing(caller))
        except BaseException:
            self._forget(caller)
            raise
        slot = Slot(self)
        try:
            yield slot
            self._note(caller, 0)
        except StaleError:
            raise  # it came too late, which happens to the best
        except FkdError:
            self._note(caller, self.strikes(caller) + 1)
            raise
        finally:
            self._end(caller, slot.stuck)

    def standing(self, caller: str) -> Standing:
        """As far as it is remembered."""
        if caller not in self._strikes:
            return Standing.UNKNOWN
        return Standing.POOR if self._strikes[caller] else Standing.GOOD

    def strikes(self, caller: str) -> int:
        """Messages since the last that came through, as far as that is remembered."""
        return self._strikes.get(caller, 0)

    def _note(self, caller: str, strikes: int) -> None:
        self._strikes[caller] = strikes
        self._strikes.move_to_end(caller)
        if len(self._strikes) > MAX_REMEMBERED:
            self._strikes.popitem(last=False)

    async def _take(self, standing: Standing) -> None:
        if self._free > self._kept_from(standing):
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting[standing].append(turn)
        if sum(map(len, self._waiting.values())) > self.limits.queue:
            self._refuse(self._last_to_be_served())
        for clock in self._moving:
            clock.hurry()
        timer = loop.call_later(self.limits.wait_s, self._refuse, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting[standing]:
                self._waiting[standing].remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                self._give_back()  # the turn came as the caller went
            raise
        finally:
            timer.cancel()

    def _kept_from(self, standing: Standing) -> int:
        """Free slots that are not for callers of this standing."""
        return 0 if standing is Standing.GOOD else self._reserved

    def _last_to_be_served(self) -> asyncio.Future[None]:
        """Of those who wait: the latest in good standing only where all are."""
        for standing in (Standing.POOR, Standing.UNKNOWN):
            if self._waiting[standing]:
                return self._waiting[standing][0]
        return self._waiting[Standing.GOOD][-1]

    def _refuse(self, turn: asyncio.Future[None]) -> None:
        for queue in self._waiting.values():
            if turn in queue:
                queue.remove(turn)
                if not turn.done():
                    turn.set_exception(
                        BusyError("the coordinator has too many transfers under way: try again in a moment")
                    )

    def _give_back(self) -> None:
        self._free += 1
        for standing, queue in self._waiting.items():
            while queue and self._free > self._kept_from(standing):
                turn = queue.popleft() if standing is Standing.GOOD else queue.pop()
                if not turn.done():
                    self._free -= 1
                    turn.set_result(None)

    def _forget(self, caller: str) -> None:
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    def _end(self, caller: str, stuck: asyncio.Future[Any] | None) -> None:
        """A slot ends; what a peer still has not taken stays in memory until its call's deadline.

        As many messages may be stuck as there are slots; beyond, the slots wait with them.
        """
        if stuck is None or stuck.done():
            self._forget(caller)
            self._give_back()
        elif self._stuck < self.limits.slots:
            self._stuck += 1
            stuck.add_done_callback(lambda _: self._unstick(caller))
            self._give_back()
        else:
            stuck.add_done_callback(lambda _: self._end(caller, None))

    def _unstick(self, caller: str) -> None:
        self._stuck -= 1
        self._forget(caller)

    def begin(self) -> _Clock:
        """A message's clock starts."""
        # Spread, so that slots come free one after another and not all at the same time.
        share = 0.5 + 0.5 * (self._begun % self.limits.slots) / self.limits.slots
        self._begun += 1
        clock = _Clock(self.limits.transfer_s, self.limits.contended_s * share)
        self._moving.add(clock)
        if any(self._waiting.values()):
            clock.hurry()
        return clock

    def ended(self, clock: _Clock) -> None:
        """It is through, or given up."""
        self._moving.discard(clock)
        clock.end()

    async def in_time(self, moving: Coroutine[Any, Any, _Result]) -> _Result:
        """What a peer sends or takes, if it does so in time; for messages too short to need a slot.

        Raises:
            BusyError: The peer was too slow.
        """
        return await Slot(self).transfer(moving)


class Slot:
    """Room for one message."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.stuck: asyncio.Future[Any] | None = None
        """A transfer that was given up and has not ended yet."""

    async def transfer(self, moving: Coroutine[Any, Any, _Result]) -> _Result:
        """What the peer sends or takes, if it does so in time.

        The operation itself is never cancelled: gRPC's core may still write to what it was given.

        Raises:
            BusyError: The peer was too slow.
        """
        operation = asyncio.ensure_future(moving)
        _outlive(operation)
        clock = self._slots.begin()
        self.stuck = operation
        try:
            await asyncio.wait((operation, clock.late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._slots.ended(clock)
        if not operation.done():
            raise BusyError(
                f"a message was not through after {clock.seconds:.1f} s (limit {self._slots.limits.transfer_s:g} s, "
                "less while others wait): send it again, in smaller chunks over a slow line",
                reason="TOO_SLOW",
            )
        self.stuck = None
        return operation.result()


class _Clock:
    """How long one message has been under way, and when that is too long."""

    def __init__(self, limit_s: float, contended_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._contended_s = min(limit_s, contended_s)
        self._hurried = False
        self.late = self._loop.create_future()
        self._timer = self._loop.call_later(limit_s, self._expire)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._loop.time() - self._began

    def hurry(self) -> None:
        """Somebody waits."""
        if not self._hurried:
            self._hurried = True
            self._timer.cancel()
            self._timer = self._loop.call_at(self._began + self._contended_s, self._expire)

    def end(self) -> None:
        """It is through, or given up."""
        self._timer.cancel()
        self.late.cancel()

    def _expire(self) -> None:
        if not self.late.done():
            self.late.set_result(None)


_outliving: set[asyncio.Future[Any]] = set()


def _outlive(operation: asyncio.Future[Any]) -> None:
    """Keep an operation until it ends, whether or not anybody still waits for it."""
    _outliving.add(operation)
    operation.add_done_callback(_ended)


def _ended(operation: asyncio.Future[Any]) -> None:
    _outliving.discard(operation)
    if not operation.cancelled():
        operation.exception()  # retrieved: whoever waited was told, nobody else needs to be
