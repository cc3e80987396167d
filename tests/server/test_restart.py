"""A coordinator that dies at any step goes on from exactly that step; nothing acknowledged is lost or counted twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.errors import (
    ConflictError,
    DataError,
    FkdError,
    RefusedError,
    SupersededError,
    UnreachableError,
)
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.tensors import encode
from fkd_server.run_state import RunState
from fkd_server.store import DATABASE, PREVIOUS, RunStore

from .tiny import PERSONAL, RESIDUALS, STUDENT, VOTES, Site, TinyRun, filled, inline, tiny_run

RESIDUAL = encode({"residuals": np.full((4, 2), 0.5, dtype=np.float32)})


def restarted(run: TinyRun, *sites: Site, **changes: Any) -> TinyRun:
    """The coordinator dies without a word; another takes its place, and the sites talk to that one."""
    again = tiny_run(run.blobs.parent, **changes)
    for site in sites:
        site.answer = again.answer
    return again


def two_sites(run: TinyRun) -> tuple[Site, Site]:
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    return a, b


@pytest.mark.scenario(1)
def test_a_session_survives_the_coordinator(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    a, b = two_sites(run)
    again = restarted(run, a, b)
    assert a.poll().task.key.phase == STUDENT
    assert [event.name for event in again.events] == ["run_resumed"]


@pytest.mark.scenario(25)
def test_a_superseded_session_stays_superseded(tmp_path: Path) -> None:
    """Scenario 25."""
    run = tiny_run(tmp_path)
    older = run.site("a")
    newer = run.site("a")
    restarted(run, older, newer)
    with pytest.raises(SupersededError):
        older.poll()
    assert newer.poll().wait.reason.startswith("1 of 2 clients ready")


@pytest.mark.scenario(3)
def test_an_accepted_upload_counts_once_in_the_same_phase(tmp_path: Path) -> None:
    """Scenario 3, invariants I1 and I2: the average is the undisturbed run's, bit for bit."""
    undisturbed = tiny_run(tmp_path / "undisturbed")
    for site, value in zip(two_sites(undisturbed), (1.0, 4.0), strict=True):
        site.submit_student(1, filled(undisturbed.method, value))

    run = tiny_run(tmp_path / "run")
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    again = restarted(run, a, b)
    assert again.coordinator.round == 1
    assert a.poll().wait.reason.startswith("round 1, student: 1 of 2 in, waiting for b")
    assert a.submit_student(1, filled(run.method, 1.0)).duplicate
    b.submit_student(1, filled(run.method, 4.0))
    assert again.coordinator.state is RunState.COMPLETED
    assert again.method.state.student == undisturbed.method.state.student


@pytest.mark.scenario(6)
def test_a_different_upload_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    """Scenario 6."""
    run = tiny_run(tmp_path)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    restarted(run, a, b)
    with pytest.raises(ConflictError):
        a.submit_student(1, filled(run.method, 2.0))


@pytest.mark.scenario(5)
def test_an_acknowledgement_lost_with_the_coordinator_is_given_again_after_the_phase(tmp_path: Path) -> None:
    """Scenario 5."""
    run = tiny_run(tmp_path, rounds=2)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    b.submit_student(1, filled(run.method, 4.0))
    restarted(run, a, b, rounds=2)
    assert b.submit_student(1, filled(run.method, 4.0)).duplicate


