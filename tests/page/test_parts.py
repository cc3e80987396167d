from __future__ import annotations

import io
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from fkd_common.errors import UsageError
from fkd_common.pb import types_pb2 as types
from fkd_server.operator import export
from tests.page import federation
from tests.page.stand_in import PAGE, Serve
from tests.page.watching import DESKTOP, PHONE, Watcher
from tests.scenario_table import Seen

THIN = "\u202f"
MOST_BYTES = 72_000


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
    expect(page.locator("#accuracy .line").first).to_be_visible()
    page.evaluate(
        "document.addEventListener('focusin', ({ target }) => target.setAttribute('data-reached', ''))"
    )
    # Of radio buttons only the chosen one is a stop; arrows reach the other.
    stops = "a, button:enabled, input:enabled:not([type=radio]:not(:checked)), summary, [tabindex='0']"
    for _ in range(page.locator(stops).filter(visible=True).count()):
        page.keyboard.press("Tab")
    left_out = page.locator(f":is({stops}):not([data-reached])").filter(visible=True)
    assert left_out.evaluate_all("(all) => all.map((each) => each.outerHTML)") == []


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
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()
    page.get_by_text("The same numbers as a table").click()
    expect(page.locator("#accuracy-table tbody tr").nth(4)).to_contain_text(student)
    assert page.locator("#accuracy .line").count() == 4


