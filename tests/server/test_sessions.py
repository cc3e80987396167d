"""The state machine: an upload counts exactly once, and a client is one process at a time."""

from __future__ import annotations

import pytest

from fkd_common.errors import ConflictError, RefusedError, StaleError, SupersededError
from fkd_server.method.federated_method import (
    NoUpload,
)
from fkd_server.run_state import AssignedTask, KnownClient, MustWait, PhaseKey, RunOver

from .state_machine import Run
from .tiny import STUDENT


@pytest.mark.scenario(5, 6)
def test_a_repeated_upload_gets_the_first_receipt_and_counts_once() -> None:
    """Scenarios 5, 6."""
    run = Run(rounds=2)
    run.join("a", "b")
    assert [run.submit("a"), run.submit("a"), run.submit("b")] == [False, True, False]
    assert run.method.closed == [["a", "b"]]
    assert run.submit("a") is True  # the round is over, the receipt stands
    assert len(run.named("upload_accepted")) == 2


@pytest.mark.scenario(5)
def test_a_restarted_client_gets_its_receipt_too() -> None:
    """Scenario 5."""
    run = Run()
    run.join("a", "b")
    run.submit("a")
    run.coordinator.register("a", b"second life", 1.0)
    receipt = run.coordinator.submit(b"second life", PhaseKey(1, STUDENT), "a's", NoUpload(), 1.0)
    assert receipt.duplicate
    assert isinstance(run.coordinator.next_task(b"second life", 1.0), MustWait)


@pytest.mark.scenario(6)
def test_a_second_different_upload_is_refused_and_the_first_one_counts() -> None:
    """Scenario 6."""
    run = Run()
    run.join("a", "b")
    run.submit("a", digest="first")
    with pytest.raises(ConflictError, match="the first one counts"):
        run.submit("a", digest="second")
    assert run.submit("a", digest="first") is True


@pytest.mark.scenario(7)
def test_stale_and_future_and_foreign_phases_are_refused_with_the_current_one() -> None:
    """Scenario 7."""
    run = Run(rounds=3)
    run.join("a", "b")
    run.submit("a")
    run.submit("b", digest="x")
    run.coordinator.register("c", b"c", 0.0)
    for session, key in ((b"c", PhaseKey(1, STUDENT)), (b"a", PhaseKey(3, STUDENT)), (b"a", PhaseKey(2, 4))):
        with pytest.raises(StaleError, match="the run is at round 2, student") as refused:
            run.coordinator.submit(session, key, "d", NoUpload(), 0.0)
        assert refused.value.reason == "ROUND_CLOSED"


@pytest.mark.scenario(25)
def test_a_newer_session_ends_the_older_one_and_inherits_its_task() -> None:
    """Scenario 25."""
    run = Run()
    run.join("a", "b")
    run.coordinator.register("a", b"newer", 1.0)
    for old in (run.poll, run.submit):
        with pytest.raises(SupersededError):
            old("a")
    with pytest.raises(SupersededError):
        run.coordinator.leave(b"a", 1.0)
    assert isinstance(run.coordinator.next_task(b"newer", 1.0), AssignedTask)
    assert run.named("client_joined")[-1]["again"] is True


def test_a_session_nobody_opened_is_refused() -> None:
    run = Run()
    with pytest.raises(SupersededError):
        run.poll("stranger")


def test_nobody_joins_a_run_that_is_over() -> None:
    run = Run()
    run.join("a", "b")
    run.coordinator.abort("stopped")
    with pytest.raises(RefusedError, match="stopped") as refused:
        run.coordinator.register("c", b"c", 0.0)
    assert refused.value.reason == "RUN_ABORTED"
    assert run.poll("a") == RunOver(completed=False, detail="stopped")


def test_the_first_reason_to_abort_stands() -> None:
    run = Run()
    run.coordinator.abort("first")
    run.coordinator.abort("second")
    assert (run.coordinator.detail, len(run.named("run_aborted"))) == ("first", 1)


@pytest.mark.scenario(27)
def test_tasks_carry_the_seconds_that_are_left() -> None:
    """Scenario 27: seconds, never a time of day."""
    run = Run()
    run.join("a", "b", now=1000.0)
    task = run.poll("a", now=1005.0)
    assert isinstance(task, AssignedTask)
    assert task.deadline_s == 55.0


def test_a_run_remembers_so_many_names_and_forgets_those_that_never_contributed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario 24: names are free where there are no certificates."""
    monkeypatch.setattr("fkd_server.attendance.MAX_CLIENTS", 3)
    run = Run(min_clients=2, rounds=5, quorum=0.5)
    run.join("a", "b")
    run.submit("a")
    run.coordinator.register("stranger", b"stranger", 0.0)
    with pytest.raises(RefusedError, match="3 clients already"):
        run.coordinator.register("late", b"late", 0.0)
    run.coordinator.leave(b"stranger", 1.0)
    run.coordinator.leave(b"a", 1.0)
    run.coordinator.register("late", b"late", 1.0)
    assert sorted(run.coordinator.attendance.clients) == ["a", "b", "late"]
    with pytest.raises(SupersededError):
        run.coordinator.attendance.seen(b"stranger", 1.0)


def test_at_its_end_a_coordinator_waits_for_whom_it_has_not_heard_since_it_started_again() -> None:
    run = Run()
    known = [KnownClient(name, name.encode(), ready=name != "c", contributed=True) for name in "abc"]
    attendance = run.coordinator.attendance
    attendance.resume(known, 0.0)
    attendance.notice_silence(1e6)
    assert not attendance.live()
    assert attendance.untold() == ["a", "b"]
    attendance.seen(b"a", 1e6)
    attendance.leave(b"a")
    attendance.told("b")
    assert attendance.untold() == []
