"""Scores of the global model: pending ones outlive the coordinator, and no trouble with them holds up a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fkd_common.artifacts import sha256_hex
from fkd_common.model_file import decode_model
from fkd_server import evaluation
from fkd_server.run import Run, assemble
from fkd_server.run_state import RunState

from .test_run_folder import settings
from .tiny import RESIDUALS, VOTES, Site, filled

VOTING: dict[str, Any] = {"correction": ("anchors",), "residual_every": 1, "rounds": 3, "quorum": 1.0}


def start(prepared: Path, **changes: Any) -> Run:
    return assemble(settings(prepared, **changes), prepared.parent / "cache")


def sites_of(run: Run) -> list[Site]:
    def answer(method: Any, request: bytes) -> bytes:
        response = run.service.handle(method, request)
        assert response is not None
        return response

    sites = [Site(name, answer) for name in "ab"]
    for site in sites:
        site.poll()
    return sites


def play(run: Run, sites: list[Site], *rounds: int) -> None:
    for round_number in rounds:
        for site in sites:
            site.submit_student(round_number, filled(run.method, float(round_number)))


def vote(sites: list[Site], round_number: int) -> None:
    """Nobody computes residuals, so there is one candidate."""
    for site in sites:
        key = site.key(round_number, RESIDUALS)
        site.call("ReportFailure", key=key, detail="no residuals here")
    for site in sites:
        votes = [{"candidate": "student", "correct": 2}]
        site.call("SubmitVotes", key=site.key(round_number, VOTES), votes=votes, num_validation=3)


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """A test set that cannot be used; that takes the evaluating process seconds to find out."""
    (tmp_path / "nothing").mkdir()
    return tmp_path / "nothing"


def lines_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder.path / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.scenario(42)
def test_what_is_not_scored_when_a_coordinator_is_stopped_is_scored_by_the_next(
    prepared: Path, nothing: Path
) -> None:
    """Scenario 42: no model is removed and no accuracy booked that nobody measured."""
    run = start(prepared, test=nothing, rounds=3)
    assert run.evaluator is not None
    play(run, sites_of(run), 1, 2)
    assert run.evaluator.waiting_for().startswith("evaluation of rounds 1, 2")
    waiting = sorted((run.folder.path / "evaluations").iterdir())
    assert len(waiting) == 2
    run.close()
    assert sorted((run.folder.path / "evaluations").iterdir()) == waiting
    again = start(prepared, test=nothing, rounds=3)
    assert again.evaluator is not None
    assert again.evaluator.waiting_for().startswith("evaluation of rounds 1, 2")
    assert [accuracy for _, accuracy in again.store.rounds()] == [None, None]
    again.close()


def test_a_test_set_that_cannot_be_used_costs_the_accuracies_and_nothing_else(
    prepared: Path, nothing: Path
) -> None:
    run = start(prepared, test=nothing, rounds=2)
    play(run, sites_of(run), 1, 2)
    summary = run.finish()
    run.close()
    assert (summary["state"], summary["accuracy"]) == ("completed", {})
    assert [line["accuracy"] for line in lines_of(run)] == [{}, {}]


def test_an_evaluation_that_says_nothing_is_given_up(
    prepared: Path, nothing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "PATIENCE_S", 0.05)
    run = start(prepared, test=nothing, rounds=1)
    play(run, sites_of(run), 1)
    run.finish()
    run.close()
    assert "it said nothing for" in capsys.readouterr().out
    assert run.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(1)
def test_files_of_a_round_that_a_crash_kept_from_being_written_are_written_by_the_next(
    prepared: Path, nothing: Path
) -> None:
    """Scenario 1: the coordinator dies between the round's last commit and the model's file."""
    run = start(prepared, test=nothing, **VOTING)
    sites = sites_of(run)
    play(run, sites, 1)
    vote(sites, 1)
    model = run.folder.path / "model.safetensors"
    whole = model.read_bytes()
    run.close()
    model.unlink()
    waiting = run.folder.path / "evaluations" / "round-1.safetensors"
    waiting.unlink()
    again = start(prepared, test=nothing, **VOTING)
    assert model.read_bytes() == whole
    assert again.recorder.model is not None
    assert (again.recorder.model.round, again.recorder.model.sha256) == (1, sha256_hex(whole))
    assert waiting.read_bytes() == whole
    again.close()


def test_a_model_that_a_crash_left_of_an_earlier_vote_is_replaced(prepared: Path) -> None:
    run = start(prepared, **VOTING)
    sites = sites_of(run)
    model = run.folder.path / "model.safetensors"
    play(run, sites, 1)
    vote(sites, 1)
    older = model.read_bytes()
    play(run, sites, 2)
    vote(sites, 2)
    newer = model.read_bytes()
    run.close()
    model.write_bytes(older)
    start(prepared, **VOTING).close()
    assert model.read_bytes() == newer


def test_the_model_of_a_vote_stays_while_the_next_round_is_at_work(prepared: Path) -> None:
    run = start(prepared, **VOTING)
    sites = sites_of(run)
    play(run, sites, 1)
    vote(sites, 1)
    play(run, sites, 2)  # the student is another now, and nobody has voted on it
    whole = (run.folder.path / "model.safetensors").read_bytes()
    run.close()
    again = start(prepared, **VOTING)
    assert again.recorder.model is not None
    assert again.recorder.model.round == 1
    assert (again.folder.path / "model.safetensors").read_bytes() == whole
    again.close()


def test_a_stopped_run_describes_the_model_of_its_last_vote(prepared: Path) -> None:
    run = start(prepared, **VOTING)
    sites = sites_of(run)
    play(run, sites, 1)
    vote(sites, 1)
    run.service.abort("stopped by operator alice")
    summary = run.finish()
    run.close()
    model = (run.folder.path / "model.safetensors").read_bytes()
    assert summary["model_hash"] == sha256_hex(model)
    assert run.recorder.model is not None
    assert run.recorder.model.published == decode_model(model).header.published == "student"
    card = (run.folder.path / "MODEL_CARD.md").read_text()
    assert "model after round 1 of 3. The run ended early: stopped by operator alice." in card


@pytest.mark.scenario(29)
def test_a_round_is_recorded_even_if_a_part_of_its_model_is_damaged(prepared: Path) -> None:
    """Scenario 29."""
    run = start(prepared, **VOTING)
    sites = sites_of(run)
    play(run, sites, 1)
    for site in sites:
        site.call("ReportFailure", key=site.key(1, RESIDUALS), detail="no residuals here")
    sites[0].call(
        "SubmitVotes",
        key=sites[0].key(1, VOTES),
        votes=[{"candidate": "student", "correct": 2}],
        num_validation=3,
    )
    path = run.store.blobs.path(run.method.state.student.sha256)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    sites[1].call(
        "SubmitVotes",
        key=sites[1].key(1, VOTES),
        votes=[{"candidate": "student", "correct": 2}],
        num_validation=3,
    )
    assert [line["round"] for line in lines_of(run)] == [1]
    run.close()
