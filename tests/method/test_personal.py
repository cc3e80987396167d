"""Personal models in closed form."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fkd_common.method.moments import accumulate, solve
from fkd_common.method.personal import blend, clearly_best, closed_form, log_prior


def test_personal_correction_by_hand() -> None:
    # (1 + 3)·v = 5 + 3·1: v = 2.
    v = closed_form(np.array([[1.0]]), np.array([[5.0]]), np.array([[1.0]]), 3.0)
    np.testing.assert_allclose(v, [[2.0]], rtol=1e-15)


def test_a_client_without_data_keeps_the_global_correction() -> None:
    V = np.random.default_rng(0).normal(size=(4, 2))
    np.testing.assert_allclose(closed_form(np.zeros((4, 4)), np.zeros((4, 2)), V, 10.0), V, rtol=1e-14)


def test_strength_moves_between_the_local_fit_and_the_global_correction() -> None:
    rng = np.random.default_rng(1)
    moments = accumulate(rng.normal(size=(50, 4)), rng.normal(size=(50, 2)))
    V = rng.normal(size=(4, 2))
    np.testing.assert_allclose(closed_form(moments.A, moments.B, V, 1e12), V, rtol=1e-6)
    local = solve(moments.A, moments.B, 1e-9)
    np.testing.assert_allclose(closed_form(moments.A, moments.B, V, 1e-9), local, atol=1e-8)


def test_a_global_correction_that_fits_the_client_is_kept() -> None:
    rng = np.random.default_rng(2)
    z, V = rng.normal(size=(30, 4)), rng.normal(size=(4, 2))
    moments = accumulate(z, z @ V)
    np.testing.assert_allclose(closed_form(moments.A, moments.B, V, 5.0), V, rtol=1e-9)


def test_personalisation_leaves_the_hash_of_the_global_model_unchanged() -> None:
    rng = np.random.default_rng(3)
    A, B, V = np.eye(4), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    logits, prior = rng.normal(size=(5, 2)), log_prior(np.array([3, 1]))
    everything = (A, B, V, logits, prior)
    before = [hashlib.sha256(array.tobytes()).hexdigest() for array in everything]
    closed_form(A, B, V, 1.0)
    blend(logits, prior, np.full((5, 2), 0.5), 0.5)
    assert [hashlib.sha256(array.tobytes()).hexdigest() for array in everything] == before


def test_log_prior_by_hand_with_an_absent_class() -> None:
    # n = 3, C = 2: (3.5, 0.5) of 4.
    np.testing.assert_allclose(log_prior(np.array([3, 0])), np.log([0.875, 0.125]), rtol=1e-12)


def test_smoothed_shares_sum_to_one() -> None:
    assert np.isclose(np.exp(log_prior(np.array([5, 0, 7, 0]))).sum(), 1.0)


def test_blend_adds_logits_prior_and_weighted_log_teacher() -> None:
    scores = blend(np.array([[1.0, 2.0]]), np.array([-1.0, -2.0]), np.array([[0.25, 0.75]]), 2.0)
    np.testing.assert_allclose(scores, [[2 * np.log(0.25), 2 * np.log(0.75)]], rtol=1e-12)


def test_gamma_zero_leaves_the_prior_alone() -> None:
    scores = blend(np.array([[1.0, 2.0]]), np.array([-1.0, -3.0]), np.array([[0.0, 1.0]]), 0.0)
    np.testing.assert_array_equal(scores, [[0.0, -1.0]])


def test_a_teacher_certain_of_one_class_keeps_scores_finite() -> None:
    assert np.all(np.isfinite(blend(np.zeros((1, 2)), np.zeros(2), np.array([[0.0, 1.0]]), 2.0)))


@pytest.mark.parametrize(
    "first, other, kept",
    [
        ("1111", "1111", "first"),
        ("0111", "1111", "first"),  # b - c = 1, and so is sqrt(b + c)
        ("0011", "1111", "other"),  # 2 > sqrt(2)
        ("00110", "11011", "first"),  # 3 - 1 = 2 = sqrt(4)
        ("000110", "111101", "other"),  # 4 - 1 = 3 > sqrt(5)
        ("1111", "0000", "first"),
        ("", "", "first"),
    ],
)
def test_another_candidate_has_to_be_better_by_more_than_a_standard_error(
    first: str, other: str, kept: str
) -> None:
    right = {name: np.array([*map(int, text)], bool) for name, text in (("first", first), ("other", other))}
    assert clearly_best(right) == kept


def test_of_several_that_are_clearly_better_the_one_with_most_right_answers_is_kept() -> None:
    first, good, better = (np.arange(10) < many for many in (2, 6, 8))
    assert clearly_best({"first": first, "good": good, "better": better}) == "better"
    assert clearly_best({"first": first, "better": better, "good": good}) == "better"
    assert clearly_best({"first": first, "good": good, "as good": good.copy()}) == "good"
