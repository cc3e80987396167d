"""What an upload must satisfy before it may count; the message says what was expected and what came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_client.split import split_train_val
from fkd_common.artifacts import BlobStore
from fkd_common.errors import InvalidUploadError, TooLargeError
from fkd_common.method.moments import accumulate, moment_targets, pack_symmetric
from fkd_common.tensors import Tensors, encode
from fkd_server.method.federated_method import TensorUpload
from fkd_server.method.fkd_rtm import FkdRtm
from fkd_server.validation import Background, UploadRules

from .tiny import ANCHORS, CLASSES, MOMENTS, PERSONAL, RESIDUALS, STUDENT, VOTES, begun, filled, tiny_config


def rules(**changes: Any) -> UploadRules:
    """C = 2, m = 4, d = 3, p = 2 + 3 + 1."""
    return UploadRules(tiny_config(**changes), 2, 4, 3, 6)


def valid(phase: int, *, block_known: bool = False) -> Tensors:
    schema = rules().schema(phase, block_known=block_known)
    return {name: np.zeros(spec.shape, dtype=spec.dtype) for name, spec in schema.items()}


def refused(phase: int, tensors: Tensors, **changes: Any) -> InvalidUploadError:
    with pytest.raises(InvalidUploadError) as error:
        rules(**changes).check_tensors(phase, tensors, Background())
    return error.value


@pytest.mark.parametrize("phase", [STUDENT, RESIDUALS, MOMENTS])
def test_an_upload_of_the_right_form_passes(phase: int) -> None:
    rules().check_tensors(phase, valid(phase), Background())
    rules().check_size(phase, len(encode(valid(phase))))


def test_moments_have_the_packed_length_with_and_without_the_known_block() -> None:
    # p = 6: 21 values; the block [h; 1] of 4 has 10 of them.
    assert rules().schema(MOMENTS, block_known=False)["A"].shape == (21,)
    assert rules().schema(MOMENTS, block_known=True)["A"].shape == (11,)
    known = Background(embedding_block=np.zeros(10, dtype=np.float32))
    rules().check_tensors(MOMENTS, valid(MOMENTS, block_known=True), known)
    assert refused(MOMENTS, valid(MOMENTS, block_known=True)).reason == "WRONG_SHAPE"


@pytest.mark.scenario(10)
@pytest.mark.parametrize("phase", [STUDENT, RESIDUALS, MOMENTS])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.scenario(10)
def test_one_nan_or_infinity_anywhere_is_enough(phase: int, number: float) -> None:
    """Scenario 10."""
    for name, tensor in valid(phase).items():
        tensor.flat[-1] = number
        error = refused(phase, {**valid(phase), name: tensor})
        assert (error.reason, name in str(error)) == ("NOT_FINITE", True)


@pytest.mark.scenario(11)
@pytest.mark.parametrize(
    "phase, change, reason",
    [
        (STUDENT, {"output.weight": np.zeros((3, 2), np.float32)}, "WRONG_SHAPE"),
        (STUDENT, {"output.bias": np.zeros(2, np.float64)}, "WRONG_DTYPE"),
        (STUDENT, {"../output.bias": np.zeros(2, np.float32)}, "WRONG_NAMES"),
        (RESIDUALS, {"residuals": np.zeros((4, 3), np.float32)}, "WRONG_SHAPE"),
        (RESIDUALS, {"residuals": np.zeros((5, 2), np.float32)}, "WRONG_SHAPE"),
        (RESIDUALS, {"residuals": np.zeros((4, 2), np.float16)}, "WRONG_DTYPE"),
        (RESIDUALS, {"labels": np.zeros(4, np.float32)}, "WRONG_NAMES"),
        (MOMENTS, {"B": np.zeros((6, 3), np.float32)}, "WRONG_SHAPE"),
        (MOMENTS, {"A": np.zeros((6, 6), np.float32)}, "WRONG_SHAPE"),
    ],
)
@pytest.mark.scenario(11)
def test_another_number_of_classes_or_anchors_or_another_type_is_refused(
    phase: int, change: Tensors, reason: str
) -> None:
    """Scenario 11."""
    assert refused(phase, {**valid(phase), **change}).reason == reason


@pytest.mark.scenario(11)
@pytest.mark.scenario(11)
def test_a_missing_tensor_is_refused() -> None:
    """Scenario 11."""
    tensors = valid(STUDENT)
    del tensors["output.bias"]
    assert "missing ['output.bias']" in str(refused(STUDENT, tensors))


@pytest.mark.scenario(12)
@pytest.mark.scenario(12)
def test_a_residual_that_clipping_cannot_produce_is_refused() -> None:
    """Scenario 12. Clipped to 10 and divided by 2, a residual is at most 5; half as much again is allowed."""
    tensors = {"residuals": np.full((4, 2), 7.5, dtype=np.float32)}
    rules().check_tensors(RESIDUALS, tensors, Background())
    tensors["residuals"][0, 0] = -7.6
    assert refused(RESIDUALS, tensors).reason == "OUT_OF_RANGE"


@pytest.mark.scenario(7)
@pytest.mark.parametrize("phase", [VOTES, PERSONAL, 1, 2, 0, 99])
@pytest.mark.scenario(7)
def test_a_phase_without_tensors_takes_none(phase: int) -> None:
    """Scenario 7."""
    with pytest.raises(InvalidUploadError) as error:
        rules().check_size(phase, 10)
    assert error.value.reason == "WRONG_PHASE"


@pytest.mark.scenario(22)
@pytest.mark.parametrize("size", [0, 10_000, 8 << 30])
def test_a_size_no_upload_of_the_phase_can_have_is_refused(size: int) -> None:
    """Scenario 22."""
    with pytest.raises(TooLargeError, match="this phase takes at most"):
        rules().check_size(RESIDUALS, size)


@pytest.mark.scenario(13)
@pytest.mark.parametrize("n", [-1, 10_000_001, 10**12, 2**64 - 1])
@pytest.mark.scenario(13)
def test_an_impossible_number_of_samples_is_refused(n: int) -> None:
    """Scenario 13: a negative number arrives as a huge one."""
    with pytest.raises(InvalidUploadError, match="n_k = "):
        rules().check_counts(n, 1.0, (), STUDENT)


@pytest.mark.scenario(10, 14)
@pytest.mark.parametrize("r", [-0.001, 1.001, float("nan"), float("inf"), -float("inf")])
@pytest.mark.scenario(10, 14)
def test_a_reliability_outside_0_to_1_is_refused(r: float) -> None:
    """Scenarios 10, 14."""
    with pytest.raises(InvalidUploadError, match="r_k = "):
        rules().check_counts(10, r, (), STUDENT)


@pytest.mark.parametrize("r", [0.0, 1.0])
def test_the_ends_of_the_range_are_in_it(r: float) -> None:
    rules().check_counts(1, r, (), STUDENT)
    rules().check_counts(10_000_000, r, (), STUDENT)


@pytest.mark.scenario(13)
def test_no_samples_at_all_is_a_possible_answer() -> None:
    """Scenario 13: it is excluded when the phase closes, with the reason in the record."""
    rules().check_counts(0, 1.0, (), STUDENT)


@pytest.mark.scenario(13)
def test_the_largest_number_of_samples_is_configured() -> None:
    """Scenario 13."""
    rules(max_samples=100).check_counts(100, 1.0, (), STUDENT)
    with pytest.raises(InvalidUploadError, match=r"n_k = 101; expected 0 to 100 \(max_samples\)"):
        rules(max_samples=100).check_counts(101, 1.0, (), STUDENT)


def test_class_counts_are_refused_unless_asked_for() -> None:
    for phase in (STUDENT, RESIDUALS, MOMENTS):
        with pytest.raises(InvalidUploadError, match="2 class counts; expected none"):
            rules().check_counts(10, 1.0, (4, 6), phase)


@pytest.mark.parametrize(
    "counts, message", [((), "0 class"), ((4, 5), "add up to 9"), ((4, 6, 0), "3 class")]
)
def test_class_counts_must_be_one_per_class_and_add_up(counts: tuple[int, ...], message: str) -> None:
    by_class = rules(fusion="class_aware")
    by_class.check_counts(10, 1.0, (4, 6), RESIDUALS)
    with pytest.raises(InvalidUploadError, match=message):
        by_class.check_counts(10, 1.0, counts, RESIDUALS)


@pytest.mark.scenario(11)
def test_votes_cover_exactly_the_candidates() -> None:
    rules().check_votes({"anchors": 3, "student": 10}, 10, ["student", "anchors"], 90)
    for correct in ({}, {"student": 1}, {"student": 1, "anchors": 1, "mine": 1}):
        with pytest.raises(InvalidUploadError, match="expected \\['student', 'anchors'\\]"):
            rules().check_votes(correct, 10, ["student", "anchors"], 90)


def test_more_correct_answers_than_questions_are_refused() -> None:
    with pytest.raises(InvalidUploadError, match="11 correct of 10"):
        rules().check_votes({"student": 11}, 10, ["student"], 90)


@pytest.mark.scenario(13)
def test_a_vote_of_more_samples_than_the_split_can_hold_out_is_refused() -> None:
    """Scenario 13: 0.1 of each of two classes, rounded, at least one: 90/9 + 2. No vote may outweigh all others."""
    rules().check_votes({"student": 1}, 12, ["student"], 90)
    with pytest.raises(
        InvalidUploadError, match=r"13 validation samples; n_k = 90 and val_fraction = 0\.1 allow 12"
    ):
        rules().check_votes({"student": 1}, 13, ["student"], 90)
    rules().check_votes({"student": 1}, 13, ["student"], None)
    with pytest.raises(InvalidUploadError, match="n_k = 10000000"):
        rules().check_votes({"student": 1}, 10_000_000, ["student"], None)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.45])
def test_every_split_passes(fraction: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        labels = rng.integers(0, 2, rng.integers(1, 60))
        train, val = split_train_val(labels, fraction, 0)
        rules(val_fraction=fraction).check_votes({"student": 0}, len(val), ["student"], len(train))


@pytest.mark.scenario(12)
@pytest.mark.parametrize(
    "name, value",
    [
        ("layers.0.norm.running_var", -5.0),
        ("layers.0.norm.num_batches_tracked", -1),
        ("layers.0.norm.num_batches_tracked", 2**62),
        ("output.weight", 1e30),
    ],
)
@pytest.mark.scenario(12)
def test_values_no_training_produces_are_refused(name: str, value: float) -> None:
    """Scenario 12: a negative variance would turn every honest client's outputs into NaN."""
    schema = rules(norm="batch").schema(STUDENT, block_known=False)
    student: Tensors = {key: np.ones(spec.shape, dtype=spec.dtype) for key, spec in schema.items()}
    rules(norm="batch").check_tensors(STUDENT, student, Background())
    student[name] = np.full_like(student[name], value)
    assert name in str(refused(STUDENT, student, norm="batch"))


