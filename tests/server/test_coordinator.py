"""The state machine: when rounds start, who is in them, in what order they fold; time is passed in."""

from __future__ import annotations

import pytest

from fkd_common.errors import StaleError
from fkd_server.run_state import AssignedTask, KnownClient, MustWait, RunOver, RunState

from .state_machine import Run

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


def test_waiting_names_who_is_busy_but_not_in_the_clients_words() -> None:
    """All clients are told it."""
    run = Run(min_clients=2)
    run.join("a")
    run.coordinator.register("b", b"b", 0.0)
    run.coordinator.attendance.seen(b"b", 0.0, "embedding", 0.25)
    assert run.coordinator.waiting_for(0.0) == "1 of 2 clients ready: a; b prepares (25%)"


def test_waiting_in_a_phase_names_who_is_missing() -> None:
    run = Run()
    run.join("a", "b")
    run.submit("a")
    assert run.coordinator.waiting_for(20.0) == (
        "round 1, student: 1 of 2 in, waiting for b, 40 s to the deadline"
    )


def test_waiting_for_very_many_names_some_of_them() -> None:
    """Every client that waits is sent the sentence."""
    run = Run(min_clients=200)
    run.join(*(f"site-{i:03}" for i in range(100)))
    said = run.coordinator.waiting_for(0.0)
    assert said.startswith("100 of 200 clients ready: site-000, site-001, ")
    assert said.endswith("site-019 and 80 more")


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


@pytest.mark.scenario(3)
def test_a_phase_and_its_round_end_in_one_step_and_the_next_begin_in_another() -> None:
    """Each is one wait for the disk; between them the run stands at the end of a round, as its copy does."""
    run = Run(rounds=3)
    run.join("a", "b")
    steps = len(run.notes.positions)
    run.submit("a")
    run.submit("b")
    ended, opened = run.notes.positions[steps:]
    assert (ended.round, ended.open, ended.record) == (1, None, {})
    assert (opened.round, opened.open.participants) == (2, ("a", "b"))
    names = [event.name for event in run.events]
    assert names[names.index("phase_closed") :] == [
        "phase_closed",
        "round_closed",
        "round_opened",
        "phase_opened",
    ]


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
        for name in run.coordinator.participants:
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
    assert tuple(asked) == run.coordinator.participants
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


def test_what_a_poll_costs_does_not_grow_with_the_square_of_the_clients() -> None:
    """A thousand clients poll, most of them between two changes: who else is there is not gone through each time."""
    looked = []
    run = Run(min_clients=3, heartbeat_limit_s=100.0)
    run.join("a", "b", "c")
    attendance = run.coordinator.attendance
    before = attendance.notice_silence
    attendance.notice_silence = lambda now: (looked.append(now), before(now))[1]  # type: ignore[method-assign, assignment]
    for now in (1.0, 1.01, 1.02, 1.03):
        run.poll("a", now)
    assert looked == [1.0]
    run.submit("b", now=1.04)
    run.poll("a", 1.045)
    assert looked == [1.0, 1.04]
    run.poll("a", 2.0)
    assert looked == [1.0, 1.04, 2.0]


def test_many_clients_send_fewer_signs_of_life_and_are_missed_later() -> None:
    """Each of a thousand every two seconds would keep half a core busy with nothing else."""
    run = Run(min_clients=3, heartbeat_s=2.0, heartbeat_limit_s=8.0)
    run.join("a", *(f"c{number:03}" for number in range(499)))
    attendance = run.coordinator.attendance
    assert attendance.next_beat_s(b"a") == 5.0  # 500 clients, 100 signs of life a second
    run.coordinator.tick(19.0)
    assert [client.name for client in attendance.live()] == ["a"]
    assert attendance.next_beat_s(b"a") == 2.0  # alone again
    run.coordinator.tick(20.5)
    assert not attendance.live()


def test_after_a_restart_many_clients_are_given_the_time_that_they_were_told() -> None:
    run = Run(min_clients=3, heartbeat_s=2.0, heartbeat_limit_s=8.0)
    attendance = run.coordinator.attendance
    known = [KnownClient(f"c{number:04}", str(number).encode(), True, False) for number in range(3000)]
    attendance.resume(known, now=0.0)
    run.coordinator.tick(100.0)
    assert len(attendance.live()) == 3000  # who beats every 30 s


def test_a_poll_of_a_client_that_has_left_is_no_sign_of_life() -> None:
    run = Run(min_clients=3)
    run.join("a", "b")
    run.coordinator.leave(b"a", 1.0)
    run.coordinator.attendance.still_poll([b"a"], 1.5)
    assert [client.name for client in run.coordinator.attendance.live()] == ["b"]


def test_a_poll_that_will_be_held_is_not_told_why() -> None:
    run = Run(min_clients=2)
    run.join("a")
    assert run.coordinator.next_task(b"a", 0.0, told_why=False) == MustWait("")


def test_a_poll_that_is_held_is_a_sign_of_life() -> None:
    run = Run(min_clients=3, heartbeat_limit_s=10.0)
    run.join("a", "b")
    run.coordinator.attendance.still_poll([b"a", b"of an earlier process"], now=9.0)
    run.coordinator.tick(11.0)
    assert [client.name for client in run.coordinator.attendance.live()] == ["a"]
