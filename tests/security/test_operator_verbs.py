"""An operator's verbs against a coordinator that serves: tables for a person, JSON for a program, exit codes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fkd_common.errors import ExitCode, FkdError
from fkd_common.pb import admin_pb2 as pb
from fkd_server.chronicle import WrittenModel
from fkd_server.cli import main
from fkd_server.operator.tables import ledger_table, plain_console, status_view
from fkd_server.run_state import RunState
from tests.server.tiny import STUDENT, Site, TinyRun, filled, inline, tiny_run

from .serving import preparing, serving


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


def until_said(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """What is printed until these words are."""
    said, deadline = "", time.monotonic() + 20
    while words not in said:
        assert time.monotonic() < deadline, said
        time.sleep(0.02)
        said += capsys.readouterr().out
    return said


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
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "1",
        "0.0",
        "2",
        "–",
        "–",
        "50.00%",
        "75.00%",
        "–",
    ]
    (told,) = json_of(capsys, "rounds", "--server", address)  # type: ignore[misc]
    assert told["weights"] == {"a": 0.75, "b": 0.25}
    assert json_of(capsys, "rounds", "--server", address, "--first", "2") == []


def test_what_the_vote_says_of_the_winner_is_not_what_personal_models_score(
    address: str, run: TinyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    def phase(**found: object) -> dict[str, object]:
        return {"seconds": 1.0, "returned": [], "missing": [], "failed": {}, **found}

    votes = phase(
        published="moments.1", validation_accuracy={"student": 0.5, "moments.0": 0.6, "moments.1": 0.7}
    )
    personal = phase(validation_accuracy={"personal": 0.9})
    record = {"round": 1, "seconds": 2.0, "cohort": ["a"], "phases": {"votes": votes, "personal": personal}}
    run.chronicle.history.add(record)
    assert main(["rounds", "--server", address]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[1].split()[4:] == ["70.00%", "–", "–", "moments"]


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
    head, *_, last = capsys.readouterr().out.splitlines()
    assert "payload up" in head
    everything = run.service.ledger.total(lambda key: True)
    assert last.split()[:3] == ["all", f"{everything.calls:,}", f"{everything.payload_up:,}"]


def test_the_ledger_is_in_the_order_of_the_protocol() -> None:
    rows = [
        pb.LedgerRow(client="a", round=1, phase=name, bytes=pb.ByteTotals())
        for name in ("votes", "refine_10", "refine_2", "moments", "student")
    ]
    phases = list(ledger_table(rows).columns[2].cells)
    assert phases == ["student", "moments", "refine_2", "refine_10", "votes", ""]


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


def test_the_published_model_is_shown_with_how_good_it_is(
    run: TinyRun, address: str, after_a_round: tuple[Site, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    run.chronicle.model = WrittenModel("ab" * 32, 1, "moments")
    run.chronicle.history.score(1, {"student": 0.5, "published": 0.75})
    assert main(["status", "--server", address]) == ExitCode.OK
    assert "published model: moments, of round 1: 75.00% on the test set; sha256 abababababab" in (
        capsys.readouterr().out
    )


def test_events_are_followed_over_a_restart_of_the_coordinator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process of it counts its events from 1 again."""
    run = tiny_run(tmp_path / "first", rounds=2)
    for name in "abcde":
        run.site(name)
    run.clock.now = 5.0
    with serving(run, None) as address:
        port = int(address.rpartition(":")[2])
        following = threading.Thread(target=main, args=(["events", "--follow", "--server", address],))
        following.start()
        said = until_said(capsys, "e, ")
    again = tiny_run(tmp_path / "second", rounds=2)
    with serving(again, None, port):
        again.site("z")
        said += until_said(capsys, "z, ")
        again.service.abort("enough")
        following.join(10)
    assert not following.is_alive()
    assert said.count("client_joined") == 6


def test_a_coordinator_that_prepares_has_a_state(capsys: pytest.CaptureFixture[str]) -> None:
    with preparing("embedding images, 30 %") as address:
        assert main(["status", "--server", address]) == ExitCode.OK
        assert "preparing the run (embedding images, 30 %)" in capsys.readouterr().out
        assert json_of(capsys, "status", "--server", address)["state"] == "preparing"  # type: ignore[index]
        assert main(["pause", "--server", address]) == ExitCode.UNREACHABLE
        assert "preparing the run" in capsys.readouterr().err


def test_whoever_never_got_an_answer_is_not_kept_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["status", "--watch"], ["events", "--follow"]):
        assert main([*verb, "--server", "127.0.0.1:1"]) == ExitCode.UNREACHABLE
        assert "no coordinator answers" in capsys.readouterr().err


def test_ending_a_run_is_asked_about_on_a_terminal(
    run: TinyRun, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer in ("", "n"):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert main(["stop", "--server", address]) == ExitCode.OK
    assert not run.coordinator.over
    assert main(["stop", "--server", address, "--yes"]) == ExitCode.OK
    assert run.coordinator.over


def test_a_disk_that_refuses_is_told_and_nothing_has_changed(
    run: TinyRun, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*moved: object, **how: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere/state.db")

    monkeypatch.setattr(run.store, "moved", full)
    for verb in ("pause", "stop"):
        assert main([verb, "--server", address]) == ExitCode.UNREACHABLE
        said = capsys.readouterr().err
        assert "disk does not take or give data, so nothing has changed: No space left on device" in said
        assert "state.db" not in said
    assert not run.coordinator.over
    assert not run.coordinator.paused_by


def test_what_a_refused_upload_says_is_nothing_a_terminal_obeys(
    run: TinyRun, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = [run.site(name) for name in "ab"]
    for each in sites:
        each.poll()
    header = json.dumps(
        {"x": {"dtype": "\x1b]0;pwned\x07\n03:00:00 run_completed", "shape": [], "data_offsets": [0, 0]}}
    )
    blob = len(header).to_bytes(8, "little") + header.encode()
    with pytest.raises(FkdError):
        sites[0].call("SubmitStudent", key=sites[0].key(1, STUDENT), upload=inline(blob), num_samples=1)
    assert main(["events", "--server", address]) == ExitCode.OK
    assert "client_failed" in (shown := capsys.readouterr().out)
    assert "\x1b" not in shown
    assert "\n03:00:00 run_completed" not in shown


@pytest.mark.parametrize("first", ["-1", "99999999999", "two"])
def test_a_round_there_cannot_be_is_named(first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rounds", "--first", first]) == ExitCode.USAGE
    assert "--first" in capsys.readouterr().err


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