@pytest.mark.scenario(1)
def test_a_run_interrupted_before_every_call_ends_like_one_that_was_not(tmp_path: Path) -> None:
    """Scenario 1, invariants I1-I4: same students, fused residuals and votes; every phase closes once."""
    changes: dict[str, Any] = {
        "rounds": 2,
        "correction": ("anchors",),
        "personal": ("prior",),
        "residual_every": 1,
    }

    def play(run: TinyRun, interrupt: bool) -> tuple[TinyRun, list[Any]]:
        sites = two_sites(run)
        trail: list[Any] = []
        while not run.coordinator.over:
            for site in sites:
                if interrupt:
                    run = restarted(run, *sites, **changes)
                    for other in sites:
                        other.poll()
                task = site.poll().task
                if task.key.phase == 0:
                    continue
                answer(site, run, task.key.round, task.key.phase)
            trail.append(run.method.snapshot() | {"retired": None})
        return run, trail

    quiet, expected = play(tiny_run(tmp_path / "quiet", **changes), interrupt=False)
    shaken, found = play(tiny_run(tmp_path / "shaken", **changes), interrupt=True)
    assert found == expected
    assert phases_closed(shaken) == phases_closed(quiet)
    assert shaken.coordinator.state is RunState.COMPLETED


def phases_closed(run: TinyRun) -> list[list[str]]:
    return [list(record["phases"]) for record, _ in run.store.rounds()]


def answer(site: Site, run: TinyRun, round_number: int, phase: int) -> None:
    key = site.key(round_number, phase)
    if phase == STUDENT:
        site.submit_student(round_number, filled(run.method, 1.0 + round_number + ord(site.name) / 64))
    elif phase == RESIDUALS:
        site.call("SubmitResiduals", key=key, upload=inline(RESIDUAL), num_samples=10)
    elif phase == VOTES:
        votes = [pb.Vote(candidate=name, correct=1) for name in run.method.candidates()]
        site.call("SubmitVotes", key=key, votes=votes, num_validation=2)
    elif phase == PERSONAL:
        site.call("FinishTask", key=key)


