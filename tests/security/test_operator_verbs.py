"""An operator's verbs against a coordinator that serves: tables for a person, JSON for a program, exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fkd_common.errors import ExitCode
from fkd_server.cli import main
from fkd_server.operator.tables import plain_console, status_view
from fkd_server.run_state import RunState
from tests.server.tiny import Site, TinyRun, filled, tiny_run

from .serving import serving


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """A program's log goes to standard error; the coordinator under test shares this process's output."""
    with capture_logs():
        yield


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path / "run", rounds=2)


@pytest.fixture
def address(run: TinyRun) -> Iterator[str]:
    with serving(run, None) as address:
        yield address


@pytest.fixture
def after_a_round(run: TinyRun) -> tuple[Site, Site]:
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    a.submit_student(1, filled(run.method, 0.5), n=30)
    b.submit_student(1, filled(run.method, 0.5), n=10)
    return a, b


def json_of(capsys: pytest.CaptureFixture[str], *command: str) -> object:
    assert main([*command, "--json"]) == ExitCode.OK
    return json.loads(capsys.readouterr().out)


def test_clients_and_what_they_weigh(
    address: str, after_a_round: tuple[Site, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clients", "--server", address]) == ExitCode.OK
    rows = [line.split()[:7] for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [
        ["a", "working", "1", "0", "30", "1.000", "75.0%"],
        ["b", "working", "1", "0", "10", "1.000", "25.0%"],
    ]
    told = json_of(capsys, "clients", "--server", address)
    assert [(c["name"], c["samples"]) for c in told] == [("a", 30), ("b", 10)]  # type: ignore[attr-defined]


def test_rounds_and_who_missed_them(
    address: str, after_a_round: tuple[Site, Site], run: TinyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.chronicle.history.score(1, {"student": 0.5, "published": 0.75})
    assert main(["rounds", "--server", address]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "0.0", "2", "–", "–", "–", "75.00%"]
    (told,) = json_of(capsys, "rounds", "--server", address)  # type: ignore[misc]
    assert told["weights"] == {"a": 0.75, "b": 0.25}
    assert json_of(capsys, "rounds", "--server", address, "--first", "2") == []


def test_the_ledger_in_full(
    address: str, after_a_round: tuple[Site, Site], run: TinyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json_of(capsys, "ledger", "--server", address)
    sent = {(row["client"], row["round"], row["phase"]): row["bytes"]["payload_up"] for row in told}  # type: ignore[attr-defined]
    assert (
        sent["a", 1, "student"]
        == run.service.ledger.total(lambda key: (key.client, key.phase) == ("a", "student")).payload_up
    )
    assert main(["ledger", "--server", address]) == ExitCode.OK
    assert "payload up" in capsys.readouterr().out


def test_events_as_lines(
    address: str, after_a_round: tuple[Site, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", "--server", address]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert any("client_joined" in line and " a, " in line for line in lines)
    assert main(["events", "--server", address, "--json"]) == ExitCode.OK
    numbers = [json.loads(line)["number"] for line in capsys.readouterr().out.splitlines()]
    assert numbers == list(range(1, len(lines) + 1))


def test_pause_and_resume(run: TinyRun, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "--server", address]) == ExitCode.OK
    said = capsys.readouterr().out
    assert said == "paused by operator at 127.0.0.1: goes on with `fkd-server resume`\n"
    assert main(["status", "--server", address]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("run run-1: paused, before the first round")
    assert json_of(capsys, "resume", "--server", address) == {"detail": "0 of 2 clients ready"}
    assert not run.coordinator.paused_by


def test_watching_ends_with_the_run(
    run: TinyRun, address: str, after_a_round: tuple[Site, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = after_a_round
    for site in (a, b):
        site.poll()

    def finish() -> None:
        a.submit_student(2, filled(run.method, 0.25), n=30)
        b.submit_student(2, filled(run.method, 0.25), n=10)

    finishing = threading.Timer(0.5, finish)
    finishing.start()
    assert main(["status", "--server", address, "--watch", "0.1", "--json"]) == ExitCode.OK
    finishing.join()
    states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert (states[0], states[-1]) == ("running", "completed")
    assert run.admin.somebody_watches() is False
    assert main(["events", "--server", address, "--follow"]) == ExitCode.OK


def test_watching_a_run_that_was_stopped_ends_with_its_exit_code(
    run: TinyRun, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--server", address]) == ExitCode.OK
    assert run.admin.somebody_watches()
    assert main(["stop", "--server", address, "--json"]) == ExitCode.OK
    assert run.coordinator.state is RunState.ABORTED
    assert main(["status", "--server", address, "--watch", "0.1"]) == ExitCode.ABORTED
    assert "aborted" in capsys.readouterr().out


def test_what_clients_say_is_text_and_no_markup(
    run: TinyRun, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a = run.site("a")
    a.call("Heartbeat", activity="[red]:boom: [/nothing]", progress=0.5)
    assert main(["status", "--server", address]) == ExitCode.OK
    assert "[red]:boom: [/nothing] 50%" in capsys.readouterr().out
    screen = plain_console()
    with screen.capture() as shown:
        screen.print(status_view(run.overview.status()))
    assert "[red]:boom: [/nothing] 50%" in shown.get()


@pytest.mark.parametrize("seconds", ["0", "nan", "soon", "1e9"])
def test_a_wrong_interval_is_named(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch", seconds]) == ExitCode.USAGE
    assert "--watch" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb", ["status", "clients", "rounds", "ledger", "events", "pause", "resume", "stop"]
)
def test_every_verb_says_that_nobody_answers(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--server", "127.0.0.1:1"]) == ExitCode.UNREACHABLE
    said = capsys.readouterr().err
    assert said.startswith("fkd-server: error: no coordinator answers at 127.0.0.1:1")
    assert said.count("\n") == 1
