"""The state machine with a method of one phase: cohorts, deadlines, quorums, sessions; time is passed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fkd_common.errors import ConflictError, RefusedError, StaleError, SupersededError
from fkd_server.coordinator import (
    AssignedTask,
    Coordinator,
    Event,
    MustWait,
    PhaseKey,
    RunOver,
    RunState,
)
from fkd_server.federated_method import (
    BelowQuorum,
    Json,
    NoUpload,
    Participants,
    PhasePlan,
    TaskContent,
    UploadContent,
)

from .tiny import STUDENT, events_named, tiny_config


class Gathering:
    """A method whose rounds gather one upload per client and keep only the names."""

    def __init__(self, rounds_with_phase: int = 1) -> None:
        self.closed: list[list[str]] = []
        self._first = rounds_with_phase

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        if round_number < self._first:
            return ()
        return (PhasePlan(STUDENT, Participants.COHORT, BelowQuorum.FOLLOW_POLICY),)

    def task(self, phase: int, client: str) -> TaskContent:
        return TaskContent()

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        self.closed.append(list(uploads))
        return {}

    def discard(self, uploads: Mapping[str, UploadContent]) -> None:
        pass


class Run:
    """A coordinator and its events; a client's session is its name."""

    def __init__(self, **changes: Any) -> None:
        self.events: list[Event] = []
        self.method = Gathering()
        self.coordinator = Coordinator(tiny_config(**changes), self.method, self.events.append)

    def join(self, *names: str, now: float = 0.0) -> None:
        for name in names:
            self.coordinator.register(name, name.encode(), now)
        for name in names:
            self.poll(name, now)

    def poll(self, name: str, now: float = 0.0) -> AssignedTask | MustWait | RunOver:
        return self.coordinator.next_task(name.encode(), now)

    def submit(self, name: str, round_number: int = 1, now: float = 0.0, digest: str = "") -> bool:
        key = PhaseKey(round_number, STUDENT)
        digest = digest or f"{name}'s"
        return self.coordinator.submit(name.encode(), key, digest, NoUpload(), now).duplicate

    def alive(self, *names: str, now: float) -> None:
        for name in names:
            self.coordinator.seen(name.encode(), now)

    def named(self, name: str) -> list[dict[str, Any]]:
        return list(events_named(self.events, name))


# -- starting --


def test_the_first_round_waits_for_min_clients() -> None:
    run = Run(min_clients=3)
    run.join("a", "b")
    assert run.coordinator.state is RunState.GATHERING
    assert run.poll("a") == MustWait("2 of 3 clients ready: a, b")
    run.join("c")
    assert isinstance(run.poll("a"), AssignedTask)


def test_a_client_counts_once_it_has_asked_for_work() -> None:
    run = Run(min_clients=2)
    run.join("a")
    run.coordinator.register("b", b"b", 0.0)
    assert isinstance(run.poll("a"), MustWait)
    run.poll("b")
    assert isinstance(run.poll("a"), AssignedTask)


def test_waiting_names_who_is_busy_with_what() -> None:
    run = Run(min_clients=2)
    run.join("a")
    run.coordinator.register("b", b"b", 0.0)
    run.coordinator.seen(b"b", 0.0, "embedding", 0.25)
    assert run.coordinator.waiting_for(0.0) == "1 of 2 clients ready: a; b is at embedding 25%"


def test_waiting_in_a_phase_names_who_is_missing() -> None:
    run = Run()
    run.join("a", "b")
    run.submit("a")
    assert run.coordinator.waiting_for(20.0) == (
        "round 1, student: 1 of 2 in, waiting for b, 40 s to the deadline"
    )


def test_before_the_first_round_waiting_may_take_forever() -> None:
    run = Run(min_clients=2)
    run.join("a")
    run.poll("a", now=100_000.0)
    assert not run.coordinator.over


# -- rounds --


def test_rounds_follow_each_other_until_the_last() -> None:
    run = Run(rounds=3)
    run.join("a", "b")
    for round_number in (1, 2, 3):
        run.submit("b", round_number)
        run.submit("a", round_number)
    assert run.method.closed == [["a", "b"]] * 3
    assert run.poll("a") == RunOver(completed=True, detail="all 3 rounds done")
    assert [event["round"] for event in run.named("round_closed")] == [1, 2, 3]


def test_uploads_are_folded_in_client_order_whatever_order_they_came_in() -> None:
    """Invariant I2."""
    for order in (("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")):
        run = Run(min_clients=3)
        run.join("a", "b", "c")
        for name in order:
            run.submit(name)
        assert run.method.closed == [["a", "b", "c"]]


