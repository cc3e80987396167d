"""Logistic steps on the pooled moments, through the protocol's bytes: who is asked, what is missed, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fkd_common.errors import InvalidUploadError, StaleError
from fkd_common.method.moments import accumulate, apply_moments, solve
from fkd_common.method.refinement import REFINED, Ascent, ascend, gradient, likelihood_residual
from fkd_common.model_file import decode_model, encode_model
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.phases import REFINE_PHASES
from fkd_common.tensors import Tensors, decode, encode
from fkd_server.method.federated_method import VoteUpload
from fkd_server.run_state import RunState
from fkd_server.validation import Background, UploadRules

from ..secure_sum.secure_sites import SecureSite, work
from .test_fkd_rtm import Half
from .tiny import MOMENTS, STUDENT, VOTES, TinyRun, filled, inline, tiny_run

STEPS: dict[str, Any] = {"correction": ("moments",), "refine_steps": 3, "min_clients": 3}
SIZES = {"a": 40, "b": 90, "c": 7}
STEP_1, STEP_2, STEP_3 = REFINE_PHASES[:3]


def start(folder: Path, **changes: Any) -> tuple[TinyRun, dict[str, SecureSite]]:
    """Three sites, all ready, whose student says nothing: S = 0."""
    run = tiny_run(folder, **{**STEPS, **changes})
    student = filled(run.method, 0.0)
    sites = {name: SecureSite(name, run.answer, student, n, 1.0) for name, n in SIZES.items()}
    for site in sites.values():
        site.poll()
    return run, sites


def until(run: TinyRun, sites: dict[str, SecureSite], phase: int) -> None:
    """Every site does what it is asked for, until a phase opens."""
    while run.coordinator.open is None or run.coordinator.open.key.phase != phase:
        done = [site.do(run) for site in sites.values()]
        assert any(task is not None for task in done)


def opened(run: TinyRun) -> list[tuple[int, str, list[str]]]:
    """Round, phase and participants of every phase so far."""
    found = [event.fields for event in run.events if event.name == "phase_opened"]
    return [(e["round"], e["phase"], e["participants"]) for e in found]  # type: ignore[misc]


def refined_of(run: TinyRun) -> NDArray[np.float32]:
    assert run.method.state.refined is not None
    return decode(run.store.blobs.read(run.method.state.refined.sha256))["V"]


def pooled_steps(sites: list[SecureSite], steps: int, strength: float = 10.0, mu: float = 10.0) -> Ascent:
    """The same steps on the sites' pooled samples."""
    z, residual = (np.concatenate([getattr(site, what) for site in sites]) for what in ("z", "residual"))
    labels, sums = residual.argmax(axis=1), accumulate(z, residual)
    V = solve(sums.A, sums.B, strength)
    at = Ascent(V, V)
    for _ in range(steps):
        missed = likelihood_residual(np.zeros(residual.shape), apply_moments(z, at.W), labels)
        at = ascend(at, sums.A.copy(), gradient(z, missed).astype(np.float64), mu)
    return at


def test_the_steps_come_between_moments_and_vote_of_every_correction(tmp_path: Path) -> None:
    run, sites = start(tmp_path, correction_at_start=True, refine_steps=2, rounds=2)
    work(run, sites)
    stage_two = ["moments", "refine_1", "refine_2", "votes"]
    assert [(number, phase) for number, phase, _ in opened(run)] == [
        *[(0, phase) for phase in stage_two], (1, "student"), (2, "student"), *[(2, phase) for phase in stage_two],
    ]  # fmt: skip
    assert run.coordinator.state is RunState.COMPLETED
    first, _, last = run.rounds()
    assert [record["phases"]["moments"]["features"] for record in (first, last)] == [4, 6]
    assert last["phases"]["refine_2"]["gradient_samples"] == 137
    assert 0 < last["phases"]["refine_2"]["change"] < last["phases"]["refine_1"]["change"]


def test_three_sites_take_the_steps_of_their_pooled_data(tmp_path: Path) -> None:
    run, sites = start(tmp_path, refine_steps=10)
    work(run, sites)
    np.testing.assert_allclose(refined_of(run), pooled_steps([*sites.values()], 10).N, rtol=1e-4, atol=1e-5)


