"""What the second port answers, and how."""

from __future__ import annotations

import asyncio
import http.client
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from fkd_common.errors import PortInUseError, UsageError
from fkd_common.message_json import as_json
from fkd_server.web.access import Gate
from fkd_server.web.answers import HEADERS
from fkd_server.web.look import Look
from fkd_server.web.server import WebServer
from tests.server.tiny import TinyRun, filled

from .showing import EVERYWHERE, TOKEN, Watcher, showing


def a_round(run: TinyRun) -> None:
    """Two sites, one round."""
    sites = [run.site("a"), run.site("b")]
    for each in sites:
        each.poll()
    for each in sites:
        each.submit_student(1, filled(run.method, 0.5))


def test_the_run_is_told_as_operators_calls_tell_it(run: TinyRun) -> None:
    a_round(run)
    with showing(run) as shown:
        assert shown.ask("/api/status").json == as_json(run.overview.status())
        assert shown.ask("/api/rounds").json == as_json(run.overview.rounds(0))
        assert shown.ask("/api/rounds?first=2").json == {"rounds": []}
        assert shown.ask("/api/ledger?offset=1").json == as_json(run.overview.ledger(1))
        events = shown.ask("/api/events?after=3").json["events"]
    assert [event["number"] for event in events] == list(range(4, 4 + len(events)))
    assert events


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "%C2%B2", "9" * 30, "%00", "1%20"])
def test_a_number_that_is_none_is_refused(run: TinyRun, number: str) -> None:
    with showing(run) as shown:
        answer = shown.ask(f"/api/events?after={number}")
    assert (answer.status, answer.json["reason"]) == (400, "MALFORMED")


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/metrics", "/api/status", "/download/rounds.csv", "/login", "/x", "/static/x"]
)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_every_answer_tells_the_browser_to_be_careful(run: TinyRun, path: str, token: str | None) -> None:
    with showing(run, EVERYWHERE if token else "127.0.0.1", token) as shown:
        answers = [
            shown.ask(path),
            shown.look(path),
            shown.ask(path, "DELETE"),
            shown.ask(path, Accept="text/html"),
        ]
        if not token:
            answers.append(shown.ask(path, Host="evil.example"))
    for answer in answers:
        kept = {name: value for name, value in HEADERS.items() if name != "Cache-Control"}
        assert kept.items() <= answer.headers.items()
        assert answer.headers["Cache-Control"] in ("no-store", "no-cache")
        assert answer.headers["Server"] == "fkd"  # and no versions


def test_the_page_may_be_kept_only_until_it_is_asked_for_again(run: TinyRun) -> None:
    with showing(run) as shown:
        assert shown.ask("/").headers["Cache-Control"] == "no-cache"
        assert shown.ask("/api/status").headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
@pytest.mark.parametrize("path", ["/", "/api/status", "/metrics", "/livez"])
def test_nothing_can_be_changed(run: TinyRun, method: str, path: str) -> None:
    with showing(run) as shown:
        assert shown.ask(path, method).status in (400, 404, 405)


@pytest.mark.parametrize("path", ["/livez", "/api/status", "/metrics", "/", "/download/ledger.csv"])
def test_head_is_get_without_a_body(run: TinyRun, path: str) -> None:
    with showing(run) as shown:
        answer = shown.ask(path, "HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/static/index.html",
        "/static/login.html",
    ],
)
def test_only_the_pages_own_files_are_served(run: TinyRun, path: str) -> None:
    with showing(run) as shown:
        assert shown.ask(path).status == 404


def test_while_the_run_is_prepared_the_process_is_alive_and_not_ready() -> None:
    with showing(unready="preparing: anchors 40 %") as shown:
        assert shown.ask("/livez").status == 200
        ready = shown.ask("/readyz")
        assert (ready.status, ready.text) == (503, "preparing: anchors 40 %\n")
        status = shown.ask("/api/status")
        assert (status.status, status.json["reason"]) == (503, "PREPARING")
        assert "anchors 40 %" in status.json["error"]
        assert shown.ask("/download/ledger.csv").status == 503
        assert "fkd_ready 0.0" in shown.ask("/metrics").text
        assert shown.ask("/").status == 200
        watcher = Watcher(shown)
        assert "anchors 40 %" in watcher.next("unready").data["detail"]
        watcher.close()


def test_readiness_ends_before_the_answers_do(run: TinyRun) -> None:
    with showing(run) as shown:
        assert shown.ask("/readyz").status == 200
        shown.unready[0] = "stopping"
        assert shown.ask("/readyz").status == 503
        assert shown.ask("/livez").status == 200
        assert shown.ask("/api/status").status == 200


def test_requests_longer_than_any_honest_one_are_refused(run: TinyRun) -> None:
    with showing(run, EVERYWHERE, TOKEN) as shown:
        assert shown.ask("/livez", Cookie="x" * 20_000).status == 400
        assert shown.ask("/livez?" + "x" * 20_000).status == 400
        assert shown.ask("/livez", **{f"X-{number}": "1" for number in range(200)}).status == 400
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        assert shown.ask("/login", "POST", "token=" + "x" * 100_000, **form).status == 413


@pytest.mark.parametrize(
    "sends",
    [
        b"GET /<script>alert(1)</script>\x01 HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX\x00: <b>\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_a_careful_answer_too(run: TinyRun, sends: bytes) -> None:
    with showing(run) as shown:
        status, headers, body = spoken(shown.port, sends)
    assert status == 400
    assert headers["Server"] == "fkd"
    assert HEADERS.items() <= headers.items()
    assert b"script" not in body


def spoken(port: int, sends: bytes) -> tuple[int, dict[str, str], bytes]:
    """What these bytes are answered with."""
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        connection.sendall(sends)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, dict(response.getheaders()), response.read()


def test_what_is_no_request_again_and_again_leaves_a_few_lines(run: TinyRun) -> None:
    with capture_logs() as lines, showing(run) as shown:
        for _ in range(100):
            spoken(shown.port, b"GET / HTTP/1.1\r\nno header\r\n\r\n")
    said = [line for line in lines if line["event"] == "bad_request"]
    assert 3 <= len(said) <= 6
    assert said[0]["address"] == "127.0.0.1"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_a_mistake_in_the_flag(host: str) -> None:
    async def start() -> None:
        server = WebServer(Gate("127.0.0.1", None, None), Look(lambda: ""), CollectorRegistry())
        try:
            await server.start(host, 0)
        finally:
            await server.stop()

    with pytest.raises(UsageError, match=f"--http-host {host}"):
        asyncio.run(start())


def test_a_taken_port_is_said_with_the_flag_that_chooses_another() -> None:
    async def start(port: int) -> None:
        await WebServer(Gate("127.0.0.1", None, None), Look(lambda: ""), CollectorRegistry()).start(
            "127.0.0.1", port
        )

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUseError, match="--http-port"):
        asyncio.run(start(taken.getsockname()[1]))


def test_a_disk_that_does_not_answer_is_said_so(run: TinyRun, tmp_path: Path) -> None:
    with showing(run) as shown:
        run.store._database.close()
        answer = shown.ask("/api/status")
        assert (answer.status, answer.json["reason"]) == (503, "STORAGE")
        assert shown.ask("/livez").status == 200
