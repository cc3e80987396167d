from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page import federation
from tests.page.stand_in import Serve, StandIn
from tests.page.watching import PHONE, Watcher

NOTE_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((entry) => entry.value)))
  .observe({ type: "layout-shift", buffered: false });
"""
NOTE_LONG_TASKS = """
window.longest = 0;
const note = (list) => { window.longest = Math.max(window.longest, ...list.getEntries().map((each) => each.duration)) };
new PerformanceObserver(note).observe({ type: "longtask", buffered: false });
"""


def not_reloaded(page: Page) -> bool:
    return bool(page.evaluate("window.sameDocument === true"))


@pytest.fixture
def stand_in(serve: Serve) -> StandIn:
    return serve()


def test_numbers_move_without_a_reload_and_nothing_else_does(watch: Watcher, stand_in: StandIn) -> None:
    page = watch.open(stand_in.url)
    expect(page.locator("#timeline")).to_contain_text("Round 6")
    page.evaluate("window.sameDocument = true")
    page.evaluate(NOTE_SHIFTS)
    status = stand_in.status
    status.answered.append("site-000")
    status.bytes.payload_up += 123_000_000
    status.bytes_by_phase["student"].payload_up += 123_000_000
    status.clients[0].state, status.clients[0].activity = "answered", ""
    status.clients[0].uploads += 1
    stand_in.tell()
    expect(page.locator("#phase-note")).to_contain_text("3 of 4 answers in")
    expect(page.locator("#moved")).to_have_text("199\u202fMB")
    expect(page.locator("#phase-bytes p", has_text="student")).to_contain_text("169\u202fMB")
    cells = page.locator("#clients tbody tr").first.locator("td")
    assert cells.nth(0).text_content() == "answered"
    assert cells.nth(4).text_content() == "13"
    status.round, status.rounds_done = 8, 7
    stand_in.close_round(federation.closed(7, [client.name for client in status.clients]))
    stand_in.tell()
    expect(page.locator("#round")).to_have_text("8 of 30")
    expect(page.locator("#timeline")).to_contain_text("Round 7")
    assert not_reloaded(page)
    assert sum(page.evaluate("window.shifts")) < 0.001


def test_the_deadline_counts_down_between_statuses(watch: Watcher, stand_in: StandIn) -> None:
    stand_in.status.deadline_s = 54.5
    page = watch.open(stand_in.url)
    expect(page.locator("#phase-note")).to_contain_text("closes in 55\u202fs at the latest")
    expect(page.locator("#phase-note")).to_contain_text("closes in 54\u202fs at the latest")


def test_a_broken_stream_is_told_and_what_was_missed_is_made_up_for(
    watch: Watcher, stand_in: StandIn
) -> None:
    watch.refusals_expected = True
    page = watch.open(stand_in.url)
    page.evaluate("window.sameDocument = true")
    stand_in.drop(stay_away=True)
    expect(page.locator("#connection")).to_have_text("Reconnecting…")
    expect(page.locator("#strip")).to_contain_text("it cannot be reached")
    assert page.locator("body[data-stale]").count() == 1
    stand_in.rounds.append(federation.closed(7, ["site-000"]))
    stand_in.events.append(federation.event(901, "client_lost", 7, client="site-002"))
    stand_in.status.round, stand_in.status.rounds_done = 8, 7
    stand_in.come_back()
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#timeline")).to_contain_text("Round 7")
    expect(page.locator("#events li").first).to_contain_text("client_lost")
    expect(page.locator("#round")).to_have_text("8 of 30")
    assert page.locator("body[data-stale]").count() == 0
    assert not_reloaded(page)


def test_what_the_stream_tells_is_newer_than_an_answer_on_its_way(watch: Watcher, stand_in: StandIn) -> None:
    page = watch.open(stand_in.url)
    expect(page.locator("#model-note")).to_contain_text("72.2\u202f% on the test set")

    def answer_late(route: Route) -> None:
        answer = route.fetch()
        stand_in.rounds[-1].accuracy["published"] = 0.9
        stand_in.close_round(stand_in.rounds[-1])
        route.fulfill(response=answer)

    page.route("**/api/rounds?*", answer_late, times=1)
    stand_in.events.append(federation.event(901, "asked_after_rounds"))
    stand_in.drop()
    expect(page.locator("#events li").first).to_contain_text("asked_after_rounds")
    before_it_asks_again_ms = 10_000
    expect(page.locator("#model-note")).to_contain_text("90.0\u202f%", timeout=before_it_asks_again_ms)


def test_a_restarted_coordinator_counts_events_anew(watch: Watcher, stand_in: StandIn) -> None:
    page = watch.open(stand_in.url)
    before = len(stand_in.events)
    expect(page.locator("#events li")).to_have_count(before)
    again = federation.event(1, "run_resumed", 7)
    again.time = "2026-11-30T11:00:00.000+00:00"
    stand_in.events = [again]
    stand_in.status.serving_s = 1.0
    stand_in.drop()
    expect(page.locator("#events li").first).to_contain_text("run_resumed")
    expect(page.locator("#events li")).to_have_count(before + 1)


def test_another_run_replaces_the_page(watch: Watcher, stand_in: StandIn) -> None:
    page = watch.open(stand_in.url)
    page.evaluate("window.sameDocument = true")
    stand_in.status.run_id = "the-next-run"
    stand_in.tell()
    expect(page.locator("#run-id")).to_have_text("the-next-run")
    expect(page.locator("#connection")).to_have_text("Live")
    assert not not_reloaded(page)


def test_a_coordinator_that_left_after_its_run_is_no_alarm(serve: Serve, watch: Watcher) -> None:
    watch.refusals_expected = True
    stand_in = serve(federation.over("completed"))
    page = watch.open(stand_in.url)
    stand_in.drop(stay_away=True)
    expect(page.locator("#connection")).to_have_text("Coordinator stopped")
    expect(page.locator("#strip")).to_contain_text("run completed")


def test_who_may_no_longer_look_is_sent_to_the_log_in(watch: Watcher, stand_in: StandIn) -> None:
    watch.refusals_expected = True
    page = watch.open(stand_in.url)
    stand_in.logged_in = False
    stand_in.drop()
    expect(page).to_have_url(re.compile(r"/login$"))
    expect(page.get_by_label("Token")).to_be_focused()


def test_a_thousand_clients_do_not_freeze_the_page(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(federation.running(1000))
    page = watch.open(stand_in.url, PHONE)
    expect(page.locator("#clients tbody tr")).to_have_count(100)
    page.evaluate(NOTE_LONG_TASKS)
    for turn in range(6):
        for client in stand_in.status.clients:
            client.last_seen_s += 0.5
            client.progress = turn / 6
            client.bytes.payload_up += 1_000_000
        stand_in.tell()
        typed = time.monotonic()
        page.get_by_label("Filter").first.fill(f"site-00{turn}")
        expect(page.locator("#clients tbody tr")).to_have_count(1)
        assert time.monotonic() - typed < 5
    page.get_by_label("Filter").first.fill("")
    expect(page.locator("#clients tbody tr")).to_have_count(100)
    longest = page.evaluate("window.longest")
    assert longest < 500, f"{longest} ms in one task"