def test_the_steps_start_from_the_ridge_whose_strength_is_nearest_to_the_penalty(tmp_path: Path) -> None:
    run, sites = start(tmp_path, refine_l2=2.0, lambda_grid=(1.0, 10.0), refine_steps=1)
    work(run, sites)
    expected = pooled_steps([*sites.values()], 1, strength=1.0, mu=2.0).N
    np.testing.assert_allclose(refined_of(run), expected, rtol=1e-4, atol=1e-5)


def test_a_step_brings_the_solution_and_a_vote_what_came_of_it(tmp_path: Path) -> None:
    run, sites = start(tmp_path)
    until(run, sites, STEP_1)
    task = sites["a"].poll().task
    assert [item.name for item in task.inputs] == ["student", "solution"]
    until(run, sites, VOTES)
    task = sites["a"].poll().task
    assert [item.name for item in task.inputs] == ["student", "moment_correction", "refined_moments"]
    assert run.method.candidates() == ["student", "moments.0", "moments.1", REFINED]


def test_before_the_first_round_no_task_brings_the_student(tmp_path: Path) -> None:
    run, sites = start(tmp_path, correction_at_start=True)
    found = {}
    while run.coordinator.round == 0:
        for site in sites.values():
            task = site.poll().task
            found[task.key.phase] = [item.name for item in task.inputs]
            site.do(run)
    refined = {step: ["solution"] for step in (STEP_1, STEP_2, STEP_3)}
    assert found == {MOMENTS: [], **refined, VOTES: ["moment_correction", "refined_moments"]}


# -- who is asked, and who is missing --


def test_only_those_whose_moments_are_pooled_are_asked_for_gradients(tmp_path: Path) -> None:
    run, sites = start(tmp_path)
    until(run, sites, MOMENTS)
    sites["c"].call("ReportFailure", key=sites["c"].key(1, MOMENTS), detail="no memory")
    until(run, sites, STEP_1)
    assert sites["c"].poll().wait.reason.startswith("round 1, refine_1: 0 of 2 in")
    with pytest.raises(StaleError) as error:
        upload = inline(encode(sites["c"].gradient(np.zeros((6, 2)))))
        sites["c"].call("SubmitGradient", key=sites["c"].key(1, STEP_1), upload=upload, num_samples=7)
    assert error.value.reason == "NOT_ASKED"
    work(run, sites)
    asked = {phase: names for _, phase, names in opened(run)}
    assert asked["refine_1"] == asked["refine_3"] == ["a", "b"]
    assert asked["votes"] == ["a", "b", "c"]
    pair = [sites["a"], sites["b"]]
    np.testing.assert_allclose(refined_of(run), pooled_steps(pair, 3).N, rtol=1e-4, atol=1e-5)


def test_gradients_of_the_others_stand_for_one_that_misses_a_step(tmp_path: Path) -> None:
    """b misses the second of two steps: the gradients of a and c count 137/47 times."""
    run, sites = start(tmp_path, refine_steps=2)
    until(run, sites, STEP_2)
    first = pooled_steps([*sites.values()], 1)
    sites["b"].call("ReportFailure", key=sites["b"].key(1, STEP_2), detail="no memory")
    work(run, sites)
    (record,) = run.rounds()
    assert record["phases"]["refine_2"]["missing"] == ["b"]
    assert record["phases"]["refine_2"]["gradient_samples"] == 47
    A = np.sum([accumulate(site.z, site.residual).A for site in sites.values()], axis=0)
    G = sum(sites[name].gradient(first.W)["G"].astype(np.float64) for name in "ac") * 137 / 47
    np.testing.assert_allclose(refined_of(run), ascend(first, A, G, 10.0).N, rtol=1e-4, atol=1e-5)


def test_one_that_misses_a_step_is_asked_for_the_next(tmp_path: Path) -> None:
    run, sites = start(tmp_path)
    until(run, sites, STEP_1)
    sites["b"].call("ReportFailure", key=sites["b"].key(1, STEP_1), detail="no memory")
    work(run, sites)
    (record,) = run.rounds()
    assert record["phases"]["refine_1"]["returned"] == ["a", "c"]
    assert record["phases"]["refine_2"]["returned"] == ["a", "b", "c"]


