"""Metrics: the table of them, and what they count."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fkd_common.ledger import LedgerKey
from fkd_server.access.tls import ServerTls
from fkd_server.run_state import Event
from fkd_server.web.metric_table import METRICS, Kind
from tests.security.conftest import Pki
from tests.server.tiny import TinyRun, filled, tiny_run
from tests.tools import require_tool

from .showing import Shown, showing
from .test_server import a_round

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(shown: Shown) -> Series:
    """Samples by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(shown.ask("/metrics").text)
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


@pytest.fixture
def busy(run: TinyRun, pki: Pki) -> Shown:
    """A run of which everything is known that can be known."""
    with showing(run, tls=ServerTls(pki.folder)) as shown:
        a_round(run)
        run.chronicle.history.score(1, {"student": 0.75})
        for event in run.events:
            shown.meters.on_event(Event(event.name, {**event.fields, "fold_seconds": 0.25}))
        shown.meters.answered("PutChunk", "OK", "", 0.01)
        shown.meters.answered("NextTask", "OK", "", 4.0)
        shown.meters.answered("PutChunk", "INVALID_ARGUMENT", "BAD_OFFSET", 0.01)
        yield shown


def test_every_metric_is_in_the_table_and_every_row_of_the_table_is_served(busy: Shown) -> None:
    text = busy.ask("/metrics").text
    served = {
        (name, kind, help_text)
        for name, kind, help_text in (
            (found[1], found[2], re.search(rf"^# HELP {found[1]} (.*)$", text, re.MULTILINE)[1])  # type: ignore[index]
            for found in re.finditer(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
        )
    }
    ours = {(metric.name, metric.kind.value, metric.meaning) for metric in METRICS}
    assert {(name, kind) for name, kind, _ in served} == {(name, kind) for name, kind, _ in ours}
    assert {each for each in served if each[0].startswith("fkd_")} == {
        each for each in ours if each[0].startswith("fkd_")
    }


def test_labels_are_those_of_the_table(busy: Shown) -> None:
    labels: dict[str, set[str]] = {}
    for (name, pairs), _ in series(busy).items():
        labels.setdefault(name, set()).update(key for key, _ in pairs if key != "le")
    for metric in METRICS:
        name = f"{metric.name}_count" if metric.kind is Kind.HISTOGRAM else metric.name
        if name in labels:  # between phases some have no series
            assert labels[name] == set(metric.labels), metric.name


def test_names_follow_the_conventions(busy: Shown) -> None:
    promtool = require_tool("promtool")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=busy.ask("/metrics").body, capture_output=True, timeout=30
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_they_count_what_happened(busy: Shown, run: TinyRun) -> None:
    found = series(busy)
    assert value(found, "fkd_ready") == 1
    assert value(found, "fkd_rounds_done_total") == value(found, "fkd_round") == 1
    assert value(found, "fkd_run_state", state="completed") == 1
    assert value(found, "fkd_run_state", state="running") == 0
    assert value(found, "fkd_clients_needed") == 2
    assert value(found, "fkd_client_up", client="a") == 1
    assert value(found, "fkd_uploads_total") == 2
    assert value(found, "fkd_accuracy", candidate="student") == 0.75
    assert value(found, "fkd_phase_seconds_count", phase="student") == 1
    assert value(found, "fkd_aggregation_seconds_sum", phase="student") == 0.25
    assert value(found, "fkd_rpc_seconds_count", method="PutChunk", code="OK") == 1
    assert value(found, "fkd_poll_seconds_sum", code="OK") == 4.0
    assert value(found, "fkd_rejected_total", reason="BAD_OFFSET") == 1
    bytes_up = run.service.ledger.by_phase()["student"]
    labels = {"phase": "student", "direction": "up"}
    assert value(found, "fkd_bytes_total", kind="payload", **labels) == bytes_up.payload_up > 0
    assert value(found, "fkd_bytes_total", kind="message", **labels) == bytes_up.message_up
    assert value(found, "fkd_blob_store_bytes") == sum(
        path.stat().st_size for folder in (run.blobs, run.uploads) for path in folder.iterdir()
    )
    assert value(found, "fkd_disk_free_bytes") > 0
    assert value(found, "fkd_certificate_expiry_timestamp_seconds") > 1.7e9


def test_a_run_that_has_tidied_up_is_still_told(run: TinyRun) -> None:
    a_round(run)
    shutil.rmtree(run.uploads)
    with showing(run) as shown:
        found = series(shown)
    assert value(found, "fkd_blob_store_bytes") == sum(path.stat().st_size for path in run.blobs.iterdir())


def test_an_open_phase_has_a_deadline_and_those_it_waits_for(run: TinyRun) -> None:
    sites = [run.site("a"), run.site("b")]
    for each in sites:
        each.poll()
    sites[0].submit_student(1, filled(run.method, 0.5))
    run.clock.now += 10.0
    with showing(run) as shown:
        found = series(shown)
    assert value(found, "fkd_phase_open", phase="student") == 1
    assert (value(found, "fkd_phase_participants"), value(found, "fkd_phase_answered")) == (2, 1)
    assert value(found, "fkd_deadline_seconds") == pytest.approx(50.0)
    assert value(found, "fkd_clients", state="answered") == 1


def counters(found: Series) -> Series:
    """Those that the run feeds."""
    ours = {metric.name for metric in METRICS if metric.kind is Kind.COUNTER}
    return {key: value for key, value in found.items() if key[0] in ours and key[0].startswith("fkd_")}


def test_counters_begin_anew_with_the_process_and_the_runs_sums_go_on(tmp_path: Path) -> None:
    first = tiny_run(tmp_path / "again")
    with showing(first) as shown:
        a_round(first)
        before = series(shown)
    first.store.close()
    second = tiny_run(tmp_path / "again")
    with showing(second) as shown:
        after = series(shown)
    labels = {"phase": "student", "direction": "up", "kind": "payload"}
    assert value(before, "fkd_uploads_total") == 2
    assert value(before, "fkd_bytes_total", **labels) == value(before, "fkd_run_bytes", **labels) > 0
    assert value(after, "fkd_run_bytes", **labels) == value(before, "fkd_run_bytes", **labels)
    assert set(counters(after).values()) == {0}


def test_a_run_that_has_lost_its_last_seconds_is_not_counted_twice(tmp_path: Path) -> None:
    """As after `kill -9`, or when an older copy of the folder is put back: what is read is less than was seen."""
    run = tiny_run(tmp_path / "lost", rounds=9)
    a_round(run)
    with showing(run) as shown:
        a_round_of(run, 2)
        seen = counters(series(shown))
        lost = LedgerKey("a", 2, "student")
        run.service.ledger.book(lost, -dict(run.service.ledger.rows())[lost])
        run.chronicle.history._rounds.clear()
        assert counters(series(shown)) == seen
    assert value(seen, "fkd_rounds_done_total") == 1
    assert value(seen, "fkd_bytes_total", phase="student", direction="up", kind="payload") > 0


def a_round_of(run: TinyRun, number: int) -> None:
    """Two sites again."""
    sites = [run.site("a"), run.site("b")]
    for each in sites:
        each.poll()
    for each in sites:
        each.submit_student(number, filled(run.method, 0.5))


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=a",
        "application/openmetrics-text;version=1.0.0a;q=0.5",
        "application/openmetrics-text; version=",
        "application/openmetrics-text; version=99.99.99",
        "application/openmetrics-text; version=1.0.0; escaping=nonsense",
        "text/plain;version=x",
        "text/plain;version=1.x.0",
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1",
        ",;,;=;version",
        "version=version=",
        "image/png",
    ],
)
def test_whatever_format_a_scraper_asks_for_it_gets_one(busy: Shown, accept: str) -> None:
    answer = busy.ask("/metrics", Accept=accept)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith(
        ("text/plain; version=", "application/openmetrics-text; version=")
    )
    assert b"fkd_ready 1.0" in answer.body


def test_a_watch_that_is_held_for_hours_does_not_count_as_a_slow_call(run: TinyRun) -> None:
    with showing(run) as shown:
        shown.meters.answered("Watch", "OK", "", 7200.0)
        assert not [name for name, _ in series(shown) if name.startswith("fkd_rpc_seconds")]


def test_a_client_that_has_left_is_no_client_that_is_down(run: TinyRun) -> None:
    a, b = run.site("a"), run.site("b")
    a.call("Leave")
    b.poll()
    run.clock.now += 60.0
    run.service.tick()
    with showing(run) as shown:
        found = series(shown)
    assert [value(found, "fkd_clients", state=state) for state in ("left", "gone")] == [1, 1]
    assert value(found, "fkd_client_up", client="b") == 0
    assert ("fkd_client_up", (("client", "a"),)) not in found