@pytest.mark.scenario(12)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_a_student_answers_for_the_anchors(tmp_path: Path, norm: str) -> None:
    """Scenario 12: each weight is in range, what it computes is not, and would end every honest client."""
    blobs, uploads = BlobStore(tmp_path / "blobs"), BlobStore(tmp_path / "uploads")
    method = FkdRtm(tiny_config(norm=norm), CLASSES, ANCHORS, "ab" * 32, blobs, uploads)
    known = Background.of(method, 1, STUDENT, "a", 10)
    UploadRules.of(method).check_tensors(STUDENT, filled(method, 1.0), known)
    liar = filled(method, 1.0)
    liar["layers.0.linear.weight"][:] = liar["output.weight"][:] = 9e3
    liar["layers.0.norm.weight"][:] = liar["layers.0.norm.bias"][:] = 9e3
    with pytest.raises(InvalidUploadError, match="on the anchors in eval mode, values after"):
        UploadRules.of(method).check_tensors(STUDENT, liar, known)


@pytest.mark.scenario(12)
def test_a_step_counter_may_grow_by_a_rounds_steps_each_round() -> None:
    """Scenario 12: the aggregate takes the maximum, so one liar's counter would become everybody's and overflow."""
    by_batch = rules(norm="batch", local_steps=7)
    schema = by_batch.schema(STUDENT, block_known=False)
    student: Tensors = {key: np.ones(spec.shape, dtype=spec.dtype) for key, spec in schema.items()}
    student["layers.0.norm.num_batches_tracked"] = np.array(14)
    by_batch.check_tensors(STUDENT, student, Background(round=2))
    with pytest.raises(InvalidUploadError, match="counts 14 batches; round 1 allows 0 to 7"):
        by_batch.check_tensors(STUDENT, student, Background(round=1))


