"""Personal models in closed form."""

from __future__ import annotations

import hashlib

import numpy as np

from fkd_common.method.moments import accumulate, solve
from fkd_common.method.personal import blend, closed_form, log_prior


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
