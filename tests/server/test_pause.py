"""A run that an operator has paused: the open phase ends, no other opens, and a restart changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_server.run_state import AssignedTask, MustWait, RunState

from .state_machine import Run
from .tiny import PERSONAL, Site, filled, tiny_run

PAUSED = "paused by operator alice: goes on with `fkd-server resume`"


def test_the_open_phase_ends_and_no_other_opens() -> None:
    run = Run(rounds=3)
    run.join("a", "b")
    run.coordinator.pause("operator alice")
    assert isinstance(run.poll("b"), AssignedTask)
    assert run.coordinator.waiting_for(0.0).endswith("60 s to the deadline; then paused by operator alice")
    run.submit("a")
    run.submit("b")
    assert run.method.closed == [["a", "b"]]
    assert run.poll("a", now=1.0) == MustWait(PAUSED)
    run.coordinator.unpause("operator alice")
    task = run.poll("a", now=1.0)
    assert isinstance(task, AssignedTask)
    assert task.key.round == 2
    assert [event["by"] for name in ("run_paused", "pause_ended") for event in run.named(name)] == [
        "operator alice"
    ] * 2


def test_a_paused_run_does_not_start() -> None:
    run = Run()
    run.coordinator.pause("operator alice")
    run.join("a", "b")
    assert run.poll("a") == MustWait(PAUSED)
    assert run.coordinator.state is RunState.GATHERING


def test_a_pause_may_last_longer_than_any_deadline() -> None:
    run = Run(rounds=3, phase_deadline_s=60.0)
    run.join("a", "b")
    run.coordinator.pause("operator alice")
    run.submit("a")
    run.submit("b")
    run.coordinator.leave(b"a", 1.0)
    run.coordinator.leave(b"b", 1.0)
    run.coordinator.tick(100_000.0)
    assert not run.coordinator.over
    run.coordinator.unpause("operator alice")
    run.coordinator.tick(100_000.0)
    assert not run.coordinator.over
    run.join("a", "b", now=100_001.0)
    assert isinstance(run.poll("a", now=100_001.0), AssignedTask)


def test_a_pause_is_no_time_of_the_rounds(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", personal=("prior",))
    sites = [Site(name, run.answer) for name in "ab"]
    for site in sites:
        site.poll()
    run.clock.now = 3.0
    run.service.pause("operator alice")
    for site in sites:
        site.submit_student(1, filled(run.method, 0.5))
    run.clock.now = 1000.0
    for site in sites:
        assert site.poll().HasField("wait")
    run.service.unpause("operator alice")
    run.clock.now = 1004.0
    for site in sites:
        site.call("FinishTask", key=site.key(1, PERSONAL))
    (record,) = run.rounds()
    assert record["seconds"] == 7.0


def test_pausing_twice_is_pausing_once() -> None:
    run = Run()
    run.coordinator.pause("operator alice")
    run.coordinator.pause("operator bob")
    assert run.coordinator.paused_by == "operator alice"
    run.coordinator.unpause("operator bob")
    run.coordinator.unpause("operator bob")
    assert [len(run.named(name)) for name in ("run_paused", "pause_ended")] == [1, 1]


def test_a_run_that_is_over_is_not_paused() -> None:
    run = Run()
    run.coordinator.abort("enough")
    run.coordinator.pause("operator alice")
    assert run.coordinator.paused_by == ""


@pytest.mark.parametrize("ends", ["aborted", "completed"])
def test_a_run_that_ends_is_no_longer_paused(ends: str) -> None:
    run = Run()
    run.join("a", "b")
    run.coordinator.pause("operator alice")
    if ends == "aborted":
        run.coordinator.abort("enough")
    else:
        run.submit("a")
        run.submit("b")
    assert run.coordinator.state.value == ends
    assert run.coordinator.paused_by == ""


def test_a_coordinator_that_dies_comes_back_paused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    run.service.pause("operator alice")
    run.store.close()
    again = tiny_run(tmp_path / "run")
    sites = [Site(name, again.answer) for name in "ab"]
    assert [site.poll().wait.reason for site in sites] == [PAUSED] * 2
    again.service.unpause("operator alice")
    assert sites[0].poll().HasField("task")
