"""The state machine: deadlines, quorums, and clients that go; time is passed in."""

from __future__ import annotations

import pytest

from fkd_common.errors import StaleError
from fkd_server.run_state import AssignedTask, PhaseKey, RunOver, RunState

from .state_machine import Run
from .tiny import STUDENT

# -- deadlines and quorums --


@pytest.mark.scenario(8)
def test_at_the_deadline_a_quorum_closes_the_phase() -> None:
    """Scenario 8."""
    run = Run(quorum=0.5, rounds=2)
    run.join("a", "b")
    run.submit("a", now=1.0)
    run.alive("a", "b", now=59.0)
    run.coordinator.tick(59.9)
    assert run.method.closed == []
    run.coordinator.tick(60.0)
    assert run.method.closed == [["a"]]
    with pytest.raises(StaleError, match="round 1, student is not open: the run is at round 2"):
        run.submit("b", now=60.0)


@pytest.mark.scenario(9)
def test_below_the_quorum_the_phase_is_extended_once_and_then_the_run_aborts() -> None:
    """Scenario 9."""
    run = Run(quorum=1.0)
    run.join("a", "b")
    run.submit("a")
    run.alive("a", "b", now=60.0)
    run.coordinator.tick(60.0)
    assert len(run.named("phase_extended")) == 1
    assert isinstance(run.poll("b", now=60.0), AssignedTask)
    run.alive("a", "b", now=120.0)
    run.coordinator.tick(120.0)
    assert run.poll("a", now=120.0) == RunOver(
        completed=False, detail="round 1, student: 1 uploads at the deadline, quorum 2"
    )
    assert len(run.named("phase_extended")) == 1


@pytest.mark.scenario(9)
def test_an_extension_can_be_made_use_of() -> None:
    """Scenario 9."""
    run = Run(quorum=1.0)
    run.join("a", "b")
    run.submit("a")
    run.alive("a", "b", now=60.0)
    run.coordinator.tick(60.0)
    run.submit("b", now=61.0)
    assert run.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(9)
def test_a_run_may_be_told_to_abort_at_once() -> None:
    """Scenario 9."""
    run = Run(quorum=1.0, on_missed_quorum="abort")
    run.join("a", "b")
    run.alive("a", "b", now=60.0)
    run.coordinator.tick(60.0)
    assert run.coordinator.state is RunState.ABORTED
    assert run.named("phase_extended") == []


@pytest.mark.parametrize("clients, quorum, needed", [(2, 0.5, 1), (3, 0.5, 2), (3, 0.01, 1), (3, 1.0, 3)])
def test_a_quorum_is_rounded_up_and_at_least_one(clients: int, quorum: float, needed: int) -> None:
    names = "abc"[:clients]
    for answered in range(clients + 1):
        run = Run(min_clients=clients, quorum=quorum, on_missed_quorum="abort")
        run.join(*names)
        for name in names[:answered]:
            run.submit(name)
        run.alive(*names, now=60.0)
        run.coordinator.tick(60.0)
        assert (run.coordinator.state is RunState.COMPLETED) == (answered >= needed)


# -- clients that go --


@pytest.mark.scenario(33)
def test_a_silent_client_is_noticed_and_the_round_goes_on() -> None:
    run = Run()
    run.join("a", "b")
    run.submit("a", now=1.0)
    run.alive("a", now=8.0)
    run.coordinator.tick(8.0)
    assert run.named("client_lost") == []
    run.coordinator.tick(8.1)
    assert run.named("client_lost") == [{"client": "b", "silent_s": 8.1}]
    assert run.method.closed == [["a"]]


def test_a_sign_of_life_while_working_keeps_a_client_in_the_round() -> None:
    run = Run()
    run.join("a", "b")
    run.submit("a")
    for now in (5.0, 10.0, 15.0, 20.0):
        run.alive("a", "b", now=now)
        run.coordinator.tick(now)
    assert run.method.closed == []
    run.submit("b", now=21.0)
    assert run.method.closed == [["a", "b"]]


@pytest.mark.scenario(33)
def test_a_client_that_was_silent_may_come_back() -> None:
    """Scenario 33."""
    run = Run(quorum=1.0)
    run.join("a", "b")
    run.submit("a", now=1.0)
    run.alive("a", now=9.0)
    run.coordinator.tick(9.0)
    assert run.method.closed == []
    assert isinstance(run.poll("b", now=20.0), AssignedTask)
    run.submit("b", now=21.0)
    assert run.method.closed == [["a", "b"]]
    assert run.named("client_returned")[0] == {"client": "b"}


def test_a_client_that_cannot_do_its_task_does_not_hold_up_the_round() -> None:
    run = Run()
    run.join("a", "b")
    run.coordinator.fail(b"b", PhaseKey(1, STUDENT), "out of memory", 1.0)
    run.submit("a", now=2.0)
    assert run.method.closed == [["a"]]
    (record,) = run.named("round_closed")
    assert record["phases"]["student"]["failed"] == {"b": "out of memory"}
    assert record["phases"]["student"]["missing"] == ["b"]