def test_a_residual_matrix_longer_than_its_clip_is_refused_unless_there_is_noise() -> None:
    """Norm √(8·1²) = 2.83."""
    tensors = {"residuals": np.ones((4, 2), dtype=np.float32)}
    assert "residual_l2_clip allows at most 2" in str(refused(RESIDUALS, tensors, residual_l2_clip=2.0))
    rules(residual_l2_clip=3.0).check_tensors(RESIDUALS, tensors, Background())
    noise = {"noise_multiplier": 1.0, "residual_l2_clip": 2.0, "correction": "anchors"}
    rules(**noise).check_tensors(RESIDUALS, tensors, Background())
    far = {"residuals": np.full((4, 2), 7.5 + 10 * 4.0 + 1, dtype=np.float32)}
    assert refused(RESIDUALS, far, **noise).reason == "OUT_OF_RANGE"


def sums(z: np.ndarray, labels: np.ndarray, *, block_known: bool = False) -> Tensors:
    """Moments of samples whose student says nothing: S = 0."""
    found = accumulate(z, moment_targets(labels, None, 2, 8.0, 0.0))
    A = pack_symmetric(found.A, 4 if block_known else 0).astype(np.float32)
    return {"A": A, "B": found.B.astype(np.float32)}


def samples(n: int = 9) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(size=(n, 5)), np.ones((n, 1))], axis=1).astype(np.float32)
    return z, rng.integers(0, 2, n)