def test_a_step_below_its_quorum_is_skipped_and_asked_for_again_by_the_next(tmp_path: Path) -> None:
    """The last two of three steps are the two that count."""
    run, sites = start(tmp_path, quorum=1.0)
    until(run, sites, STEP_1)
    asked = run.method.task(STEP_1, "a").inputs["solution"]
    sites["b"].call("ReportFailure", key=sites["b"].key(1, STEP_1), detail="no memory")
    until(run, sites, STEP_2)
    assert run.method.task(STEP_2, "a").inputs["solution"] == asked
    work(run, sites)
    (record,) = run.rounds()
    assert record["phases"]["refine_1"]["skipped"] == "2 uploads, quorum 3"
    expected = pooled_steps([*sites.values()], 2).N
    np.testing.assert_allclose(refined_of(run), expected, rtol=1e-4, atol=1e-5)


def test_without_moments_there_are_no_steps_and_the_vote_goes_on(tmp_path: Path) -> None:
    run, sites = start(tmp_path, quorum=1.0)
    until(run, sites, MOMENTS)
    sites["c"].call("ReportFailure", key=sites["c"].key(1, MOMENTS), detail="no memory")
    work(run, sites)
    (record,) = run.rounds()
    assert record["phases"]["moments"]["skipped"] == "2 uploads, quorum 3"
    for step in ("refine_1", "refine_2", "refine_3"):
        assert record["phases"][step]["skipped"] == "0 uploads, quorum 1"
        assert record["phases"][step]["seconds"] == 0.0
    assert list(record["phases"]["votes"]["validation_accuracy"]) == ["student"]
    assert run.coordinator.state is RunState.COMPLETED


def test_a_step_of_fewer_than_the_least_cohort_is_skipped(tmp_path: Path) -> None:
    """A gradient would be one site's own, in a solution that all others are sent."""
    run, sites = start(tmp_path, quorum=0.1, min_cohort=2)
    until(run, sites, STEP_3)
    for name in "bc":
        sites[name].call("ReportFailure", key=sites[name].key(1, STEP_3), detail="no memory")
    work(run, sites)
    (record,) = run.rounds()
    assert "skipped" in record["phases"]["refine_3"]
    expected = pooled_steps([*sites.values()], 2).N
    np.testing.assert_allclose(refined_of(run), expected, rtol=1e-4, atol=1e-5)


# -- what stays --


def test_a_coordinator_that_dies_before_every_call_ends_with_the_same_solution(tmp_path: Path) -> None:
    changes = {**STEPS, "correction_at_start": True}
    quiet, sites = start(tmp_path / "quiet", **changes)
    work(quiet, sites)
    shaken, sites = start(tmp_path / "shaken", **changes)
    while not shaken.coordinator.over:
        for site in sites.values():
            shaken = tiny_run(tmp_path / "shaken", **changes)
            for other in sites.values():
                other.answer = shaken.answer
                other.poll()
            site.do(shaken)
    assert shaken.coordinator.state is RunState.COMPLETED
    assert shaken.method.state.refined == quiet.method.state.refined is not None
    assert shaken.method.snapshot() | {"retired": None} == quiet.method.snapshot() | {"retired": None}
    phases = [list(record["phases"]) for record, _ in quiet.store.rounds()]
    assert [list(record["phases"]) for record, _ in shaken.store.rounds()] == phases


def test_a_snapshot_in_the_middle_of_the_steps_holds_all_that_the_next_one_needs(tmp_path: Path) -> None:
    run, sites = start(tmp_path)
    until(run, sites, STEP_3)
    kept = run.method.snapshot()
    task, diagonal = run.method.task(STEP_3, "a"), run.method.gradient_bound()
    until(run, sites, VOTES)
    after = run.method.state
    run.method.restore(kept)
    assert run.method.chosen(STEP_3) == ("a", "b", "c")
    assert run.method.task(STEP_3, "a") == task
    assert run.method.state != after
    np.testing.assert_array_equal(run.method.gradient_bound(), diagonal)


