from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page, Route, expect

from fkd_common.pb import admin_pb2 as pb
from tests.page import federation
from tests.page.stand_in import Serve
from tests.page.watching import PHONE, Watcher

HOSTILE = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\u202egpj.exe",
    '"><svg onload=window.pwned=1>',
    "x" * 300,
    "&lt;b&gt;",
]


def paused() -> pb.StatusResponse:
    status = federation.running()
    status.paused, status.phase = True, ""
    status.waiting_for = "paused by alice: goes on with `fkd-server resume`"
    status.ClearField("deadline_s")
    return status


def hostile() -> pb.StatusResponse:
    status = federation.running(len(HOSTILE), names=HOSTILE)
    status.run_id, status.waiting_for = HOSTILE[0], f"waiting for {', '.join(HOSTILE)}"
    status.clients[0].activity = HOSTILE[1]
    status.classes[0] = HOSTILE[1]
    return status


STATES: dict[str, tuple[Callable[[], pb.StatusResponse], str]] = {
    "gathering": (federation.gathering, "Gathering clients"),
    "running": (federation.running, "Running"),
    "paused": (paused, "Paused"),
    "completed": (lambda: federation.over("completed"), "Completed"),
    "aborted": (lambda: federation.over("aborted"), "Aborted"),
    "hostile": (hostile, "Running"),
}


@pytest.mark.parametrize("name", STATES)
def test_every_state_is_told_in_words_and_by_a_shape(serve: Serve, watch: Watcher, name: str) -> None:
    status, word = STATES[name][0](), STATES[name][1]
    stand_in = serve(status)
    page = watch.open(stand_in.url)
    expect(page.locator("#state")).to_have_text(word)
    assert page.locator("#state svg path").count() == 1
    expect(page.locator("#strip")).to_contain_text(status.waiting_for)
    expect(page.locator("#run-id")).to_have_text(status.run_id)


def test_a_run_that_is_being_prepared_is_awaited(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(federation.gathering())
    stand_in.unready = "preparing: embedding the anchors"
    page = watch.open(stand_in.url, wait="Not serving")
    expect(page.locator("#state")).to_have_text("Preparing")
    expect(page.locator("#strip")).to_have_text("preparing: embedding the anchors")
    for part in ("#model-note", "#accuracy", "#clients", "#coverage", "#events-note"):
        expect(page.locator(part)).to_contain_text("The run is being prepared.")
    assert awaited(page) == set()
    stand_in.unready = ""
    stand_in.tell()
    expect(page.locator("#state")).to_have_text("Gathering clients")


@pytest.mark.parametrize("name", STATES)
def test_no_barrier_for_anybody(serve: Serve, watch: Watcher, name: str) -> None:
    stand_in = serve(STATES[name][0]())
    page = watch.open(stand_in.url)
    for details in page.locator("details > summary").all():
        details.click()
    assert barriers(page) == []
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.emulate_media(color_scheme="dark")
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], "only tables scroll sideways"


def test_the_way_in_has_no_barrier(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(f"{stand_in.url}login#refused", PHONE, wait="")
    expect(page.locator("#refused")).to_be_visible()
    assert barriers(page) == []
    page.emulate_media(color_scheme="dark")
    assert barriers(page) == []
    page.goto(f"{stand_in.url}login?anew")
    expect(page.locator("#refused")).to_be_hidden()


def test_names_and_details_from_outside_are_text(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(hostile())
    stand_in.events[-1].detail = HOSTILE[3]
    stand_in.rounds[-1].phases[0].failed[HOSTILE[0]] = HOSTILE[1]
    page = watch.open(stand_in.url)
    page.get_by_text("All rounds as a table").click()
    for name in HOSTILE:
        expect(page.locator("#clients tbody th", has_text=name).first).to_be_visible()
    expect(page.locator("#events")).to_contain_text(HOSTILE[3])
    expect(page.locator("#rounds-table")).to_contain_text(f"{HOSTILE[0]} failed: {HOSTILE[1]}")
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("main script").count() == 0


def test_an_empty_page_says_why(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(federation.gathering())
    page = watch.open(stand_in.url)
    expect(page.locator("#clients")).to_contain_text("No client has registered yet")
    expect(page.locator("#accuracy")).to_contain_text("No round has been scored yet")
    expect(page.locator("#timeline-none")).to_have_text("No round is over yet.")
    expect(page.locator("#model")).to_have_text("none yet")
    expect(page.locator("#export")).to_be_hidden()
    expect(page.locator("#coverage")).to_contain_text("Known once sites have sent second moments")


def test_nothing_is_said_to_be_missing_before_the_answer_is_there(serve: Serve, watch: Watcher) -> None:
    held: dict[str, Route] = {}
    stand_in = serve()
    page = watch.open(f"{stand_in.url}login", wait="")
    for name in ("stream", "rounds", "events"):
        page.route(
            re.compile(f"/api/{name}"),
            lambda route: held.update({route.request.url.split("/")[-1]: route}),
            times=1,
        )
    watch.open(stand_in.url, wait="Connecting…")
    expect(page.locator("#strip")).to_have_text("Asking the coordinator…")
    assert awaited(page) == {"status", "rounds", "events"}
    held["stream"].continue_()
    expect(page.locator("#connection")).to_have_text("Live")
    assert awaited(page) == {"rounds", "events"}
    expect(page.locator("#accuracy")).to_contain_text("loading…")
    held["rounds?first=0"].continue_()
    expect(page.locator("#timeline .bar-row").first).to_be_visible()
    assert awaited(page) == {"events"}
    expect(page.locator("#events-note")).to_have_text("loading…")
    held["events?after=0"].continue_()
    expect(page.locator("#events li").first).to_be_visible()
    assert awaited(page) == set()


def test_sites_that_do_not_tell_their_classes_are_no_mystery(serve: Serve, watch: Watcher) -> None:
    status = federation.running()
    for client in status.clients:
        del client.class_counts[:]
    stand_in = serve(status)
    page = watch.open(stand_in.url)
    expect(page.locator("#coverage")).to_contain_text("With secure aggregation or noise they do not tell")


def awaited(page: Page) -> set[str]:
    """What is said to be loading; of nothing it may be said that there is none."""
    said = page.locator("main").inner_text()
    assert "0 of 0" not in said
    assert "No " not in said
    assert "yet" not in said
    loading = page.get_by_text("loading…", exact=True).filter(visible=True)
    return set(loading.evaluate_all("(all) => all.map((each) => each.dataset.kind)"))


def barriers(page: Page) -> list[str]:
    """What axe-core finds that keeps somebody out, or makes it hard to get in."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    return [
        f"{each['id']} ({each['impact']}): {node['target']} {node['failureSummary']}"
        for each in found
        if each["impact"] != "minor"
        for node in each["nodes"]
    ]