@pytest.mark.scenario(12)
def test_moments_are_held_against_the_block_and_the_student_that_are_known(tmp_path: Path) -> None:
    """Scenario 12: what came in the first round's moments and what comes now must be of the same samples."""
    blobs, uploads = BlobStore(tmp_path / "blobs"), BlobStore(tmp_path / "uploads")
    method = begun(FkdRtm(tiny_config(), CLASSES, ANCHORS, "ab" * 32, blobs, uploads))
    of_run, (z, labels) = UploadRules.of(method), samples()
    first = sums(z, labels)
    of_run.check_tensors(MOMENTS, first, Background.of(method, 1, MOMENTS, "a", 9))
    method.close(MOMENTS, {"a": TensorUpload(uploads.put(encode(first)), 9)})
    known = Background.of(method, 2, MOMENTS, "a", 9)
    assert known.embedding_block is not None
    of_run.check_tensors(MOMENTS, sums(z, labels, block_known=True), known)
    honest = sums(z, labels, block_known=True)
    for lie in (sums(z * 5, labels, block_known=True), {**honest, "B": honest["B"] * np.float32(100)}):
        with pytest.raises(InvalidUploadError, match="moments no 9 samples have: ") as error:
            of_run.check_tensors(MOMENTS, lie, known)
        assert error.value.reason == "IMPLAUSIBLE"
    with pytest.raises(InvalidUploadError, match="expected n_k = 10"):
        of_run.check_tensors(MOMENTS, first, Background.of(method, 1, MOMENTS, "b", 10))