def test_nothing_moves_in_memory_that_the_disk_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 28: a transaction that fails leaves the run where it stood, for a retry or a restart."""
    run = tiny_run(tmp_path)
    a, b = two_sites(run)
    refusing: list[str] = ["upload"]
    genuine = RunStore._transaction

    def transaction(store: RunStore, name: str) -> Any:
        if name in refusing:
            raise OSError(28, "No space left on device")
        return genuine(store, name)

    monkeypatch.setattr(RunStore, "_transaction", transaction)
    before = run.service.ledger.total().payload_up
    with pytest.raises(FkdError, match="No space left"):
        a.submit_student(1, filled(run.method, 1.0))
    assert run.service.ledger.total().payload_up == before
    assert run.coordinator.open is not None
    assert not run.coordinator.open.uploads
    refusing.clear()
    assert not a.submit_student(1, filled(run.method, 1.0)).duplicate
    refusing.append("step")
    student = run.method.state.student
    assert not b.submit_student(1, filled(run.method, 2.0)).duplicate
    run.service.tick()
    assert run.method.state.student == student, "what could not be made durable did not happen"
    refusing.clear()
    run.clock.now += 1.0
    run.service.tick()
    assert run.coordinator.state is RunState.COMPLETED


def test_the_ledger_survives_with_every_accepted_payload(tmp_path: Path) -> None:
    """Invariant I5."""
    run = tiny_run(tmp_path)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    rows = {key: count for key, count in run.service.ledger.rows() if key.phase == "student"}
    again = restarted(run, a, b)
    assert {key: count for key, count in again.service.ledger.rows() if key.phase == "student"} == rows
    assert next(iter(rows.values())).payload_up > 0


def test_blobs_of_closed_phases_and_interrupted_writes_are_gone_after_a_restart(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    (run.uploads / ".unfinished-abc").write_bytes(b"half")
    orphan = run.uploads / f"{'0' * 64}.safetensors"
    orphan.write_bytes(b"nobody's")
    again = restarted(run, a, b)
    again.store.sweep(again.store.position(), again.method.in_use())
    assert len(list(run.uploads.iterdir())) == 1
    b.submit_student(1, filled(run.method, 2.0))
    assert len(list(run.uploads.iterdir())) == 2, "not while the clients wait to hear what comes next"
    again.service.tick()
    assert list(run.uploads.iterdir()) == []


def test_what_is_accepted_before_the_clock_ticks_is_not_swept_with_the_phase_before(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, rounds=2)
    a, b = two_sites(run)
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    a.poll()
    a.submit_student(2, filled(run.method, 1.0))
    run.service.tick()
    (kept,) = run.uploads.iterdir()
    assert run.coordinator.open.uploads["a"].artifact.sha256 == kept.stem
    b.submit_student(2, filled(run.method, 2.0))
    assert run.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(29)
def test_a_damaged_database_gives_way_to_the_copy_of_the_last_round(tmp_path: Path) -> None:
    """Scenario 29."""
    run = tiny_run(tmp_path, rounds=3)
    a, b = two_sites(run)
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    a.submit_student(2, filled(run.method, 2.0))
    run.store.close()
    damage(tmp_path / DATABASE)
    again = restarted(run, a, b, rounds=3)
    assert (again.coordinator.round, again.coordinator.open) == (1, None)
    assert (tmp_path / f"{DATABASE}.damaged").exists()
    a.poll()
    assert b.poll().task.key.round == 2
    for site in (a, b):
        assert not site.submit_student(2, filled(run.method, 2.0)).duplicate


@pytest.mark.scenario(29)
@pytest.mark.parametrize("restart", [False, True])
def test_what_the_copy_refers_to_is_kept_however_many_rounds_it_is_old(tmp_path: Path, restart: bool) -> None:
    """Scenario 29: short rounds are not copied each."""
    run = tiny_run(tmp_path, rounds=9)
    a, b = two_sites(run)
    for round_number in (1, 2, 3):
        play(run, a, b, round_number)
    if restart:
        run = restarted(run, a, b, rounds=9)
        run.store.sweep(run.store.position(), run.method.in_use())
    assert len(list(run.blobs.iterdir())) == 5, "the extractor, the last two students, and those of round 1"
    run.store.close()
    damage(tmp_path / DATABASE)
    again = restarted(run, a, b, rounds=9)
    assert again.coordinator.round == 1
    assert all(again.store.blobs.has(sha256) for sha256 in again.method.in_use())


def test_a_new_copy_lets_go_of_what_the_old_one_referred_to(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, rounds=9)
    a, b = two_sites(run)
    for round_number in (1, 2, 3):
        play(run, a, b, round_number)
    run = restarted(run, a, b, rounds=9)  # makes a new one at its first opportunity
    play(run, a, b, 4)
    assert {path.stem for path in run.blobs.iterdir()} == {run.method.extractor_sha256, *run.method.in_use()}


def play(run: TinyRun, a: Site, b: Site, round_number: int) -> None:
    """A round, and the clock's next tick."""
    for site in (a, b):
        site.poll()
    for site in (a, b):
        site.submit_student(round_number, filled(run.method, float(round_number)))
    run.service.tick()


@pytest.mark.scenario(29)
@pytest.mark.parametrize("copy", ["none", "damaged too"])
def test_a_damaged_database_without_a_copy_is_named_with_the_command_to_run(
    tmp_path: Path, copy: str
) -> None:
    """Scenario 29."""
    run = tiny_run(tmp_path)
    two_sites(run)
    run.store.close()
    damage(tmp_path / DATABASE)
    if copy != "none":
        (tmp_path / PREVIOUS).write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(DataError, match=rf"{tmp_path}/{DATABASE} is damaged .*fkd-server doctor {tmp_path}"):
        RunStore.open(tmp_path)


