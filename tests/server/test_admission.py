"""Slots: bounded, shared fairly, and not for the slow; no network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fkd_common.errors import BusyError, InvalidUploadError, StaleError
from fkd_server.admission import SlotLimits, Slots, Standing

FOREVER = 1000.0


def limits(**changes: float | int) -> SlotLimits:
    given: dict[str, float | int] = {
        "slots": 4, "per_caller": 2, "transfer_s": FOREVER, "contended_s": FOREVER, "queue": 8, "wait_s": FOREVER,
    }  # fmt: skip
    return SlotLimits(**{**given, **changes})  # type: ignore[arg-type]


def in_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(10.0):
            await scenario()

    asyncio.run(within())


async def never() -> None:
    await asyncio.Event().wait()


class Holder:
    """Somebody who holds a slot until told to go; notes the order in which slots were got."""

    def __init__(self, slots: Slots, name: str, order: list[str]) -> None:
        self.name, self._slots, self._order = name, slots, order
        self._go = asyncio.Event()
        self.task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        async with self._slots.slot(self.name):
            self._order.append(self.name)
            await self._go.wait()

    async def leave(self) -> None:
        self._go.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def prove(slots: Slots, *callers: str) -> None:
    """Each has a message come through."""
    for caller in callers:
        async with slots.slot(caller):
            pass


def test_no_more_than_the_slots_are_held_and_the_rest_wait() -> None:
    async def scenario() -> None:
        slots, order = Slots(limits()), list[str]()
        names = [f"c{i}" for i in range(6)]
        await prove(slots, *names)
        holders = [Holder(slots, name, order) for name in names]
        await settle()
        assert order == names[:4]
        await holders[0].leave()
        await settle()
        assert order == names[:5]  # in good standing: first come, first served
        for holder in holders[1:]:
            await holder.leave()

    in_loop(scenario)


def test_a_share_of_the_slots_is_kept_for_those_whose_messages_came_through() -> None:
    async def scenario() -> None:
        slots, order = Slots(limits()), list[str]()
        await prove(slots, "known")
        strangers = [Holder(slots, f"stranger{i}", order) for i in range(5)]
        await settle()
        assert len(order) == 3
        known = Holder(slots, "known", order)
        await settle()
        assert order[3:] == ["known"]
        await known.leave()
        await settle()
        assert len(order) == 4  # its slot is kept for the next of its kind
        for stranger in strangers:
            await stranger.leave()

    in_loop(scenario)


def test_among_strangers_the_newest_is_served_first_and_the_longest_waiting_refused() -> None:
    async def scenario() -> None:
        slots, order = Slots(limits(queue=2)), list[str]()
        held = [Holder(slots, f"held{i}", order) for i in range(3)]
        await settle()
        oldest, middle, newest = (Holder(slots, name, order) for name in ("oldest", "middle", "newest"))
        await settle()
        with pytest.raises(BusyError, match="too many transfers"):
            await oldest.task
        await held[0].leave()
        await settle()
        assert order[3:] == ["newest"]
        for holder in (*held[1:], newest, middle):
            await holder.leave()

    in_loop(scenario)


def test_in_a_full_queue_those_in_good_standing_keep_their_places_and_the_latest_is_refused() -> None:
    """A thousand sites that come at once: whoever has waited longest is served next, not sent away."""

    async def scenario() -> None:
        slots, order = Slots(limits(queue=3)), list[str]()
        names = [f"c{i}" for i in range(8)]
        await prove(slots, *names)
        holders = [Holder(slots, name, order) for name in names[:6]]
        stranger = Holder(slots, "stranger", order)
        await settle()
        more = [Holder(slots, name, order) for name in names[6:]]
        await settle()
        for refused in (stranger, more[1]):
            with pytest.raises(BusyError, match="too many transfers"):
                await refused.task
        for holder in (*holders, more[0]):
            await holder.leave()
            await settle()
        assert order == names[:7]

    in_loop(scenario)


def test_a_caller_has_its_share_and_no_more() -> None:
    async def scenario() -> None:
        slots, order = Slots(limits()), list[str]()
        mine = [Holder(slots, "me", order) for _ in range(2)]
        await settle()
        with pytest.raises(BusyError, match="2 transfers under way; at most 2"):
            async with slots.slot("me"):
                pass
        for holder in mine:
            await holder.leave()
        async with slots.slot("me"):
            pass

    in_loop(scenario)


def test_a_slow_peer_loses_its_slot_at_the_limit_and_its_standing_with_it() -> None:
    """Scenario 23."""

    async def scenario() -> None:
        slots = Slots(limits(transfer_s=0.05))
        await prove(slots, "a")
        with pytest.raises(BusyError, match="not through after") as refused:
            async with slots.slot("a") as slot:
                await slot.transfer(never())
        assert refused.value.reason == "TOO_SLOW"
        assert slots.standing("a") is Standing.POOR

    in_loop(scenario)


def test_a_slow_peer_loses_its_slot_sooner_once_somebody_waits() -> None:
    """Scenario 23: with nobody waiting it may take its time; a slow line is no attack."""

    async def scenario() -> None:
        slots, order = Slots(limits(slots=1, contended_s=0.05)), list[str]()

        async def crawl() -> None:
            async with slots.slot("slow") as slot:
                await slot.transfer(never())

        slow = asyncio.create_task(crawl())
        await asyncio.sleep(0.2)
        assert not slow.done()
        quick = Holder(slots, "quick", order)
        with pytest.raises(BusyError):
            await slow
        await settle()
        assert order == ["quick"]
        await quick.leave()

    in_loop(scenario)


def test_what_a_peer_does_not_take_counts_until_it_is_gone() -> None:
    """Scenario 23: gRPC holds an answer until its call's deadline; as many may be stuck as there are slots."""

    async def scenario() -> None:
        slots = Slots(limits(slots=1, per_caller=1, transfer_s=0.02, wait_s=0.05))
        gone = [asyncio.Event() for _ in range(3)]

        async def take_nothing(turn: int) -> None:
            async with slots.slot(f"reader{turn}") as slot:
                await slot.transfer(gone[turn].wait())

        for turn in range(2):
            with pytest.raises(BusyError, match="not through"):
                await take_nothing(turn)
        with pytest.raises(BusyError, match="too many transfers"):
            await take_nothing(2)
        with pytest.raises(BusyError, match="at most 1"):
            await take_nothing(0)
        for event in gone:
            event.set()
        await settle()
        await prove(slots, "reader0", "reader2")

    in_loop(scenario)