def test_a_failure_report_for_another_phase_changes_nothing() -> None:
    run = Run()
    run.join("a", "b")
    run.coordinator.fail(b"b", PhaseKey(2, STUDENT), "too early", 1.0)
    assert isinstance(run.poll("b", now=1.0), AssignedTask)


def test_a_client_that_leaves_is_not_waited_for() -> None:
    run = Run()
    run.join("a", "b")
    run.coordinator.leave(b"b", 1.0)
    run.submit("a", now=1.0)
    assert run.method.closed == [["a"]]


@pytest.mark.scenario(9)
def test_a_run_whose_clients_stay_away_ends_with_a_reason() -> None:
    """Scenario 9: never hang."""
    run = Run(min_clients=2, quorum=1.0, rounds=2)
    run.join("a", "b")
    run.submit("a")
    run.submit("b")
    run.coordinator.leave(b"a", 1.0)
    run.coordinator.leave(b"b", 1.0)
    run.coordinator.tick(60.0)  # round 2 misses its deadline, and is extended
    run.coordinator.tick(120.0)
    assert run.coordinator.state is RunState.ABORTED
    assert "round 2, student: 0 uploads" in run.coordinator.detail


@pytest.mark.scenario(9)
def test_a_run_that_cannot_fill_its_next_round_ends_with_a_reason() -> None:
    """Scenario 9: never hang."""
    run = Run(min_clients=2, quorum=0.5, rounds=2)
    run.join("a", "b")
    run.coordinator.leave(b"b", 1.0)
    run.coordinator.leave(b"a", 1.0)
    run.submit("a", now=1.0)
    run.alive("a", now=61.0)
    run.coordinator.tick(61.0)
    assert run.coordinator.waiting_for(61.0).startswith("0 of 1 clients ready")
    run.coordinator.tick(61.1)
    assert run.poll("a", now=61.2) == RunOver(
        completed=False, detail="only 0 of 1 clients came back within 60 s"
    )


@pytest.mark.scenario(9)
def test_when_nobody_is_left_to_answer_the_deadline_is_not_waited_for() -> None:
    """Scenario 9: a reported failure is final, so the reason is told at once."""
    run = Run(quorum=1.0)
    run.join("a", "b")
    run.submit("a")
    run.coordinator.fail(b"b", PhaseKey(1, STUDENT), "loss is not finite", 1.0)
    assert run.poll("a", now=1.0) == RunOver(
        completed=False, detail="round 1, student: 1 uploads, quorum 2; b failed"
    )


@pytest.mark.scenario(9)
def test_stand_ins_are_asked_when_a_whole_cohort_is_gone() -> None:
    """Scenario 9: one live client outside the cohort is enough for the round to go on."""
    run = Run(quorum=1.0, clients_per_round=0.5, min_clients=2)
    run.join("a", "b")
    phase = run.coordinator.open
    assert phase is not None
    (gone,) = run.coordinator.participants
    (other,) = {"a", "b"} - {gone}
    run.coordinator.leave(gone.encode(), 1.0)
    (event,) = run.named("stand_ins_called")
    assert event["stand_ins"] == [other]
    assert f"waiting for {other}, {gone} gone" in run.coordinator.waiting_for(1.0)
    run.submit(other, now=2.0)
    assert run.coordinator.state is RunState.COMPLETED


def test_rounds_with_fewer_clients_than_the_run_started_with_are_said_so() -> None:
    run = Run(min_clients=2, rounds=2, quorum=0.5)
    run.join("a", "b")
    run.submit("a", now=1.0)
    run.coordinator.leave(b"b", 2.0)
    (event,) = run.named("fewer_clients")
    assert event == {"round": 2, "ready": ["a"], "min_clients": 2}


def test_a_cohort_is_never_smaller_than_the_least_that_may_be_broadcast() -> None:
    run = Run(min_clients=4, clients_per_round=0.25, min_cohort=3)
    run.join(*"abcd")
    assert len(run.coordinator.participants) == 3


def test_a_phase_does_not_close_with_fewer_uploads_than_may_be_broadcast() -> None:
    """Quorum 0.5 of 4 would be 2."""
    run = Run(min_clients=4, quorum=0.5, min_cohort=3)
    run.join(*"abcd")
    for name in "ab":
        run.submit(name)
    for name in "cd":
        run.coordinator.leave(name.encode(), 1.0)
    run.coordinator.tick(1.0)
    assert run.coordinator.open is not None
    run.coordinator.tick(60.0)
    run.coordinator.tick(120.0)
    assert run.coordinator.detail.startswith("round 1, student: 2 uploads at the deadline, quorum 3")