def test_personal_models_have_a_line_where_a_run_asks_for_their_scores(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    expect(page.locator("#personal-note")).to_contain_text("stay there unless the run asks for them")
    scored = stand_in.rounds[-1]
    scored.validation["personal"] = 0.83
    stand_in.close_round(scored)
    expect(page.locator("#personal-note")).to_contain_text("so their number flatters")
    expect(page.locator("#accuracy .personal")).to_have_count(0)
    page.get_by_label("sites' held-out samples").check()
    expect(page.locator("#accuracy .label.personal")).to_have_text("personal")
    page.get_by_text("The same numbers as a table").click()
    expect(page.locator("#accuracy-table tbody tr").last).to_contain_text(f"83.0{THIN}%")
    dashes = page.locator("#accuracy .line path:first-child").evaluate_all(
        "(all) => all.map((each) => getComputedStyle(each).strokeDasharray)"
    )
    marks = page.locator("#accuracy .line .dot:last-child").evaluate_all(
        "(all) => all.map((each) => each.getAttribute('d').replace(/^M[0-9. -]+/, ''))"
    )
    assert len(set(dashes)) == len(set(marks)) == 5, "lines must differ in more than their colour"


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
    assert page.locator("#phase-bytes .name").all_text_contents() == [
        "setup", "student", "residuals", "moments", "votes",
    ]  # fmt: skip
    student = page.locator("#phase-bytes p", has_text="student")
    assert student.locator(".number").text_content() == f"45.6{THIN}MB"
    assert student.locator(".unseen").text_content() == f": 16.8{THIN}MB up, 28.8{THIN}MB down"


def test_every_phase_of_the_protocol_has_its_bytes_shown_with_those_of_its_kind(
    serve: Serve, watch: Watcher
) -> None:
    status = federation.running()
    status.bytes_by_phase.clear()
    phases = [name.removeprefix("PHASE_").lower() for name in types.Phase.keys()[1:]]
    for phase in phases:
        status.bytes_by_phase[phase].payload_up = 1_000_000
    page = watch.open(serve(status).url)
    kinds = Counter(phase.split("_")[0] for phase in phases)
    assert kinds["refine"] > 1
    shown = page.locator("#phase-bytes p").evaluate_all(
        "(all) => all.map((row) => ['.name', '.number'].map((part) => row.querySelector(part).textContent))"
    )
    assert dict(shown) == {
        kind: f"{steps:.{2 if steps < 10 else 1}f}{THIN}MB" for kind, steps in kinds.items()
    }


def test_a_step_of_many_is_named_while_it_is_open_and_when_it_is_over(serve: Serve, watch: Watcher) -> None:
    status = federation.running()
    status.phase = "refine_3"
    stand_in = serve(status)
    page = watch.open(stand_in.url)
    expect(page.locator("#phase")).to_have_text("refine 3")
    over = federation.closed(7, ["site-000"])
    for step in (1, 2):
        over.phases.add(phase=f"refine_{step}", seconds=1.0)
    stand_in.close_round(over)
    bars = page.locator("#timeline .bar-row", has_text="Round 7").locator("i.phase-refine")
    expect(bars).to_have_count(2)
    expect(bars.last).to_have_text(f"refine 2 1.0{THIN}s")
    expect(page.locator("#phase-legend .phase-refine")).to_have_text("refine")


def test_more_bytes_than_full_models_are_not_called_less(serve: Serve, watch: Watcher) -> None:
    status = federation.running()
    status.fedavg_bytes = 38_000_000
    stand_in = serve(status)
    page = watch.open(stand_in.url)
    expect(page.locator("#fedavg")).to_contain_text("2.0 times as much as the")


def test_who_left_is_told_apart_from_who_is_silent(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    tones = {state: page.locator("#clients .mark-word", has_text=state) for state in ("left", "gone")}
    expect(tones["left"]).to_have_attribute("data-tone", "quiet")
    expect(tones["gone"]).to_have_attribute("data-tone", "warn")
    expect(page.locator("#clients-note")).to_have_text("6 clients, 4 alive, 1 left, 1 gone")
    icons = page.locator("#clients .mark-word path")
    shapes = icons.evaluate_all("(all) => all.map((each) => each.getAttribute('d'))")
    assert len(set(shapes)) == len(federation.STATES), "states must differ in more than their colour"


def test_nobody_is_missed_when_the_run_is_over(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(federation.over("completed"))
    page = watch.open(stand_in.url)
    expect(page.locator("#clients-note")).to_have_text("6 clients, all left")
    expect(page.locator("#moved-note")).to_contain_text("6 clients, all left")
    assert page.locator("#clients [data-tone=warn], #clients [data-tone=bad]").count() == 0


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_whole_table_of_clients_fits_a_laptop(serve: Serve, watch: Watcher, width: int) -> None:
    status = federation.running()
    slow = status.clients[4]
    slow.last_seen_s, slow.uploads, slow.samples, slow.reliability = 3599.0, 12_345, 1_234_567, 1.0
    status.clients[5].weight = 0.0
    stand_in = serve(status)
    page = watch.open(stand_in.url, (width, 800))
    expect(page.locator("#clients tbody tr")).to_have_count(6)
    assert page.locator("#clients").evaluate("(box) => box.scrollWidth - box.clientWidth") == 0
    cut = page.locator("#clients :is(th, td)").evaluate_all(
        "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
    )
    assert cut == []
    weight = page.locator("#clients tbody tr").nth(5).locator("td").nth(7)
    expect(weight).to_have_text("–")
    expect(weight).to_have_attribute("title", "no share in the last average")


def test_a_phone_shows_what_matters_of_clients_and_that_there_is_more(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url, PHONE)
    heads = page.locator("#clients thead th").all_text_contents()
    assert heads[:5] == ["Client", "State", "Last seen", "Missed", "Activity"]
    inside = "(head) => head.getBoundingClientRect().right <= head.closest('.scroll').getBoundingClientRect().right"
    assert page.locator("#clients thead th").nth(2).evaluate(inside)
    box = page.locator("#clients")
    assert "-gradient" in box.evaluate("(box) => getComputedStyle(box).backgroundImage")
    at_first = shades_at_the_right(page)
    box.evaluate("(box) => box.scrollTo(box.scrollWidth, 0)")
    assert at_first > 1, "an edge in shadow tells that there is more"
    assert shades_at_the_right(page) == 1, "and at the end there is none"


def test_the_next_step_with_a_model_is_a_command_that_works(
    serve: Serve, watch: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    command = page.locator("#export code")
    expect(command).to_have_text("fkd-server export --format onnx --out model.onnx")
    command.click()
    said = page.evaluate("getSelection().toString()")
    assert said == command.text_content(), "a click takes all of it"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no run with a model in"):
        export.main(shlex.split(said)[2:])


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
    expect(page.locator("#coverage-pages span")).to_have_text("81–100 of 100")
    expect(page.locator("#coverage tbody tr")).to_have_count(20)


def test_events_are_filtered_and_only_important_new_ones_are_spoken(serve: Serve, watch: Watcher) -> None:
    stand_in = serve(federation.running(round_number=120, rounds=200))
    page = watch.open(stand_in.url)
    expect(page.locator("#events-note")).to_contain_text(f"200 of {len(stand_in.events)} shown")
    stand_in.happen(federation.event(910, "phase_closed", 7, "student"))
    stand_in.happen(federation.event(911, "client_lost", 7, client="site-003"))
    expect(page.locator("#announcements")).to_have_text("client lost, site-003, round 7")
    page.get_by_label("Filter").last.fill("site-003")
    expect(page.locator("#events li")).to_have_count(2)
    expect(page.locator("#events li").first).to_contain_text("warning: client_lost")


@pytest.mark.parametrize("prefers", ["light", "dark"])
def test_the_theme_follows_the_machine_until_told_and_is_kept(
    serve: Serve, watch: Watcher, prefers: str
) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url, DESKTOP, prefers)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_role("button", name="Light / dark").click()
    after = page.evaluate(ground)
    assert after != before
    page.reload()
    assert page.evaluate(ground) == after
    page.evaluate("localStorage.clear()")


def test_everything_can_be_downloaded_from_here(serve: Serve, watch: Watcher) -> None:
    stand_in = serve()
    page = watch.open(stand_in.url)
    links = page.locator(".downloads a").evaluate_all("(all) => all.map((each) => each.getAttribute('href'))")
    assert sorted(links) == [
        f"download/{name}"
        for name in ("clients.csv", "events.jsonl", "ledger.csv", "rounds.csv", "rounds.jsonl")
    ]


def shades_at_the_right(page: Page) -> int:
    """Colours at the right edge of the table of clients, above the text of its first row."""
    below = page.locator("#clients thead").bounding_box()
    assert below is not None
    picture = Image.open(io.BytesIO(page.locator("#clients").screenshot())).convert("RGB")
    row = int(below["height"]) + 3
    return len({picture.getpixel((x, row)) for x in range(picture.width - 9, picture.width)})


def test_the_page_is_small_and_whole(seen: Seen) -> None:
    """All of it comes from the coordinator, over lines that are not always good."""
    files = [path for path in PAGE.iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    seen(f"{len(files)} files, {size / 1000:.1f} kB")
    assert size < MOST_BYTES
