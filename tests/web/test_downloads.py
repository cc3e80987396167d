"""Tables that people save."""

from __future__ import annotations

import csv
import io
import json

import pytest

from fkd_common.ledger import ByteCount, LedgerKey
from fkd_common.message_json import as_json
from fkd_server.web.downloads import DOWNLOADS
from tests.server.tiny import TinyRun

from .showing import showing
from .test_server import a_round


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_ledger_is_the_one_that_the_run_leaves(run: TinyRun) -> None:
    a_round(run)
    for number in range(2500):  # more than two pages
        run.service.ledger.book(LedgerKey("a", number, "moments"), ByteCount(calls=1, message_up=number))
    with showing(run) as shown:
        answer = shown.ask("/download/ledger.csv")
    assert answer.text == run.service.ledger.to_csv()
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="ledger.csv"'


def test_rounds_are_one_row_or_one_object_each(run: TinyRun) -> None:
    a_round(run)
    run.chronicle.history.score(1, {"student": 0.75, "published": 0.5})
    with showing(run) as shown:
        (row,) = rows(shown.ask("/download/rounds.csv").text)
        (line,) = shown.ask("/download/rounds.jsonl").text.splitlines()
    (status,) = run.overview.rounds(0).rounds
    assert json.loads(line) == as_json(status)
    assert (row["round"], row["cohort"], row["accuracy_student"]) == ("1", "a b", "0.75")
    assert (row["accuracy_moments"], row["validation_student"]) == ("", "")
    assert float(row["student_s"]) == status.phases[0].seconds


def test_clients_have_a_row_each_with_their_bytes(run: TinyRun) -> None:
    a_round(run)
    with showing(run) as shown:
        found = rows(shown.ask("/download/clients.csv").text)
    assert [row["name"] for row in found] == ["a", "b"]
    assert int(found[0]["message_up"]) == run.service.ledger.sums()[0]["a"].message_up
    assert {"samples_of_cat", "samples_of_dog"} <= set(found[0])


def test_events_are_one_object_a_line(run: TinyRun) -> None:
    a_round(run)
    for number in range(450):  # more than two pages
        run.chronicle.events.add("noise", {"number": number})
    with showing(run) as shown:
        lines = shown.ask("/download/events.jsonl").text.splitlines()
    numbers = [json.loads(line)["number"] for line in lines]
    assert numbers == list(range(1, run.overview.events(numbers[-1] - 1).events[-1].number + 1))


def test_what_a_client_says_is_no_formula_to_a_spreadsheet(run: TinyRun) -> None:
    site = run.site("a")
    for activity in ('=HYPERLINK("http://evil.example")', "+1", "-1", "@SUM(A1)", "fine"):
        site.call("Heartbeat", activity=activity, progress=0.5)
        with showing(run) as shown:
            (row,) = rows(shown.ask("/download/clients.csv").text)
        assert row["activity"] == (activity if activity == "fine" else f"'{activity}")


def test_a_ledger_that_is_saved_while_it_grows_has_every_row_once(run: TinyRun) -> None:
    book = run.service.ledger.book
    for number in range(2500):
        book(LedgerKey("m", number, "moments"), ByteCount(calls=1, message_up=number))
    pages = DOWNLOADS["ledger.csv"].pages(run.overview)
    text = next(pages)
    saved = {key for key, _ in run.service.ledger.rows()}
    for number in range(700):
        book(LedgerKey("a", number, "moments"), ByteCount(calls=1))  # before those that have been sent
    found = [(row["client"], int(row["round"]), row["phase"]) for row in rows(text + "".join(pages))]
    assert [LedgerKey(*each) for each in found] == sorted(saved)


def test_a_vote_over_numbered_moments_has_the_best_of_them_in_its_row(run: TinyRun) -> None:
    votes = {
        "seconds": 1.0, "returned": [], "missing": [], "failed": [], "published": "moments.1",
        "validation_accuracy": {"student": 0.5, "anchors": 0.55, "moments.0": 0.6, "moments.1": 0.75},
    }  # fmt: skip
    run.chronicle.history.add({"round": 1, "seconds": 2.0, "cohort": ["a"], "phases": {"votes": votes}})
    run.chronicle.history.add({"round": 2, "seconds": 2.0, "cohort": ["a"], "phases": {}})
    with showing(run) as shown:
        voted, other = rows(shown.ask("/download/rounds.csv").text)
    assert {name: voted[f"validation_{name}"] for name in ("student", "anchors", "moments", "published")} == {
        "student": "0.5", "anchors": "0.55", "moments": "0.75", "published": "0.75",
    }  # fmt: skip
    assert [other[f"validation_{name}"] for name in ("student", "published")] == ["", ""]


@pytest.mark.parametrize("name", DOWNLOADS)
def test_a_run_that_has_not_begun_has_files_too(run: TinyRun, name: str) -> None:
    with showing(run) as shown:
        assert shown.ask(f"/download/{name}").status == 200


@pytest.mark.parametrize("name", ["x", "ledger.csv.bak", "..", "state.db", "%2e%2e%2fstate.db"])
def test_there_are_no_others(run: TinyRun, name: str) -> None:
    with showing(run) as shown:
        assert shown.ask(f"/download/{name}").status == 404
