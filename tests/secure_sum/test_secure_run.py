"""Whole runs through the protocol's bytes: what the plain method computes, secure sums compute too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_client.secure_sum import student_summand
from fkd_common.errors import FkdError, InvalidUploadError, NotFoundError, TooLargeError
from fkd_common.pb import types_pb2 as types
from fkd_common.secure_sum.fixed_point import QUANTUM
from fkd_common.tensors import Tensors, decode, encode
from fkd_server.run_state import RunState

from ..server.tiny import MOMENTS, STUDENT, TinyRun, filled, inline, tiny_run
from .secure_sites import SecureSite, work

KEYS, SHARES, UNMASK = types.PHASE_STUDENT_KEYS, types.PHASE_STUDENT_SHARES, types.PHASE_STUDENT_UNMASK
SIZES = {"a": (100, 0.9), "b": (300, 0.05), "c": (7, 1.0)}
MOST: dict[str, Any] = {
    "correction": ("moments",), "norm": "batch", "min_clients": 3, "min_cohort": 2, "on_missed_quorum": "abort",
}  # fmt: skip


def start(folder: Path, **changes: Any) -> tuple[TinyRun, dict[str, SecureSite]]:
    """Three sites with students of different values, all ready."""
    run = tiny_run(folder, **{**MOST, **changes})
    sites = {}
    for i, (name, (n, r)) in enumerate(SIZES.items()):
        student = filled(run.method, 1.0 / (i + 3))
        for tensor in student.values():
            if tensor.dtype == np.int64:
                tensor += 40 * (i + 1)
        student["output.weight"][:] = student["output.bias"][:] = 0.0
        sites[name] = SecureSite(name, run.answer, student, n, r)
    for site in sites.values():
        site.poll()
    return run, sites


def student_of(run: TinyRun) -> Tensors:
    return decode(run.store.blobs.read(run.method.state.student.sha256))


def solutions_of(run: TinyRun) -> Tensors:
    artifact = run.method.state.moment_solutions
    assert artifact is not None
    return decode(run.store.blobs.read(artifact.sha256))


@pytest.fixture
def plain(tmp_path: Path) -> TinyRun:
    run, sites = start(tmp_path / "plain")
    work(run, sites)
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    return run


def test_a_secure_run_computes_what_the_plain_run_computes(plain: TinyRun, tmp_path: Path) -> None:
    """Eqs. 14-15 with weights 90 : 30 : 7; bounds are the quantisation steps of three summands, and float32."""
    run, sites = start(tmp_path / "secure", secure_aggregation=True)
    work(run, sites)
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    weight = 90.0 + 30.0 + 7.0
    expected = student_of(plain)
    for name, tensor in student_of(run).items():
        assert tensor.dtype == expected[name].dtype
        if name.endswith("num_batches_tracked"):
            assert int(tensor) == 0  # as it was: counters are not summed; plain: the largest
        else:
            np.testing.assert_allclose(tensor, expected[name], rtol=2e-7, atol=3 * QUANTUM / weight)
    for name, solution in solutions_of(plain).items():
        np.testing.assert_allclose(solutions_of(run)[name], solution, rtol=1e-5, atol=1e-7)
    (record,) = run.rounds()
    assert record["phases"]["student_unmask"]["total_weight"] == pytest.approx(weight)
    assert record["phases"]["student_unmask"]["summed"] == ["a", "b", "c"]
    assert record["phases"]["moments_unmask"]["pooled_samples"] == 407
    assert not {"weights", "samples", "reliability"} & {key for p in record["phases"].values() for key in p}


def test_secrets_leave_no_trace_in_the_result(tmp_path: Path) -> None:
    """Invariant I2: sums in fixed point are exact, so other keys, masks and arrivals give the same bits."""
    found = set()
    for order in ("abc", "cab"):
        run, sites = start(tmp_path / order, secure_aggregation=True)
        work(run, {name: sites[name] for name in order})
        state = run.method.state
        assert state.moment_solutions is not None
        found.add((state.student.sha256, state.moment_solutions.sha256))
    assert len(found) == 1


@pytest.mark.parametrize(
    "phase, taking_part",
    [(KEYS, "bc"), (SHARES, "bc"), (STUDENT, "bc"), (UNMASK, "abc")],
)
@pytest.mark.scenario(43)
def test_a_client_that_drops_out_at_any_step_costs_its_summand_at_most(
    tmp_path: Path, phase: int, taking_part: str
) -> None:
    """Scenario 43."""
    run, sites = start(tmp_path / "secure", secure_aggregation=True, correction=())
    work(run, sites, {phase: "a"})
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    weights = {name: n * max(r, 0.1) for name, (n, r) in SIZES.items() if name in taking_part}
    mean = sum(w * sites[name].student["layers.0.linear.bias"] for name, w in weights.items())
    np.testing.assert_allclose(
        student_of(run)["layers.0.linear.bias"], mean / sum(weights.values()), rtol=1e-6
    )
    (record,) = run.rounds()
    assert record["phases"]["student_unmask"]["summed"] == list(taking_part)


@pytest.mark.parametrize("phase", [SHARES, STUDENT, UNMASK])
def test_below_the_threshold_the_student_has_no_aggregate(tmp_path: Path, phase: int) -> None:
    run, sites = start(tmp_path, secure_aggregation=True, quorum=0.1, secure_threshold=1.0)
    work(run, sites, {phase: "a"})
    assert run.coordinator.state is RunState.ABORTED
    assert "2 uploads, quorum 3; a failed" in run.coordinator.detail
    assert not run.method.state.trained


def test_who_trains_under_masks_is_sent_the_student_from_the_first_round_on(tmp_path: Path) -> None:
    run, sites = start(tmp_path, secure_aggregation=True)
    for _ in range(2):
        for site in sites.values():
            site.do(run)
    task = sites["a"].poll().task
    assert (task.key.round, task.key.phase) == (1, STUDENT)
    assert [item.name for item in task.inputs] == ["student", "inbox"]


def test_before_the_first_round_moments_of_the_embedding_are_summed_and_no_student_is_sent(
    tmp_path: Path,
) -> None:
    run, sites = start(tmp_path, secure_aggregation=True, correction_at_start=True)
    for site in sites.values():
        site.z = site.z[:, -4:]
    for _ in range(2):
        for site in sites.values():
            site.do(run)
    task = sites["a"].poll().task
    assert (task.key.round, task.key.phase) == (0, MOMENTS)
    assert [item.name for item in task.inputs] == ["inbox"]
    for site in [*sites.values()] * 2:
        site.do(run)
    Z, R = (np.concatenate([getattr(site, what) for site in sites.values()]) for what in ("z", "residual"))
    pooled = np.linalg.solve(Z.T.astype(np.float64) @ Z + np.eye(4), Z.T @ R)
    np.testing.assert_allclose(solutions_of(run)["V.0"], pooled, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("step", ["KEYS", "SHARES", "MASKED", "UNMASK"])
def test_moments_below_the_threshold_are_skipped_and_the_student_published(tmp_path: Path, step: str) -> None:
    phase = {"MASKED": MOMENTS}.get(step) or types.Phase.Value(f"PHASE_MOMENTS_{step}")
    run, sites = start(tmp_path, secure_aggregation=True, secure_threshold=1.0, quorum=1.0)
    work(run, sites, {phase: "a"})
    # The vote lacks a too, and is skipped at its deadline; the run still ends with its student.
    run.clock.now = 61.0
    run.service.tick()
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    (record,) = run.rounds()
    assert "skipped" in record["phases"]["moments_unmask"]
    assert run.method.model().header.published == "student"
    assert run.method.candidates() == ["student"]


def test_a_client_that_is_started_again_says_that_it_cannot_go_on(tmp_path: Path) -> None:
    run, sites = start(tmp_path, secure_aggregation=True, correction=())
    for _ in (KEYS, SHARES):
        for site in sites.values():
            site.do(run)
    again = SecureSite("a", run.answer, sites["a"].student, 100, 0.9)
    task = again.poll().task
    assert task.key.phase == STUDENT
    with pytest.raises(FkdError, match="holds no secrets for the student sum of round 1"):
        again.answer_to(task)


@pytest.mark.scenario(1)
def test_a_restarted_coordinator_goes_on_with_the_sum(tmp_path: Path, plain: TinyRun) -> None:
    """Scenario 1: after every step the coordinator dies and is started again."""
    folder = tmp_path / "secure"
    run, sites = start(folder, secure_aggregation=True)
    phase = 0
    while not run.coordinator.over:
        for site in sites.values():
            site.answer = run.answer
            done = site.do(run)
            if done is not None and done != phase:
                phase = done
                run.store.close()
                run = tiny_run(folder, **MOST, secure_aggregation=True)
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    np.testing.assert_allclose(
        student_of(run)["layers.0.linear.weight"], student_of(plain)["layers.0.linear.weight"], rtol=1e-6
    )


@pytest.mark.scenario(1)
def test_who_contributed_to_a_secure_sum_is_known_after_a_restart(tmp_path: Path) -> None:
    """Scenario 1: what was contributed tells no n_k; the client must not be forgotten to make room for others."""
    run, sites = start(tmp_path, secure_aggregation=True)
    sites["a"].do(run)
    run.store.close()
    again = tiny_run(tmp_path, **MOST, secure_aggregation=True)
    contributed = {name: record.contributed for name, record in again.coordinator.attendance.clients.items()}
    assert contributed == {"a": True, "b": False, "c": False}


def test_nothing_of_a_sum_is_kept_when_it_is_done(tmp_path: Path) -> None:
    run, sites = start(tmp_path, secure_aggregation=True)
    work(run, sites)
    assert run.method.state.secure is None
    run.service.tick()
    kept = {path.stem for path in run.blobs.iterdir()}
    assert kept - run.method.in_use() <= {next(iter(kept - run.method.in_use()))}  # the extractor
    assert list(run.uploads.iterdir()) == []


# -- what is refused --


@pytest.fixture
def at_keys(tmp_path: Path) -> tuple[TinyRun, dict[str, SecureSite]]:
    return start(tmp_path, secure_aggregation=True)


def reason_of(error: pytest.ExceptionInfo[FkdError]) -> str:
    return error.value.reason


@pytest.mark.scenario(11)
def test_keys_must_be_keys(at_keys: tuple[TinyRun, dict[str, SecureSite]]) -> None:
    """Scenario 11."""
    _, sites = at_keys
    a = sites["a"]
    keys = a.answer_to(a.poll().task)
    wrong: dict[str, Tensors] = {
        "WRONG_NAMES": {"mask_key": keys["mask_key"]},
        "WRONG_SHAPE": {**keys, "mask_key": keys["mask_key"][:31]},
        "WRONG_DTYPE": {**keys, "mask_key": keys["mask_key"].astype(np.int8)},
    }
    for reason, tensors in wrong.items():
        with pytest.raises(InvalidUploadError) as refused:
            a.call("SubmitSecure", key=a.key(1, KEYS), upload=inline(encode(tensors)))
        assert reason_of(refused) == reason


@pytest.mark.scenario(22)
def test_a_blob_too_large_for_its_step_is_refused_before_it_is_held(
    at_keys: tuple[TinyRun, dict[str, SecureSite]],
) -> None:
    """Scenario 22."""
    _, sites = at_keys
    with pytest.raises(TooLargeError):
        sites["a"].send(bytes(4096), sites["a"].key(1, KEYS))


@pytest.mark.scenario(11)
def test_shares_go_to_the_others_of_the_roster_and_nobody_else(
    at_keys: tuple[TinyRun, dict[str, SecureSite]],
) -> None:
    """Scenario 11."""
    run, sites = at_keys
    for site in sites.values():
        site.do(run)
    a = sites["a"]
    shares = a.answer_to(a.poll().task)
    assert sorted(shares) == ["b", "c"]
    for tensors in ({"b": shares["b"]}, {**shares, "d": shares["b"]}, {**shares, "a": shares["b"]}):
        with pytest.raises(InvalidUploadError) as refused:
            a.call("SubmitSecure", key=a.key(1, SHARES), upload=inline(encode(tensors)))
        assert reason_of(refused) == "WRONG_NAMES"


def test_a_plain_student_does_not_answer_a_secure_phase_nor_the_other_way_round(
    at_keys: tuple[TinyRun, dict[str, SecureSite]], tmp_path: Path
) -> None:
    """A client must not be talked into, or fall back to, sending its student in clear."""
    run, sites = at_keys
    for _ in (KEYS, SHARES):
        for site in sites.values():
            site.do(run)
    with pytest.raises(InvalidUploadError) as refused:
        sites["a"].submit_student(1, sites["a"].student)
    assert reason_of(refused) == "WRONG_PHASE"
    _, others = start(tmp_path / "plain")
    with pytest.raises(InvalidUploadError) as refused:
        others["a"].call("SubmitSecure", key=others["a"].key(1, STUDENT), upload=inline(encode({})))
    assert reason_of(refused) == "WRONG_PHASE"


def test_an_inbox_is_served_to_its_owner_only(at_keys: tuple[TinyRun, dict[str, SecureSite]]) -> None:
    run, sites = at_keys
    for _ in (KEYS, SHARES):
        for site in sites.values():
            site.do(run)
    (inbox,) = (item for item in sites["a"].poll().task.inputs if item.name == "inbox")
    key = sites["a"].key(1, STUDENT)
    assert sorted(decode(sites["a"].fetch(inbox, key))) == ["b", "c"]
    with pytest.raises(NotFoundError):
        sites["b"].fetch(inbox, key)


@pytest.mark.scenario(12)
def test_a_sum_that_is_no_student_has_no_aggregate(at_keys: tuple[TinyRun, dict[str, SecureSite]]) -> None:
    """Scenario 12: what cannot be checked one by one is checked in the sum."""
    run, sites = at_keys
    for name in sites["a"].student:
        sites["a"].student[name] = sites["a"].student[name] * 0
    sites["a"].student["layers.0.norm.running_var"] -= 1e5
    work(run, sites)
    assert run.coordinator.state is RunState.ABORTED
    assert "'layers.0.norm.running_var' has a negative variance" in run.coordinator.detail


@pytest.mark.scenario(12)
def test_a_sum_whose_average_nobody_could_compute_with_has_no_aggregate(
    at_keys: tuple[TinyRun, dict[str, SecureSite]],
) -> None:
    """Scenario 12."""
    run, sites = at_keys
    for name in ("layers.0.linear.weight", "layers.0.norm.weight", "output.weight"):
        sites["a"].student[name] = np.full_like(sites["a"].student[name], 900.0)
    work(run, sites)
    assert run.coordinator.state is RunState.ABORTED
    assert "somebody sent no student: of the average on the anchors" in run.coordinator.detail


@pytest.mark.scenario(12)
def test_step_counters_never_leave_the_range_of_a_secure_sum(
    at_keys: tuple[TinyRun, dict[str, SecureSite]],
) -> None:
    """Scenario 12: times n_k, an honest counter would do so after some rounds, a liar's at once."""
    run, sites = at_keys
    sites["a"].student["layers.0.norm.num_batches_tracked"] = np.array(2**62)
    work(run, sites)
    assert run.coordinator.state is RunState.COMPLETED, run.coordinator.detail
    assert "layers.0.norm.num_batches_tracked" not in student_summand(sites["a"].student, 1.0)


@pytest.mark.scenario(14)
def test_weights_that_are_all_zero_have_no_average(at_keys: tuple[TinyRun, dict[str, SecureSite]]) -> None:
    """Scenario 14: every client dropped itself."""
    run, sites = at_keys
    for site in sites.values():
        site.n = 0
    work(run, sites)
    assert run.coordinator.state is RunState.ABORTED
    assert "weights add up to 0" in run.coordinator.detail