def test_what_the_steps_needed_goes_with_the_vote(tmp_path: Path) -> None:
    """Every step keeps as much as the one before; after the vote student, solutions and blocks are left."""
    run, sites = start(tmp_path)
    kept = []
    for phase in (STEP_3, VOTES):
        until(run, sites, phase)
        kept.append(len(run.method.in_use()))
    assert kept[0] == kept[1]
    work(run, sites)
    state = run.method.state
    assert state.ascent is None
    assert state.moment_solutions is not None
    assert state.refined is not None
    blocks = {block.sha256 for block in state.embedding_blocks.values()}
    retired = {artifact.sha256 for artifact in state.retired}
    assert run.method.in_use() - blocks - retired == {
        state.student.sha256,
        state.moment_solutions.sha256,
        state.refined.sha256,
    }
    assert run.method.chosen(STEP_1) == ()
    assert run.method.gradient_bound() is None


def test_a_new_student_takes_the_refined_solution_with_it(tmp_path: Path) -> None:
    run, sites = start(tmp_path, rounds=2, residual_every=1)
    until(run, sites, VOTES)
    assert REFINED in run.method.candidates()
    while run.coordinator.round == 1:
        for site in sites.values():
            site.do(run)
    until(run, sites, MOMENTS)
    assert run.method.candidates() == ["student"]
    assert run.method.state.ascent is None


# -- what is published --


def voted_for_the_refined(run: TinyRun, sites: dict[str, SecureSite]) -> None:
    voted(run, sites, lambda place, name: 2 if name == REFINED else 1)


def voted(run: TinyRun, sites: dict[str, SecureSite], correct: Callable[[int, str], int]) -> None:
    """Every site, by its place, gets so many of two samples right with the candidate of that name."""
    until(run, sites, VOTES)
    for place, site in enumerate(sites.values()):
        votes = [pb.Vote(candidate=n, correct=correct(place, n)) for n in run.method.candidates()]
        site.call("SubmitVotes", key=site.key(run.coordinator.round, VOTES), votes=votes, num_validation=2)


def test_the_refined_solution_can_win_the_vote_and_is_published_with_its_penalty(tmp_path: Path) -> None:
    run, sites = start(tmp_path, refine_l2=7.0)
    voted_for_the_refined(run, sites)
    (record,) = run.rounds()
    assert record["phases"]["votes"]["published"] == REFINED
    assert record["phases"]["votes"]["validation_accuracy"][REFINED] == 1.0
    assert run.method.state.best_moments == REFINED
    model = decode_model(encode_model(run.method.model()))
    assert (model.header.published, model.header.moment_lambda) == ("moments", 7.0)
    assert model.moment_solution is not None
    np.testing.assert_array_equal(model.moment_solution, refined_of(run))


def test_before_the_first_round_the_published_solution_has_rows_of_zero_for_hidden_features(
    tmp_path: Path,
) -> None:
    run, sites = start(tmp_path, correction_at_start=True)
    voted_for_the_refined(run, sites)
    assert run.rounds()[0]["phases"]["votes"]["published"] == REFINED
    model = decode_model(encode_model(run.method.model()))
    assert model.moment_solution is not None
    assert refined_of(run).shape == (4, 2)
    np.testing.assert_array_equal(model.moment_solution[:2], np.zeros((2, 2)))
    np.testing.assert_array_equal(model.moment_solution[2:], refined_of(run))


def test_where_it_is_clearly_worse_the_ridge_is_published(tmp_path: Path) -> None:
    run, sites = start(tmp_path)
    voted(run, sites, lambda place, name: 2 if name == "moments.0" else 1)
    assert run.method.state.published == run.method.state.best_moments == "moments.0"
    assert run.method.model().header.moment_lambda == 1.0


def test_where_the_ridge_is_better_by_less_than_a_standard_error_it_is_published(tmp_path: Path) -> None:
    run, sites = start(tmp_path)
    voted(run, sites, lambda place, name: 1 if name == "moments.0" else int(place > 0))
    assert run.method.state.published == run.method.state.best_moments == REFINED


# -- what may count --


@pytest.mark.scenario(12)
def test_a_gradient_that_no_samples_have_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    """Scenario 12."""
    run, sites = start(tmp_path)
    until(run, sites, STEP_1)
    b, key = sites["b"], sites["b"].key(1, STEP_1)
    honest = b.gradient(b.input(b.poll().task, "solution")["V"])["G"]
    with pytest.raises(
        InvalidUploadError, match=r"no 90 samples have this: row \d of the gradient has"
    ) as error:
        b.call(
            "SubmitGradient", key=key, upload=inline(encode({"G": honest * np.float32(1e4)})), num_samples=90
        )
    assert error.value.reason == "IMPLAUSIBLE"
    work(run, sites)
    (record,) = run.rounds()
    assert record["phases"]["refine_1"]["returned"] == ["a", "c"]
    assert "no 90 samples" in record["phases"]["refine_1"]["failed"]["b"]


