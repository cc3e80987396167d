"""Uploads that are accepted and can count for nothing: others stand in for them, and they are no reason to abort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fkd_server.run_state import RunState

from .tiny import Site, TinyRun, events_named, filled, tiny_run


def six(folder: Path, **changes: Any) -> tuple[TinyRun, dict[str, Site]]:
    """Two of six are asked."""
    keys = {"min_clients": 6, "clients_per_round": 0.34, "min_cohort": 2, **changes}
    run = tiny_run(folder, **keys)
    sites = {name: run.site(name) for name in "abcdef"}
    for site in sites.values():
        site.poll()
    assert len(run.coordinator.participants) == 2
    return run, sites


@pytest.mark.scenario(13, 14)
@pytest.mark.parametrize(
    "changes, n, r",
    [({}, 0, 1.0), ({"drop_below": 0.5}, 10, 0.4), ({"tau_r": 0.0}, 10, 0.0)],
    ids=["no samples", "unreliable", "weight 0"],
)
def test_a_stand_in_is_asked_for_an_upload_that_cannot_count(
    tmp_path: Path, changes: dict[str, Any], n: int, r: float
) -> None:
    """Scenarios 13, 14: the run would have no aggregate though four others wait."""
    run, sites = six(tmp_path, **changes)
    first, second = run.coordinator.participants
    sites[first].submit_student(1, filled(run.method, 1.0))
    sites[second].submit_student(1, filled(run.method, 9.0), n=n, r=r)
    (event,) = events_named(run.events, "stand_ins_called")
    assert event["for"] == [second]
    (stand_in,) = event["stand_ins"]
    sites[stand_in].submit_student(1, filled(run.method, 1.0))
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    record = run.rounds()[0]["phases"]["student"]
    assert list(record["excluded"]) == [second]
    assert sorted(record["weights"]) == sorted((first, stand_in))


@pytest.mark.scenario(13)
def test_without_stand_ins_it_is_said_why_there_is_no_aggregate(tmp_path: Path) -> None:
    """Scenario 13."""
    run = tiny_run(tmp_path, min_cohort=2)
    a, b = run.site("a"), run.site("b")
    for site in (a, b):
        site.poll()
    a.submit_student(1, filled(run.method, 1.0))
    b.submit_student(1, filled(run.method, 1.0), n=0)
    assert run.coordinator.state is RunState.ABORTED
    assert "1 students may count, min_cohort is 2 (b: n_k = 0)" in run.coordinator.detail


@pytest.mark.scenario(13)
def test_an_upload_that_cannot_count_does_not_hold_up_those_that_can(tmp_path: Path) -> None:
    """Scenario 13: enough others are in."""
    run = tiny_run(tmp_path, min_clients=3, min_cohort=2)
    sites = [run.site(name) for name in "abc"]
    for site in sites:
        site.poll()
    for site, n in zip(sites, (10, 10, 0), strict=True):
        site.submit_student(1, filled(run.method, 1.0), n=n)
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    assert not list(events_named(run.events, "stand_ins_called"))
