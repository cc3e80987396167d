from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.page import federation
from tests.page.stand_in import Serve
from tests.page.watching import DESKTOP, Watcher

THIN = "\u202f"


def column(page: Page, place: int) -> list[str]:
    return page.locator(f"#clients tbody tr > :nth-child({place})").all_text_contents()


def test_the_keyboard_sorts_clients(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    by_name = column(page, 1)
    assert by_name == sorted(by_name)
    samples = page.get_by_role("button", name="Samples")
    samples.focus()
    page.keyboard.press("Enter")
    assert column(page, 7)[0] == f"1{THIN}185"
    assert column(page, 1) == by_name[::-1]
    expect(page.get_by_role("columnheader", name="Samples")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("columnheader", name="Client")).to_have_attribute("aria-sort", "none")
    page.keyboard.press("Space")
    assert column(page, 1) == by_name
    expect(page.get_by_role("columnheader", name="Samples")).to_have_attribute("aria-sort", "ascending")


def test_the_keyboard_reaches_everything_that_can_be_used(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    wanted = page.locator("a, button:enabled, input, summary, [tabindex='0']").filter(visible=True)
    reached = set()
    for _ in range(wanted.count() + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    places = wanted.evaluate_all(
        "(all) => all.map((each) => [...document.querySelectorAll('*')].indexOf(each))"
    )
    # Of radio buttons only the chosen one is a stop; arrows reach the other.
    other = page.locator("input[type=radio]:not(:checked)").evaluate_all(
        "(all) => all.map((each) => [...document.querySelectorAll('*')].indexOf(each))"
    )
    assert set(places) - set(other) <= reached


def test_the_chart_reads_the_same_to_eyes_ears_and_in_the_table(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    slider = page.get_by_role("slider", name="Round to read accuracies")
    slider.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    scores = stand_in.rounds[4].accuracy
    student = f"{100 * scores['student']:.1f}{THIN}%"
    expect(slider).to_have_attribute("aria-valuetext", re.compile(f"Round 5: student {student}"))
    expect(page.locator(".tip")).to_contain_text(student)
    page.get_by_text("The same numbers as a table").click()
    expect(page.locator("#accuracy-table tbody tr").nth(4)).to_contain_text(student)
    assert page.locator("#accuracy .line").count() == 4
    dashes = page.locator("#accuracy .line path:first-child").evaluate_all(
        "(all) => all.map((each) => getComputedStyle(each).strokeDasharray)"
    )
    assert len(set(dashes)) == 4, "lines must differ in more than their colour"


def test_held_out_accuracy_takes_the_best_strength_of_the_moments(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    page.get_by_label("sites' held-out samples").check()
    page.get_by_text("The same numbers as a table").click()
    row = page.locator("#accuracy-table tbody tr").first
    expect(row.locator("td").nth(2)).to_have_text(f"70.0{THIN}%")
    expect(row.locator("td").nth(3)).to_have_text(f"70.0{THIN}%")
    assert page.locator("#accuracy-table tbody tr").count() == 2, "only rounds with a vote have it"


def test_a_pointer_reads_the_nearest_round(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    expect(page.locator("#accuracy .line")).to_have_count(4)
    page.locator("#accuracy").hover(position={"x": 60, "y": 100})
    expect(page.locator(".tip strong")).to_have_text("Round 1")


def test_bytes_add_up_and_are_compared(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    totals, full = stand_in.status.bytes, stand_in.status.fedavg_bytes
    ratio = full / (totals.payload_up + totals.payload_down)
    expect(page.locator("#fedavg")).to_contain_text(
        f"76.0{THIN}MB of tensors so far, {ratio:.0f} times less than the 3.24{THIN}GB"
    )
    rows = [row for row in stand_in.ledger if row.phase == "student"]
    student = sum(row.bytes.payload_up + row.bytes.payload_down for row in rows) / 1e6
    expect(page.locator("#phase-bytes p", has_text="student").locator(".number")).to_have_text(
        f"{student:.1f}{THIN}MB"
    )


def test_more_bytes_than_full_models_are_not_called_less(serve: Serve, watch: Watcher) -> None:
    status = federation.running()
    status.fedavg_bytes = 38_000_000
    stand_in = serve(status)
    page = watch.open(stand_in.url)
    expect(page.locator("#fedavg")).to_contain_text("2.0 times as much as the")


def test_a_long_ledger_is_read_only_when_asked_for(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(federation.running(350))
    page = watch.open(stand_in.url)
    expect(page.locator("#events li").first).to_be_visible()
    assert "/api/ledger" not in stand_in.asked
    page.get_by_role("button", name="Add up the whole ledger").click()
    expect(page.locator("#phase-bytes")).to_contain_text("votes")
    assert stand_in.asked.count("/api/ledger") == 9, "8,400 rows in pages of 1,000"


def test_classes_are_told_by_number_as_well_as_by_shade(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    counts = stand_in.status.clients[0].class_counts
    row = page.locator("#coverage tbody tr").first
    assert row.locator("td").all_text_contents() == [str(count) for count in counts]
    expect(row.locator("td").first).to_have_class("shade-0")
    expect(row.locator("td").nth(1)).to_have_class("shade-6")
    expect(page.locator("#coverage tfoot tr").last.locator("td").first).to_have_text("40")


def test_many_sites_are_shown_in_pages(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(federation.running(100))
    page = watch.open(stand_in.url)
    expect(page.locator("#coverage tbody tr")).to_have_count(40)
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#coverage-shown")).to_have_text("81–100 of 100")
    expect(page.locator("#coverage tbody tr")).to_have_count(20)


def test_events_are_filtered_and_only_important_ones_are_spoken(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    expect(page.locator("#events li")).to_have_count(len(stand_in.events))
    expect(page.locator("#announcements")).to_have_text("")
    stand_in.happen(federation.event(910, "phase_closed", 7, "student"))
    stand_in.happen(federation.event(911, "client_lost", 7, client="site-003"))
    expect(page.locator("#announcements")).to_have_text("client lost, site-003, round 7")
    page.get_by_label("Filter").last.fill("client_lost")
    expect(page.locator("#events li")).to_have_count(3)
    expect(page.locator("#events li").first).to_contain_text("warning: client_lost")


@pytest.mark.parametrize(("prefers", "offered"), [("light", "Dark theme"), ("dark", "Light theme")])
def test_the_theme_follows_the_machine_until_told_and_is_kept(
    serve: Serve, watch: Watcher, prefers: str, offered: str
) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url, DESKTOP, prefers)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_role("button", name=offered).click()
    after = page.evaluate(ground)
    assert after != before
    page.reload()
    assert page.evaluate(ground) == after


def test_everything_can_be_downloaded_from_here(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    links = page.locator(".downloads a").evaluate_all("(all) => all.map((each) => each.getAttribute('href'))")
    assert sorted(links) == [
        f"download/{name}"
        for name in ("clients.csv", "events.jsonl", "ledger.csv", "rounds.csv", "rounds.jsonl")
    ]
