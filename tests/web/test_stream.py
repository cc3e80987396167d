"""What a page is told, and what watchers may hold."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
from structlog.testing import capture_logs

from fkd_common.access.roles import Role
from fkd_common.message_json import as_json
from fkd_server.access.records import revoke
from fkd_server.access.tls import ServerTls
from fkd_server.event_log import MAX_EVENT
from fkd_server.web.limits import WebLimits
from fkd_server.web.stream import LOOK_EVERY_S, STATUS_BYTES_PER_S
from tests.security.conftest import Pki
from tests.server.tiny import TinyRun, filled

from .showing import EVERYWHERE, TOKEN, Shown, Watcher, showing, until
from .test_access import browser
from .test_connections import held
from .test_server import a_round


@contextmanager
def watching(shown: Shown, path: str = "/api/stream", **headers: str) -> Iterator[Watcher]:
    watcher = Watcher(shown, path, **headers)
    try:
        yield watcher
    finally:
        watcher.close()


def test_the_status_comes_at_once_and_again_when_it_changes(run: TinyRun) -> None:
    with showing(run) as shown, watching(shown) as watcher:
        first = watcher.next("status").data
        assert first == {**as_json(run.overview.status()), "serving_s": first["serving_s"]}
        run.site("a").poll()
        changed = watcher.next("status").data
    assert [client["name"] for client in changed["clients"]] == ["a"]


def test_a_status_that_stays_the_same_is_told_again_after_a_while(run: TinyRun) -> None:
    with showing(run) as shown, watching(shown) as watcher:
        first, second = watcher.next("status"), watcher.next("status")
    assert first.data["clients"] == second.data["clients"] == []


def test_a_large_status_that_changes_is_told_less_often(run: TinyRun) -> None:
    """So that a run of very many clients does not fill the line of who watches it; what happens is told at once."""
    scores = {f"candidate-{number:05}": 0.5 for number in range(12_000)}
    run.chronicle.history.add({"round": 1, "seconds": 1.0, "cohort": [], "phases": {}}, scores)
    began = time.monotonic()
    with showing(run) as shown, watching(shown) as watcher:
        size = len(json.dumps(watcher.next("status").data, separators=(",", ":")))
        run.site("a")
        told = [message.name for message in islice(watcher.messages(), 2)]
    assert told == ["log", "status"]
    assert time.monotonic() - began >= size / STATUS_BYTES_PER_S > 2 * LOOK_EVERY_S


def test_a_round_is_told_when_it_closes_and_again_with_its_accuracy(run: TinyRun) -> None:
    with showing(run) as shown, watching(shown) as watcher:
        watcher.next("status")
        a_round(run)
        closed = watcher.next("round").data
        assert (closed["round"], closed["accuracy"]) == (1, {})
        run.chronicle.history.score(1, {"student": 0.75})
        run.chronicle.events.add("evaluated", {"round": 1, "student": 0.75})
        scored = watcher.next("round").data
    assert scored == {**closed, "accuracy": {"student": 0.75}}


def test_events_are_numbered_and_only_new_ones_are_told(run: TinyRun) -> None:
    run.site("a")
    with showing(run) as shown, watching(shown) as watcher:
        watcher.next("status")
        run.site("b")
        told = watcher.next("log")
    assert told.number == told.data["number"] == run.overview.events(0).events[-1].number
    assert told.data["client"] == "b"


@pytest.mark.parametrize("how", ["header", "query"])
def test_whoever_comes_back_is_told_exactly_what_was_missed(run: TinyRun, how: str) -> None:
    run.site("a")
    with showing(run) as shown, watching(shown) as watcher:
        watcher.next("status")
        run.site("b")
        seen = watcher.next("log").number
        assert seen is not None
        for number in range(300):  # more than one page of events
            run.chronicle.events.add("noise", {"number": number})
        back = {"Last_Event_ID": str(seen)} if how == "header" else {}
        path = "/api/stream" if how == "header" else f"/api/stream?after={seen}"
        with watching(shown, path, **back) as again:
            told = [again.next("log").number for _ in range(300)]
            run.site("c")
            told.append(again.next("log").number)
        here = [watcher.next("log").number for _ in range(301)]
    assert told == here == list(range(seen + 1, seen + 302))


def test_whoever_comes_back_after_a_restart_is_told_everything_anew(run: TinyRun) -> None:
    run.site("a")
    with showing(run) as shown, watching(shown, Last_Event_ID="4711") as watcher:
        assert watcher.next("log").number == 1


@pytest.mark.parametrize("last", ["-1", "x", "1 2", "", "²"])
def test_a_last_event_that_is_none_is_taken_for_no_last_event(run: TinyRun, last: str) -> None:
    run.site("a")
    with showing(run) as shown, watching(shown, Last_Event_ID=last) as watcher:
        assert next(watcher.messages()).name == "status"


def test_a_page_that_waited_for_the_run_is_told_its_first_events() -> None:
    """There is no run yet: the same stream goes on when there is one."""
    with showing(unready="preparing") as shown, watching(shown) as watcher:
        assert watcher.next("unready").data["detail"].startswith("the run is not there yet")


def test_only_so_many_may_watch(run: TinyRun) -> None:
    limits = WebLimits(watchers=2)
    with showing(run, limits=limits) as shown:
        with watching(shown) as first, watching(shown) as second:
            first.next("status"), second.next("status")
            assert shown.ask("/api/stream").status == 429
        until(lambda: free(shown))


def free(shown: Shown) -> bool:
    """Whether there is room for a watcher."""
    with watching(shown) as watcher:
        return watcher.status == 200


def test_a_watcher_that_takes_nothing_is_dropped_and_another_goes_on(run: TinyRun) -> None:
    for number in range(300):
        run.site(f"site-{number:03}")
    with showing(run, limits=WebLimits(answer_s=0.5)) as shown, watching(shown) as watcher:
        watcher.next("status")
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", shown.port))
        stuck.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: held(shown) == 2)
        number = 0

        def news_and_dropped() -> bool:
            nonlocal number
            number += 1
            for _ in range(200):
                run.chronicle.events.add("noise", {"number": number, "text": "x" * MAX_EVENT})
            for _ in range(200):
                watcher.next("log")
            return held(shown) == 1

        until(news_and_dropped)
        stuck.close()
        assert watcher.next("status").data["run_id"] == "run-1"


def test_a_stream_ends_with_the_certificate_that_opened_it(run: TinyRun, pki: Pki) -> None:
    tls = ServerTls(pki.folder)
    with showing(run, EVERYWHERE, TOKEN, tls) as shown:
        shown.tls = browser(pki.holder("alice", Role.OPERATOR))
        with watching(shown) as watcher:
            watcher.next("status")
            revoke(pki.folder, "alice")
            run.site("a")
            assert watcher.ended()


def test_a_bug_in_telling_is_said_and_does_not_end_the_telling(run: TinyRun) -> None:
    run.site("a")
    version = run.overview._version
    with capture_logs() as lines, showing(run) as shown, watching(shown) as watcher:
        watcher.next("status")
        run.overview._version = 7  # type: ignore[assignment]  # no text: the message does not take it
        assert "bug" in watcher.next("unready").data["detail"]
        with watching(shown) as late:
            assert "bug" in late.next("unready").data["detail"]
        run.overview._version = version
        run.site("b")
        assert watcher.next("log").data["client"] == "b"
        assert [client["name"] for client in watcher.next("status").data["clients"]] == ["a", "b"]
    failed = [line for line in lines if line["event"] == "look_failed"]
    assert failed and "TypeError" in failed[0]["detail"]


def test_whoever_comes_back_while_the_run_cannot_be_told_gets_no_half_answer(run: TinyRun) -> None:
    run.site("a")
    events = run.overview._chronicle.events
    with showing(run) as shown, watching(shown) as watcher:
        watcher.next("status")
        run.site("b")
        watcher.next("log")
        run.overview._chronicle.events = None  # type: ignore[assignment]
        connection = socket.create_connection(("127.0.0.1", shown.port), timeout=10.0)
        connection.sendall(b"GET /api/stream?after=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                answer += piece
        connection.close()
        run.overview._chronicle.events = events
    assert answer.count(b"HTTP/1.1") == 1


def test_streams_end_when_the_coordinator_does(run: TinyRun) -> None:
    with showing(run) as shown:
        watcher = Watcher(shown)
        watcher.next("status")
    assert watcher.ended()
    watcher.close()


def test_a_round_of_nobody_is_no_round(run: TinyRun) -> None:
    """An event that names a round which the history does not have, as when a record could not be written."""
    with showing(run) as shown, watching(shown) as watcher:
        watcher.next("status")
        run.chronicle.events.add("evaluated", {"round": 7})
        assert watcher.next("log").data["round"] == 7
        sites = [run.site("a"), run.site("b")]
        for each in sites:
            each.poll()
        for each in sites:
            each.submit_student(1, filled(run.method, 0.5))
        assert watcher.next("round").data["round"] == 1
