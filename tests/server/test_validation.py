"""What an upload must satisfy before it may count; the message says what was expected and what came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fkd_common.errors import InvalidUploadError, TooLargeError
from fkd_common.tensors import Tensors, encode
from fkd_server.validation import MAX_SAMPLES, UploadRules

from .tiny import MOMENTS, PERSONAL, RESIDUALS, STUDENT, VOTES, tiny_config


def rules(**changes: Any) -> UploadRules:
    """C = 2, m = 4, d = 3, p = 2 + 3 + 1."""
    return UploadRules(tiny_config(**changes), 2, 4, 3, 6)


def valid(phase: int, *, block_known: bool = False) -> Tensors:
    schema = rules().schema(phase, block_known=block_known)
    return {name: np.zeros(spec.shape, dtype=spec.dtype) for name, spec in schema.items()}


def refused(phase: int, tensors: Tensors, **changes: Any) -> InvalidUploadError:
    with pytest.raises(InvalidUploadError) as error:
        rules(**changes).check_tensors(phase, tensors, block_known=False)
    return error.value


@pytest.mark.parametrize("phase", [STUDENT, RESIDUALS, MOMENTS])
def test_an_upload_of_the_right_form_passes(phase: int) -> None:
    rules().check_tensors(phase, valid(phase), block_known=False)
    rules().check_size(phase, len(encode(valid(phase))))


def test_moments_have_the_packed_length_with_and_without_the_known_block() -> None:
    # p = 6: 21 values; the block [h; 1] of 4 has 10 of them.
    assert rules().schema(MOMENTS, block_known=False)["A"].shape == (21,)
    assert rules().schema(MOMENTS, block_known=True)["A"].shape == (11,)
    rules().check_tensors(MOMENTS, valid(MOMENTS, block_known=True), block_known=True)
    assert refused(MOMENTS, valid(MOMENTS, block_known=True)).reason == "WRONG_SHAPE"


@pytest.mark.parametrize("phase", [STUDENT, RESIDUALS, MOMENTS])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_one_nan_or_infinity_anywhere_is_enough(phase: int, number: float) -> None:
    """Scenario 10."""
    for name, tensor in valid(phase).items():
        tensor.flat[-1] = number
        error = refused(phase, {**valid(phase), name: tensor})
        assert (error.reason, name in str(error)) == ("NOT_FINITE", True)


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
def test_another_number_of_classes_or_anchors_or_another_type_is_refused(
    phase: int, change: Tensors, reason: str
) -> None:
    """Scenario 11."""
    assert refused(phase, {**valid(phase), **change}).reason == reason


def test_a_missing_tensor_is_refused() -> None:
    """Scenario 11."""
    tensors = valid(STUDENT)
    del tensors["output.bias"]
    assert "missing ['output.bias']" in str(refused(STUDENT, tensors))


def test_a_residual_that_clipping_cannot_produce_is_refused() -> None:
    """Scenario 12. Clipped to 10 and divided by 2, a residual is at most 5; half as much again is allowed."""
    tensors = {"residuals": np.full((4, 2), 7.5, dtype=np.float32)}
    rules().check_tensors(RESIDUALS, tensors, block_known=False)
    tensors["residuals"][0, 0] = -7.6
    assert refused(RESIDUALS, tensors).reason == "OUT_OF_RANGE"


@pytest.mark.parametrize("phase", [VOTES, PERSONAL, 1, 2, 0, 99])
def test_a_phase_without_tensors_takes_none(phase: int) -> None:
    """Scenario 7."""
    with pytest.raises(InvalidUploadError) as error:
        rules().check_size(phase, 10)
    assert error.value.reason == "WRONG_PHASE"


@pytest.mark.parametrize("size", [0, 10_000, 8 << 30])
def test_a_size_no_upload_of_the_phase_can_have_is_refused(size: int) -> None:
    """Scenario 22."""
    with pytest.raises(TooLargeError, match="this phase takes at most"):
        rules().check_size(RESIDUALS, size)


@pytest.mark.parametrize("n", [0, -1, MAX_SAMPLES + 1, 10**12, 2**64 - 1])
def test_an_impossible_number_of_samples_is_refused(n: int) -> None:
    """Scenario 13. A negative number arrives as a huge one."""
    with pytest.raises(InvalidUploadError, match="n_k = "):
        rules().check_counts(n, 1.0, (), STUDENT)


@pytest.mark.parametrize("r", [-0.001, 1.001, float("nan"), float("inf"), -float("inf")])
def test_a_reliability_outside_0_to_1_is_refused(r: float) -> None:
    """Scenarios 10, 14."""
    with pytest.raises(InvalidUploadError, match="r_k = "):
        rules().check_counts(10, r, (), STUDENT)


@pytest.mark.parametrize("r", [0.0, 1.0])
def test_the_ends_of_the_range_are_in_it(r: float) -> None:
    rules().check_counts(1, r, (), STUDENT)
    rules().check_counts(MAX_SAMPLES, r, (), STUDENT)


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


def test_votes_cover_exactly_the_candidates() -> None:
    rules().check_votes({"anchors": 3, "student": 10}, 10, ["student", "anchors"])
    for correct in ({}, {"student": 1}, {"student": 1, "anchors": 1, "mine": 1}):
        with pytest.raises(InvalidUploadError, match="expected \\['student', 'anchors'\\]"):
            rules().check_votes(correct, 10, ["student", "anchors"])


def test_more_correct_answers_than_questions_are_refused() -> None:
    with pytest.raises(InvalidUploadError, match="11 correct of 10"):
        rules().check_votes({"student": 11}, 10, ["student"])
    with pytest.raises(InvalidUploadError):
        rules().check_votes({"student": 1}, MAX_SAMPLES + 1, ["student"])


@pytest.mark.parametrize(
    "name, value",
    [("layers.0.norm.running_var", -5.0), ("layers.0.norm.num_batches_tracked", -1), ("output.weight", 1e30)],
)
def test_values_no_training_produces_are_refused(name: str, value: float) -> None:
    """Scenario 12: a negative variance would turn every honest client's outputs into NaN."""
    schema = rules(norm="batch").schema(STUDENT, block_known=False)
    student: Tensors = {key: np.ones(spec.shape, dtype=spec.dtype) for key, spec in schema.items()}
    rules(norm="batch").check_tensors(STUDENT, student, block_known=False)
    student[name] = np.full_like(student[name], value)
    assert name in str(refused(STUDENT, student, norm="batch"))
