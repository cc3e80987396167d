"""The state machine with FKD-RTM: which phases a round has, and what a missing quorum costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from fkd_common.errors import InvalidUploadError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.tensors import encode
from fkd_server.run_state import RunState

from .tiny import MOMENTS, PERSONAL, RESIDUALS, STUDENT, VOTES, Site, TinyRun, filled, inline, tiny_run

RESIDUAL = encode({"residuals": np.full((4, 2), 0.5, dtype=np.float32)})
EVERYTHING: dict[str, Any] = {"correction": ("anchors", "moments"), "personal": ("prior",)}


def moments_of(run: TinyRun, *, block_known: bool) -> bytes:
    """Moments of 5 cats and 5 dogs whose every feature but the constant is 0: A's last entry is n_k, B is 0."""
    p = run.method.num_moment_features
    A = np.zeros(p * (p + 1) // 2 - (10 if block_known else 0), dtype=np.float32)
    if not block_known:
        A[-1] = 10
    return encode({"A": A, "B": np.zeros((p, 2), dtype=np.float32)})


def do(run: TinyRun, site: Site, task: pb.Task) -> None:
    """Answer any task with something valid."""
    if task.key.phase == STUDENT:
        site.submit_student(task.key.round, filled(run.method, task.key.round))
    elif task.key.phase == RESIDUALS:
        site.call("SubmitResiduals", key=task.key, upload=inline(RESIDUAL), num_samples=10)
    elif task.key.phase == MOMENTS:
        blob = moments_of(run, block_known=task.embedding_block_known)
        site.call("SubmitMoments", key=task.key, upload=inline(blob), num_samples=10)
    elif task.key.phase == VOTES:
        votes = [pb.Vote(candidate=name, correct=1) for name in run.method.candidates()]
        site.call("SubmitVotes", key=task.key, votes=votes, num_validation=2)
    else:
        site.call("FinishTask", key=task.key)


def finish(run: TinyRun, sites: list[Site]) -> list[tuple[int, int]]:
    """Let every site do every task; returns (round, phase) in the order they were opened."""
    while not run.coordinator.over:
        for site in sites:
            answer = site.poll()
            if answer.HasField("task"):
                do(run, site, answer.task)
    opened = [event.fields for event in run.events if event.name == "phase_opened"]
    names = {"student": STUDENT, "residuals": RESIDUALS, "moments": MOMENTS, "votes": VOTES}
    return [(e["round"], names.get(str(e["phase"]), PERSONAL)) for e in opened]  # type: ignore[misc]


def two_sites(run: TinyRun) -> list[Site]:
    sites = [run.site("a"), run.site("b")]
    for site in sites:
        site.poll()
    return sites


def test_corrections_and_personalisation_run_when_due(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, rounds=3, residual_every=2, **EVERYTHING)
    stage_two = [RESIDUALS, MOMENTS, VOTES]
    assert finish(run, two_sites(run)) == [
        (1, STUDENT),
        (2, STUDENT), *[(2, phase) for phase in stage_two],
        (3, STUDENT), *[(3, phase) for phase in stage_two], (3, PERSONAL),
    ]  # fmt: skip
    assert run.coordinator.state is RunState.COMPLETED


def test_before_the_first_round_moments_of_the_embedding_can_be_pooled(tmp_path: Path) -> None:
    """An untrained student has no residuals that a forest could learn; with anchors alone there is no such round."""
    correction = ("anchors", "moments")
    run = tiny_run(tmp_path / "both", correction=correction, correction_at_start=True, rounds=2)
    assert finish(run, two_sites(run)) == [
        (0, MOMENTS), (0, VOTES), (1, STUDENT), (2, STUDENT), (2, RESIDUALS), (2, MOMENTS), (2, VOTES),
    ]  # fmt: skip
    assert [record["phases"]["moments"]["features"] for record in run.rounds()[::2]] == [4, 6]
    run = tiny_run(tmp_path / "anchors", correction=("anchors",), correction_at_start=True)
    assert finish(run, two_sites(run)) == [(1, STUDENT), (1, RESIDUALS), (1, VOTES)]


def test_without_corrections_a_round_is_stage_one_alone(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, rounds=2)
    assert finish(run, two_sites(run)) == [(1, STUDENT), (2, STUDENT)]


def test_moments_and_votes_ask_everyone_and_residuals_the_cohort(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, min_clients=4, clients_per_round=0.5, **EVERYTHING)
    sites = [run.site(name) for name in "abcd"]
    finish(run, sites)
    asked = {e.fields["phase"]: len(e.fields["participants"]) for e in run.events if e.name == "phase_opened"}  # type: ignore[arg-type]
    assert asked == {"student": 2, "residuals": 2, "moments": 4, "votes": 4, "personal": 4}


@pytest.mark.scenario(43)
def test_stage_two_below_its_quorum_is_skipped_and_the_student_still_published(tmp_path: Path) -> None:
    """Scenario 43, invariant I4."""
    run = tiny_run(tmp_path, quorum=1.0, correction=("anchors",))
    a, b = two_sites(run)
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    student = run.method.state.student.sha256
    a.call("SubmitResiduals", key=a.key(1, RESIDUALS), upload=inline(RESIDUAL), num_samples=10)
    b.call("ReportFailure", key=b.key(1, RESIDUALS), detail="no trees today")
    # Nobody is left who could answer: the deadline is not waited for.
    for site in (a, b):
        assert site.poll().task.key.phase == VOTES
        votes = [pb.Vote(candidate="student", correct=1)]
        site.call("SubmitVotes", key=site.key(1, VOTES), votes=votes, num_validation=2)
    (record,) = run.rounds()
    assert record["phases"]["residuals"]["skipped"] == "1 uploads, quorum 2"
    assert record["phases"]["votes"]["published"] == "student"
    assert run.coordinator.state is RunState.COMPLETED
    assert run.method.model().header.published == "student"
    assert run.method.state.student.sha256 == student
    run.service.tick()
    assert list(run.uploads.iterdir()) == []


@pytest.mark.scenario(43)
def test_residuals_are_fused_over_those_who_sent_them(tmp_path: Path) -> None:
    """Scenario 43."""
    run = tiny_run(tmp_path, quorum=0.5, correction=("anchors",))
    a, b = two_sites(run)
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    b.call("ReportFailure", key=b.key(1, RESIDUALS), detail="no trees today")
    a.call("SubmitResiduals", key=a.key(1, RESIDUALS), upload=inline(RESIDUAL), num_samples=10)
    assert run.method.state.fused is not None
    for site in (a, b):
        do(run, site, site.poll().task)
    (record,) = run.rounds()
    assert record["phases"]["residuals"]["returned"] == ["a"]
    assert record["phases"]["residuals"]["missing"] == ["b"]


def test_personalisation_needs_no_quorum(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, quorum=1.0, personal=("prior",))
    a, b = two_sites(run)
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    for site in (a, b):
        site.call("ReportFailure", key=site.key(1, PERSONAL), detail="no room")
    assert run.coordinator.state is RunState.COMPLETED


def student_hash(folder: Path, order: tuple[str, ...]) -> str:
    run = tiny_run(folder, min_clients=3)
    sites = {name: run.site(name) for name in order}
    for name in order:
        sites[name].poll()
    for name in order:
        value = {"a": 0.1, "b": 1 / 3, "c": 7.0}[name]
        sites[name].submit_student(1, filled(run.method, value), n=ord(name), r=0.7)
    return run.method.state.student.sha256


@pytest.mark.scenario(3)
def test_the_student_does_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    """Invariant I2."""
    orders = [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")]
    assert len({student_hash(tmp_path / "".join(order), order) for order in orders}) == 1


@pytest.mark.scenario(14)
def test_a_round_without_an_aggregate_aborts_with_the_reason(tmp_path: Path) -> None:
    """Scenario 14."""
    run = tiny_run(tmp_path, drop_below=0.5)
    for site in two_sites(run):
        site.submit_student(1, filled(run.method, 1.0), r=0.4)
    assert run.coordinator.state is RunState.ABORTED
    assert run.coordinator.detail.startswith("round 1, student has no aggregate")


@pytest.mark.scenario(29)
def test_a_damaged_upload_on_disk_holds_the_run_rather_than_blame_the_last_client(tmp_path: Path) -> None:
    """Scenario 29: nothing is folded, nothing is lost; the coordinator names the file until it is whole again."""
    run = tiny_run(tmp_path)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    (path,) = run.uploads.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\xff")
    with structlog.testing.capture_logs() as logs:
        assert not b.submit_student(1, filled(run.method, 2.0)).duplicate
    assert [entry["event"] for entry in logs] == ["disk_refuses"]
    assert f"{path} is damaged" in logs[0]["detail"]
    assert run.coordinator.open is not None
    path.write_bytes(whole)
    run.clock.now += 1.0
    run.service.tick()
    assert run.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(28)
def test_a_disk_that_refuses_while_a_phase_closes_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Scenario 28: it recovers without a restart."""
    run = tiny_run(tmp_path)
    a, b = two_sites(run)
    a.submit_student(1, filled(run.method, 1.0))
    away = run.blobs.with_name("away")
    run.blobs.rename(away)
    assert not b.submit_student(1, filled(run.method, 3.0)).duplicate, (
        "the upload counts, whatever the phase does"
    )
    run.service.tick()
    assert run.coordinator.open is not None
    away.rename(run.blobs)
    run.clock.now += 1.0
    run.service.tick()
    assert run.coordinator.state is RunState.COMPLETED
    assert b.submit_student(1, filled(run.method, 3.0)).duplicate


def personal_task(tmp_path: Path, **changes: Any) -> tuple[TinyRun, list[Site]]:
    run = tiny_run(tmp_path / "run", **{"personal": ("prior",), **changes})
    sites = [run.site(name) for name in "ab"]
    for site in sites:
        site.poll()
    for site in sites:
        site.submit_student(1, filled(run.method, 0.5))
    assert all(site.poll().task.key.phase == PERSONAL for site in sites)
    return run, sites


def test_personal_models_are_scored_together_where_the_run_asks_for_it(tmp_path: Path) -> None:
    """2 of 2 and 0 of 1 samples: 67 %, for all sites together."""
    run, (a, b) = personal_task(tmp_path, report_personal=True)
    a.call("FinishTask", key=a.key(1, PERSONAL), personal_correct=2, num_validation=2)
    b.call("FinishTask", key=b.key(1, PERSONAL), personal_correct=0, num_validation=1)
    (record,) = run.rounds()
    assert record["phases"]["personal"]["validation_accuracy"] == {"personal": 2 / 3}
    (status,) = run.overview.rounds(0).rounds
    assert dict(status.validation) == {"personal": 2 / 3}


def test_a_site_without_held_out_samples_finishes_without_a_score(tmp_path: Path) -> None:
    run, sites = personal_task(tmp_path, report_personal=True)
    for site in sites:
        site.call("FinishTask", key=site.key(1, PERSONAL))
    assert "validation_accuracy" not in run.rounds()[0]["phases"]["personal"]
    assert run.coordinator.state is RunState.COMPLETED


def test_personal_scores_nobody_asked_for_are_refused(tmp_path: Path) -> None:
    _, (a, _) = personal_task(tmp_path)
    with pytest.raises(InvalidUploadError, match="does not ask for personal scores"):
        a.call("FinishTask", key=a.key(1, PERSONAL), personal_correct=1, num_validation=2)


def test_a_personal_score_is_no_larger_than_its_samples(tmp_path: Path) -> None:
    _, (a, _) = personal_task(tmp_path, report_personal=True)
    with pytest.raises(InvalidUploadError, match="3 correct of 2"):
        a.call("FinishTask", key=a.key(1, PERSONAL), personal_correct=3, num_validation=2)