@pytest.mark.scenario(29)
def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    """Scenario 29."""
    RunStore.open(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(DataError, match="schema version 99"):
        RunStore.open(tmp_path)


@pytest.mark.scenario(29)
def test_a_database_of_an_older_schema_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 29."""
    from fkd_server import store

    run = tiny_run(tmp_path)
    two_sites(run)
    run.store.close()
    newer = (*store._MIGRATIONS, "ALTER TABLE clients ADD COLUMN country TEXT NOT NULL DEFAULT ''")
    monkeypatch.setattr(store, "_MIGRATIONS", newer)
    again = RunStore.open(tmp_path)
    assert again.position().state is RunState.RUNNING
    assert again._database.execute("SELECT country FROM clients").fetchall() == [("",), ("",)]


def test_a_silent_client_gets_twice_its_time_after_a_restart(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, quorum=0.5)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    again = restarted(run, a, b, quorum=0.5)
    again.clock.now = 15.0
    again.service.tick()
    assert again.coordinator.open is not None, "b may still come back"
    again.clock.now = 17.0
    again.service.tick()
    assert again.coordinator.state is RunState.COMPLETED


def damage(path: Path) -> None:
    """Overwrite a page in the middle, as a bad block does."""
    data = bytearray(path.read_bytes())
    data[4096 : 3 * 4096] = b"\xa5" * (2 * 4096)
    path.write_bytes(bytes(data))


@pytest.mark.scenario(26)
def test_a_coordinator_whose_run_was_taken_over_writes_nothing_more(tmp_path: Path) -> None:
    """Scenario 26: the lock was lost (a copied folder, a network disk); the epoch in the database is not."""
    older = tiny_run(tmp_path)
    a, b = two_sites(older)
    newer = tiny_run(tmp_path)
    with pytest.raises(UnreachableError, match="another fkd-server has taken over"):
        a.submit_student(1, filled(older.method, 1.0))
    older.clock.now = 60.0
    with pytest.raises(RefusedError, match="this one stops"):
        older.service.tick()
    for site in (a, b):
        site.answer = newer.answer
        site.submit_student(1, filled(newer.method, 1.0))
    assert newer.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(26)
def test_a_coordinator_whose_run_was_taken_over_removes_nothing(tmp_path: Path) -> None:
    """Scenario 26: it was stopped before its clock ticked, and woken when another had accepted an upload."""
    older = tiny_run(tmp_path, rounds=2)
    a, b = two_sites(older)
    for site in (a, b):
        site.submit_student(1, filled(older.method, 1.0))
    newer = restarted(older, a, b, rounds=2)
    newer.store.uploads.put(encode(filled(newer.method, 3.0)))
    before = set(older.uploads.iterdir())
    older.service.tick()
    assert set(older.uploads.iterdir()) == before


def test_a_step_that_the_disk_refuses_is_made_with_the_next_try_and_opens_the_next_phase_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 28: a phase's end and the next one's beginning are one step."""
    run = tiny_run(tmp_path, correction=("anchors",))
    a, b = two_sites(run)
    genuine, student = RunStore._transaction, run.method.state.student

    def refuse(store: RunStore, name: str) -> Any:
        if name == "step":
            raise OSError(28, "No space left on device")
        return genuine(store, name)

    monkeypatch.setattr(RunStore, "_transaction", refuse)
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    assert (run.coordinator.open.key.phase, run.method.state.student) == (STUDENT, student)
    monkeypatch.undo()
    run.clock.now += 1.0
    run.service.tick()
    assert run.coordinator.open.key.phase == RESIDUALS
    assert run.method.state.student != student
    assert [event.fields["phase"] for event in run.events if event.name == "phase_opened"] == [
        "student",
        "residuals",
    ]
    again = restarted(run, a, b, correction=("anchors",))
    assert again.coordinator.open.key.phase == RESIDUALS


def test_who_had_left_is_not_waited_for_after_a_restart(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, quorum=0.5)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    b.call("Leave")
    again = restarted(run, a, quorum=0.5)
    again.service.tick()
    assert again.coordinator.state is RunState.COMPLETED


def test_a_refused_closing_is_not_tried_again_with_every_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path, rounds=2)
    a, b = two_sites(run)
    folded: list[int] = []

    def refuse(*_: Any) -> Any:
        folded.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.method, "close", refuse)
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    for _ in range(10):
        a.poll()
    assert len(folded) == 1
    run.clock.now += 1.0
    run.service.tick()
    assert len(folded) == 2
