"""What a hub says to its relay: that a phase or the run is over, that it prepares, that it refuses; people are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.errors import DataError, FkdError, UnauthenticatedError, UnreachableError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import PREPARING
from fkd_common.tensors import encode
from fkd_server.run_state import RunState

from ..server.tiny import STUDENT
from .tree import (
    STUDENTS,
    again,
    hub,
    in_phase,
    pair,
    play,
    register,
    steps,
)


@pytest.mark.scenario(8)
def test_a_phase_that_the_hub_closes_first_ends_here_too(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS, heartbeat_limit_s=1000.0)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    sites[2].do()
    above.clock.now += 61.0
    above.service.tick()
    assert above.coordinator.round == 2
    below.link._connection.session._work.closed = True  # what the next sign of life says
    steps(below, 6)
    assert below.coordinator.round == 2
    closed = next(fields for fields in below.named("phase_closed") if fields["round"] == 1)
    assert closed["skipped"].startswith("the upstream coordinator went on")
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED


def test_a_relays_phase_closes_before_the_hubs(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    assert sites[0].poll().task.deadline_s == pytest.approx(0.9 * 60.0, abs=0.5)


def test_a_run_that_is_aborted_upstream_is_aborted_here_with_the_reason(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    above.service.abort("stopped by ops")
    steps(below, 6)
    assert below.coordinator.state is RunState.ABORTED
    assert below.coordinator.detail == "the upstream run was aborted: stopped by ops"
    assert not sites[0].poll().finished.completed


@pytest.mark.scenario(46)
@pytest.mark.parametrize("completed", [True, False])
def test_a_relay_that_was_away_when_the_run_ended_learns_how(tmp_path: Path, completed: bool) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    if completed:
        sites[2].do()
    else:
        above.service.abort("stopped by ops")
    above.clock.now += 200.0
    above.service.tick()
    assert above.coordinator.over
    sites[2].poll()
    sites[2].call("Leave")
    assert not above.service.everyone_left()
    below = again(below, above, *sites[:2])
    steps(below)
    assert above.service.everyone_left()
    told = sites[0].poll().finished
    assert told.completed is completed
    assert told.detail == ("all 2 rounds done" if completed else "upstream: the run is over: stopped by ops")
    assert below.link.over
    assert below.link.failure is None


def test_a_relay_that_missed_the_last_rounds_publishes_no_older_model_as_the_runs(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, rounds=2, personal_every=1, correction_at_start=False)
    play([above], [below], sites, until=lambda: below.method.model() is not None)
    above.service.abort("stopped by ops")
    below.link._complete("the upstream run is over")
    assert below.coordinator.state is RunState.COMPLETED
    assert below.method.model() is None


def test_a_hub_that_prepares_is_waited_for_in_its_own_words(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))

    def preparing(method: Any, request: bytes) -> bytes:
        raise UnreachableError("the coordinator is preparing the run", reason=PREPARING)

    below = again(below, above, *sites[:2], patience_s=0.0)
    below.wire.to = preparing
    steps(below)
    words = "the upstream coordinator at hub:1 says: the coordinator is preparing the run"
    assert below.service.waiting_for().endswith(words)
    assert below.link.failure is None
    below.wire.to = above.answer
    play([above], [below], sites)


def test_a_hub_that_stays_away_is_given_up_and_the_run_is_kept(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    below = again(below, above, *sites[:2], patience_s=0.0)
    below.wire.cut = True
    steps(below, 2)
    assert isinstance(below.link.failure, UnreachableError)
    assert "does not answer since" in str(below.link.failure)
    assert "this relay stops and its run is kept" in str(below.link.failure)
    assert below.coordinator.state is RunState.RUNNING
    below = again(below, above, *sites[:2])
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED


def test_few_clients_do_not_hide_that_the_hub_is_away(tmp_path: Path) -> None:
    _, below, _ = pair(tmp_path, **STUDENTS)
    below.wire.cut = True
    steps(below)
    assert below.service.waiting_for().startswith(
        "0 of 2 clients ready; the upstream coordinator at hub:1 does not answer since "
    )


@pytest.mark.scenario(47)
def test_another_run_upstream_ends_the_process_and_not_the_run(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    other = hub(tmp_path / "other", **STUDENTS, seed=9)
    below = again(below, above, *sites[:2])
    below.wire.to = other.answer
    steps(below)
    assert "this relay stops and its run is kept" in str(below.link.failure)
    assert "correct --upstream" in str(below.link.failure)
    assert below.link.over
    assert below.coordinator.state is RunState.RUNNING
    below = again(below, above, *sites[:2])
    play([above], [below], sites)
    assert below.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(25)
def test_another_process_under_the_relays_name_ends_this_one_and_not_the_run(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    register(above, below.link._ends.name, relay=True)
    steps(below)
    assert "another process registered under the same name" in str(below.link.failure)
    assert "or the coordinator has lost its state folder" in str(below.link.failure)
    assert "give one of them another --upstream-name" in str(below.link.failure)
    assert below.coordinator.state is RunState.RUNNING


def test_a_relay_that_stops_says_goodbye_also_after_it_has_connected_again(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    below = again(below, above, *sites[:2])
    steps(below)
    assert above.coordinator.attendance.live()
    below.link.close()
    assert not any(client.name == below.link._ends.name for client in above.coordinator.attendance.live())


def test_a_relay_that_the_hub_does_not_let_in_keeps_its_clients_waiting(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))

    def expired(method: Any, request: bytes) -> bytes:
        raise FkdError("the certificate expired", reason="CERTIFICATE_EXPIRED")

    below.wire.to = expired
    steps(below)
    words = below.service.waiting_for()
    assert "refuses this relay (the certificate expired) since " in words
    below.wire.to = above.answer
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(31)
def test_a_relay_whose_certificate_expires_while_its_clients_work_comes_back_with_another(
    tmp_path: Path,
) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    link = below.link._connection
    assert link is not None
    link.session._fatal = UnauthenticatedError("the certificate expired")  # what a sign of life was told
    below.step()
    assert "refuses this relay (the certificate expired)" in below.service.waiting_for()
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED
    assert len(below.named("upstream_connected")) == 2
    assert above.rounds()[0]["phases"]["student"]["returned"] == ["c", "r"]


def test_a_task_that_does_not_fit_the_run_changes_nothing(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    bad = encode({"output.bias": np.zeros(3, np.float32)})

    play([above], [below], sites, until=lambda: in_phase(above, 1, STUDENT))
    task = pb.Task(key=types.TaskKey(run_id="run-1", round=1, phase=STUDENT))  # type: ignore[arg-type]
    before = below.method.snapshot()
    with pytest.raises(
        DataError, match="the upstream coordinator's task cannot be used: tensor names differ"
    ):
        below.method.take(task, {"student": bad})
    assert below.method.snapshot() == before


@pytest.mark.scenario(28)
def test_a_disk_that_refuses_a_task_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    real, refusals = below.store.blobs.put, [OSError(28, "No space left on device")] * 2

    def put(blob: Any, sha256: Any = None) -> Any:
        if refusals:
            raise refusals.pop()
        return real(blob, sha256)

    monkeypatch.setattr(below.store.blobs, "put", put)
    play([above], [below], sites, until=lambda: not refusals)
    assert below.service.disk.lately()
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED
    assert above.rounds()[0]["phases"]["student"]["returned"] == ["c", "r"]


def test_an_answer_the_hub_refuses_is_said_and_costs_the_phase_only(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS, max_samples=100)  # a has 40 and b 90
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED
    assert "max_samples" in below.named("upstream_not_answered")[0]["detail"]
    assert above.rounds()[0]["phases"]["student"]["returned"] == ["c"]