@pytest.mark.parametrize(
    "error, standing",
    [(InvalidUploadError("NaN"), Standing.POOR), (StaleError("too late"), Standing.GOOD)],
    ids=["refused", "late"],
)
def test_who_is_refused_is_served_last_and_who_is_late_is_not(error: Exception, standing: Standing) -> None:
    async def scenario() -> None:
        slots = Slots(limits())
        await prove(slots, "a")
        with pytest.raises(type(error)):
            async with slots.slot("a"):
                raise error
        assert slots.standing("a") is standing

    in_loop(scenario)


def test_a_caller_that_goes_while_it_waits_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        slots, order = Slots(limits(slots=1)), list[str]()
        await prove(slots, "a", "b", "c")
        first, second, third = (Holder(slots, name, order) for name in "abc")
        await settle()
        second.task.cancel()
        await settle()
        await first.leave()
        await settle()
        assert order == ["a", "c"]
        third.task.cancel()
        await settle()
        await prove(slots, "b")

    in_loop(scenario)


def test_a_caller_that_goes_as_its_turn_comes_passes_it_on() -> None:
    async def scenario() -> None:
        slots, order = Slots(limits(slots=1)), list[str]()
        await prove(slots, "a", "b", "c")
        first, second, third = (Holder(slots, name, order) for name in "abc")
        await settle()
        first.task.cancel()
        await asyncio.sleep(0)
        second.task.cancel()
        await settle()
        assert order == ["a", "c"]
        await third.leave()

    in_loop(scenario)