@pytest.mark.parametrize("share, size", [(1.0, 10), (0.7, 7), (0.25, 2), (0.01, 1)])
def test_the_cohort_is_the_rounded_share_of_the_ready_clients(share: float, size: int) -> None:
    run = Run(min_clients=10, clients_per_round=share)
    run.join(*"abcdefghij")
    (opened,) = run.named("round_opened")
    assert len(opened["cohort"]) == len(set(opened["cohort"])) == size


def cohorts(*, seed: int, order: str = "abcdefghij") -> list[list[str]]:
    run = Run(min_clients=10, clients_per_round=0.5, rounds=4, seed=seed)
    run.join(*order)
    for round_number in range(1, 5):
        assert run.coordinator.open is not None
        for name in run.coordinator.open.participants:
            run.submit(name, round_number)
    return [event["cohort"] for event in run.named("round_opened")]


def test_equal_seeds_sample_equal_cohorts_whoever_came_first() -> None:
    assert cohorts(seed=5) == cohorts(seed=5, order="jihgfedcba")
    assert len({tuple(cohort) for cohort in cohorts(seed=5)}) > 1


def test_another_seed_samples_another_cohort() -> None:
    assert cohorts(seed=5) != cohorts(seed=6)


def test_a_client_outside_the_cohort_waits() -> None:
    run = Run(min_clients=4, clients_per_round=0.5)
    run.join(*"abcd")
    asked = [name for name in "abcd" if isinstance(run.poll(name), AssignedTask)]
    assert run.coordinator.open is not None
    assert tuple(asked) == run.coordinator.open.participants
    outside = next(name for name in "abcd" if name not in asked)
    with pytest.raises(StaleError) as refused:
        run.submit(outside)
    assert refused.value.reason == "NOT_ASKED"


def test_a_late_joiner_waits_for_the_next_round() -> None:
    run = Run(rounds=2)
    run.join("a", "b")
    run.join("c")
    assert isinstance(run.poll("c"), MustWait)
    run.submit("a")
    run.submit("b")
    assert isinstance(run.poll("c"), AssignedTask)
    assert run.method.closed == [["a", "b"]]


# -- deadlines and quorums --


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


def test_an_extension_can_be_made_use_of() -> None:
    """Scenario 9."""
    run = Run(quorum=1.0)
    run.join("a", "b")
    run.submit("a")
    run.alive("a", "b", now=60.0)
    run.coordinator.tick(60.0)
    run.submit("b", now=61.0)
    assert run.coordinator.state is RunState.COMPLETED


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


# -- duplicates, conflicts, sessions --


def test_a_repeated_upload_gets_the_first_receipt_and_counts_once() -> None:
    """Scenarios 5, 6."""
    run = Run(rounds=2)
    run.join("a", "b")
    assert [run.submit("a"), run.submit("a"), run.submit("b")] == [False, True, False]
    assert run.method.closed == [["a", "b"]]
    assert run.submit("a") is True  # the round is over, the receipt stands
    assert len(run.named("upload_accepted")) == 2


def test_a_restarted_client_gets_its_receipt_too() -> None:
    """Scenario 5."""
    run = Run()
    run.join("a", "b")
    run.submit("a")
    run.coordinator.register("a", b"second life", 1.0)
    receipt = run.coordinator.submit(b"second life", PhaseKey(1, STUDENT), "a's", NoUpload(), 1.0)
    assert receipt.duplicate
    assert isinstance(run.coordinator.next_task(b"second life", 1.0), MustWait)


def test_a_second_different_upload_is_refused_and_the_first_one_counts() -> None:
    """Scenario 6."""
    run = Run()
    run.join("a", "b")
    run.submit("a", digest="first")
    with pytest.raises(ConflictError, match="the first one counts"):
        run.submit("a", digest="second")
    assert run.submit("a", digest="first") is True


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
    assert refused.value.reason == "RUN_OVER"
    assert run.poll("a") == RunOver(completed=False, detail="stopped")


def test_the_first_reason_to_abort_stands() -> None:
    run = Run()
    run.coordinator.abort("first")
    run.coordinator.abort("second")
    assert (run.coordinator.detail, len(run.named("run_aborted"))) == ("first", 1)


def test_tasks_carry_the_seconds_that_are_left() -> None:
    """Scenario 27: seconds, never a time of day."""
    run = Run()
    run.join("a", "b", now=1000.0)
    task = run.poll("a", now=1005.0)
    assert isinstance(task, AssignedTask)
    assert task.deadline_s == 55.0