@pytest.mark.parametrize(
    "tensors, reason",
    [
        ({"G": np.zeros((4, 2), np.float32)}, "WRONG_SHAPE"),
        ({"G": np.zeros((6, 2))}, "WRONG_DTYPE"),
        ({"G": np.full((6, 2), np.nan, np.float32)}, "NOT_FINITE"),
        ({"B": np.zeros((6, 2), np.float32)}, "WRONG_NAMES"),
    ],
)
def test_a_gradient_of_another_form_is_refused(tmp_path: Path, tensors: Tensors, reason: str) -> None:
    run, sites = start(tmp_path)
    until(run, sites, STEP_1)
    with pytest.raises(InvalidUploadError) as error:
        upload = inline(encode(tensors))
        sites["a"].call("SubmitGradient", key=sites["a"].key(1, STEP_1), upload=upload, num_samples=40)
    assert error.value.reason == reason


@pytest.mark.parametrize("phase", [STUDENT, MOMENTS, VOTES])
def test_a_gradient_answers_nothing_but_a_step(tmp_path: Path, phase: int) -> None:
    run, sites = start(tmp_path)
    until(run, sites, phase)
    upload = inline(encode(sites["a"].gradient(np.zeros((6, 2)))))
    with pytest.raises(InvalidUploadError) as error:
        sites["a"].call("SubmitGradient", key=sites["a"].key(1, phase), upload=upload, num_samples=40)
    assert error.value.reason == "WRONG_PHASE"


def test_what_a_large_site_is_held_against_is_its_own_sums_not_its_capped_share_of_them(
    tmp_path: Path,
) -> None:
    """a has 95 of 100 samples and all there is of feature 0; 1/3 of the weight. Its honest gradient passes."""
    half = Half(tmp_path, max_weight_share=1 / 3, refine_steps=1, correction=("moments",))
    z = np.zeros((95, 6), np.float32)
    z[:, 0] = z[:, -1] = 1.0
    few = np.zeros((3, 6), np.float32)
    few[:, -1] = 1.0
    labels = {"a": np.zeros(95, int), "b": np.ones(3, int), "c": np.ones(2, int)}
    samples = {"a": z, "b": few, "c": few[:2]}
    uploads = {n: half.moments(samples[n], 8.0 * (np.eye(2)[labels[n]] - 0.5)) for n in "abc"}
    record: dict[str, Any] = half.method.close(MOMENTS, uploads)
    assert record["scaled"]["a"] == pytest.approx(100 / 3 / 95)
    wrong = np.zeros((6, 2))
    wrong[0] = -9.0, 9.0
    G = gradient(z, likelihood_residual(np.zeros((95, 2)), z @ wrong, labels["a"]))
    assert G[0, 0] > 94
    known = Background.of(half.method, 1, STEP_1, "a", 95)
    UploadRules.of(half.method).check_tensors(STEP_1, {"G": G}, known)
    with pytest.raises(InvalidUploadError, match="95 samples allow"):
        UploadRules.of(half.method).check_tensors(STEP_1, {"G": np.float32(1.1) * G}, known)
    blob = half.upload({"G": G}, n=95)
    assert half.method.close(STEP_1, {"a": blob})["gradient_samples"] == 95


def test_steps_that_were_all_skipped_leave_nothing_to_vote_on(tmp_path: Path) -> None:
    half = Half(tmp_path, refine_steps=2, correction=("moments",))
    half.method.close(MOMENTS, {"a": half.moments(np.eye(6, dtype=np.float32), np.zeros((6, 2)))})
    assert half.method.state.ascent is not None
    assert half.method.candidates() == ["student", "moments.0", "moments.1"]
    half.method.close(VOTES, {"a": VoteUpload(dict.fromkeys(half.method.candidates(), 1), 2)})
    assert half.method.state.ascent is None
    assert list(half.method.artifacts()) == ["student", "moment_correction"]
