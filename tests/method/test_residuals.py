"""Residuals and the anchor correction."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_common.choices import ResidualForm
from fkd_common.errors import DataError
from fkd_common.method.residuals import Standardiser, fit_anchor_correction, prepare_residual, residual


def test_residual_is_zero_when_the_student_has_the_targets_up_to_a_constant_per_sample() -> None:
    soft = np.array([[0.25, 0.75], [0.5, 0.5]])
    temperature = 2.0
    logits = temperature * np.log(soft) + np.array([[5.0], [-3.0]])
    r = residual(soft, logits, temperature, eps=1e-14, form=ResidualForm.ALIGNED)
    np.testing.assert_allclose(r, 0.0, atol=1e-12)


def test_aligned_residual_by_hand() -> None:
    # Student undecided: log 1/2. Targets 1/4 and 3/4: r = log(1/2), log(3/2).
    r = residual(np.array([[0.25, 0.75]]), np.zeros((1, 2)), 2.0, eps=1e-15, form=ResidualForm.ALIGNED)
    np.testing.assert_allclose(r, [[np.log(0.5), np.log(1.5)]], rtol=1e-12)


def test_literal_residual_by_hand_and_without_temperature() -> None:
    soft, logits = np.array([[0.2, 0.7]]), np.array([[1.0, -1.0]])
    expected = [[np.log(0.3) - 1.1, np.log(0.8) + 0.9]]
    for temperature in (1.0, 4.0):
        r = residual(soft, logits, temperature, eps=0.1, form=ResidualForm.LITERAL)
        np.testing.assert_allclose(r, expected, rtol=1e-12)


def test_literal_residual_flattens_even_a_perfect_student() -> None:
    soft = np.array([[0.1, 0.9]])
    r = residual(soft, 2.0 * np.log(soft), 2.0, eps=1e-12, form=ResidualForm.LITERAL)
    assert r[0, 0] - r[0, 1] == pytest.approx(np.log(9.0))  # raises the rare class


def test_a_target_of_zero_gives_log_eps() -> None:
    r = residual(np.array([[0.0, 1.0]]), np.zeros((1, 2)), 1.0, eps=1e-6, form=ResidualForm.ALIGNED)
    assert r[0, 0] == pytest.approx(np.log(1e-6) + np.log(2.0))


def test_prepared_residuals_are_centred_over_present_classes_and_zero_elsewhere() -> None:
    prepared = prepare_residual(np.array([[1.0, -99.0, 5.0]]), np.array([0, 2]), clip=10.0, divisor=2.0)
    np.testing.assert_array_equal(prepared, [[-1.0, 0.0, 1.0]])


def test_clipping_comes_after_centring_and_before_division() -> None:
    prepared = prepare_residual(np.array([[0.0, 100.0]]), np.array([0, 1]), clip=10.0, divisor=2.0)
    np.testing.assert_array_equal(prepared, [[-5.0, 5.0]])


@pytest.mark.scenario(37)
def test_a_one_class_client_has_nothing_to_say() -> None:
    prepared = prepare_residual(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1]), clip=10.0, divisor=2.0)
    np.testing.assert_array_equal(prepared, 0.0)


def test_standardised_embeddings_have_mean_zero_and_deviation_one() -> None:
    h = np.array([[1.0, 7.0], [3.0, 7.0]], dtype=np.float32)
    standardiser = Standardiser.of(h)
    np.testing.assert_array_equal(standardiser.mean, [2.0, 7.0])
    np.testing.assert_array_equal(standardiser.std, [1.0, 1.0])  # the constant dimension keeps its scale
    standardised = standardiser.apply(h)
    np.testing.assert_array_equal(standardised, [[-1.0, 0.0], [1.0, 0.0]])
    assert standardised.dtype == np.float32


def test_one_dimension_ridge_by_hand() -> None:
    # Standardised x = -1, 1; centred y = -3, 3; B = 6 / (2 + λ) = 2 at λ = 1; intercept 5.
    correction = fit_anchor_correction(np.array([[0.0], [4.0]]), np.array([[2.0], [8.0]]), 1.0)
    np.testing.assert_allclose(correction.coefficients, [[2.0]], rtol=1e-12)
    np.testing.assert_allclose(correction.intercept, [5.0], rtol=1e-12)
    np.testing.assert_allclose(correction.apply(np.array([[2.0], [6.0]])), [[5.0], [9.0]], rtol=1e-6)
    assert correction.strength == 1.0


def brute_force_errors(h: np.ndarray, y: np.ndarray, strength: float) -> float:
    """Leave each anchor out, fit ridge with a free intercept on the rest, predict it."""
    x = Standardiser.of(h).apply(h).astype(np.float64)
    total = 0.0
    for i in range(len(x)):
        keep = np.arange(len(x)) != i
        xm, ym = x[keep].mean(axis=0), y[keep].mean(axis=0)
        xc, yc = x[keep] - xm, y[keep] - ym
        b = np.linalg.solve(xc.T @ xc + strength * np.eye(x.shape[1]), xc.T @ yc)
        total += float(np.sum((y[i] - ym - (x[i] - xm) @ b) ** 2))
    return total


@pytest.mark.parametrize("anchors, d", [(30, 5), (8, 12)])
@pytest.mark.parametrize("strength", [0.1, 1.0, 100.0])
def test_closed_form_leave_one_out_equals_leaving_one_out(anchors: int, d: int, strength: float) -> None:
    rng = np.random.default_rng(anchors)
    h = rng.normal(size=(anchors, d)) * 3.0 + 1.0
    y = h[:, :3] @ rng.normal(size=(3, 4)) + rng.normal(size=(anchors, 4))
    correction = fit_anchor_correction(h, y, strength)
    expected = 1.0 - brute_force_errors(h, y, strength) / np.sum((y - y.mean(axis=0)) ** 2)
    assert correction.loo_r2 == pytest.approx(expected, rel=1e-9)


def test_the_grid_takes_the_least_leave_one_out_error() -> None:
    rng = np.random.default_rng(3)
    h, y = rng.normal(size=(20, 15)), rng.normal(size=(20, 2))  # noise: the strongest ridge must win
    assert fit_anchor_correction(h, y, (0.1, 1.0, 1e4)).strength == 1e4
    signal = h @ rng.normal(size=(15, 2))  # noise-free: the weakest must win
    assert fit_anchor_correction(h, signal, (1e4, 1.0, 1e-4)).strength == 1e-4


def test_zero_residuals_give_a_correction_that_changes_nothing() -> None:
    h = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    correction = fit_anchor_correction(h, np.zeros((12, 3), dtype=np.float32), (10.0, 100.0))
    delta = correction.apply(h)
    np.testing.assert_array_equal(delta, 0.0)
    assert delta.dtype == np.float32
    scores = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
    assert (scores + 1.0 * delta).tobytes() == scores.tobytes()
    assert (correction.strength, correction.loo_r2) == (10.0, 0.0)


def test_both_sides_fit_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    h, y = rng.normal(size=(50, 20)).astype(np.float32), rng.normal(size=(50, 3)).astype(np.float32)
    first, second = (fit_anchor_correction(h.copy(), y.copy(), (1.0, 10.0)) for _ in range(2))
    assert first.coefficients.tobytes() == second.coefficients.tobytes()
    assert first.intercept.tobytes() == second.intercept.tobytes()


def test_one_anchor_is_a_data_error() -> None:
    with pytest.raises(DataError, match="at least 2 anchors, got 1"):
        fit_anchor_correction(np.zeros((1, 3)), np.zeros((1, 2)), 1.0)


def test_residuals_for_other_anchors_are_refused() -> None:
    with pytest.raises(ValueError, match="4 anchors, got 5"):
        fit_anchor_correction(np.zeros((4, 3)), np.zeros((5, 2)), 1.0)
