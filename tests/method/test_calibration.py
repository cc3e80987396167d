"""Calibration of teacher probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_common.choices import Calibrator
from fkd_common.method.calibration import Calibration, expand_to_global, fit_calibration
from fkd_common.method.metrics import negative_log_likelihood


def two_classes(first: list[float]) -> np.ndarray:
    p = np.array(first)
    return np.stack([p, 1.0 - p], axis=1)


def overconfident(samples: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Says 99 % and is right in 3 cases of 4."""
    labels = np.arange(samples) % 2
    right = (np.arange(samples) // 2) % 4 != 0
    p_true = np.where(right, 0.99, 0.01)
    return two_classes(list(np.where(labels == 0, p_true, 1.0 - p_true))), labels


@pytest.mark.parametrize("kind", [Calibrator.PLATT, Calibrator.TEMPERATURE])
def test_an_overconfident_teacher_is_pulled_to_its_true_rate(kind: Calibrator) -> None:
    p, labels = overconfident()
    calibrated = fit_calibration(p, labels, kind, min_val=20).apply(p)
    np.testing.assert_allclose(calibrated.max(axis=1), 0.75, atol=0.01)
    assert negative_log_likelihood(calibrated, labels) < negative_log_likelihood(p, labels)


def test_constant_probabilities_become_the_smoothed_base_rate() -> None:
    # Class 0 has 6 of 8. Targets 7/8 (six times) and 1/4 (twice): mean 23/32.
    # Class 1, the other way round: 3/4 twice and 1/8 six times: mean 9/32. They already add up to 1.
    p = two_classes([0.5] * 8)
    labels = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    calibrated = fit_calibration(p, labels, Calibrator.PLATT, min_val=0).apply(p)
    np.testing.assert_allclose(calibrated, np.tile([23 / 32, 9 / 32], (8, 1)), rtol=1e-9)


def test_two_distinct_log_odds_are_fitted_exactly() -> None:
    # A line through two points: at p = 0.9, 3 of 4 are positive, at p = 0.1, 1 of 4.
    # N+ = N- = 4, t+ = 5/6, t- = 1/6: means (3·5/6 + 1/6)/4 = 2/3 and 1/3.
    p = two_classes([0.9, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1])
    labels = np.array([0, 0, 0, 1, 0, 1, 1, 1])
    fitted = fit_calibration(p, labels, Calibrator.PLATT, min_val=0)
    np.testing.assert_allclose(fitted.apply(p)[:, 0], [2 / 3] * 4 + [1 / 3] * 4, rtol=1e-6)
    np.testing.assert_allclose(fitted.slopes, np.log(2.0) / np.log(9.0), rtol=1e-6)
    np.testing.assert_allclose(fitted.offsets, 0.0, atol=1e-6)


def test_a_separable_split_gives_finite_parameters_and_platts_targets() -> None:
    # N+ = N- = 10: the best possible values are t+ = 11/12 and t- = 1/12, reached exactly.
    p = two_classes([1.0] * 10 + [0.0] * 10)
    labels = np.array([0] * 10 + [1] * 10)
    fitted = fit_calibration(p, labels, Calibrator.PLATT, min_val=20)
    assert np.all(np.isfinite(fitted.slopes)) and np.all(np.isfinite(fitted.offsets))
    np.testing.assert_allclose(fitted.apply(p)[:, 0], [11 / 12] * 10 + [1 / 12] * 10, rtol=1e-6)


def test_a_teacher_that_is_always_wrong_is_flattened_never_reversed() -> None:
    p = two_classes([0.1] * 10 + [0.9] * 10)
    labels = np.array([0] * 10 + [1] * 10)
    fitted = fit_calibration(p, labels, Calibrator.PLATT, min_val=20)
    np.testing.assert_array_equal(fitted.slopes, 0.0)
    np.testing.assert_allclose(fitted.apply(p), 0.5, rtol=1e-9)


def test_platt_minimises_its_objective() -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(0.02, 0.98, size=60)
    labels = (rng.uniform(size=60) > first).astype(int)  # label 0 as often as the teacher says
    fitted = fit_calibration(two_classes(list(first)), labels, Calibrator.PLATT, min_val=20)
    positive = labels == 0
    targets = np.where(positive, (positive.sum() + 1) / (positive.sum() + 2), 1 / ((~positive).sum() + 2))
    u = np.log(first / (1 - first))

    def loss(a: float, b: float) -> float:
        q = 1 / (1 + np.exp(-(a * u + b)))
        return float(-(targets * np.log(q) + (1 - targets) * np.log(1 - q)).sum())

    a, b = fitted.slopes[0], fitted.offsets[0]
    assert a > 0
    for da, db in [(1e-3, 0.0), (-1e-3, 0.0), (0.0, 1e-3), (0.0, -1e-3)]:
        assert loss(a, b) < loss(a + da, b + db)


@pytest.mark.scenario(36)
def test_classes_with_fewer_than_two_positives_keep_their_probability() -> None:
    p = np.tile([0.5, 0.3, 0.2], (20, 1))
    labels = np.array([0] * 10 + [1] * 9 + [2])
    fitted = fit_calibration(p, labels, Calibrator.PLATT, min_val=20)
    np.testing.assert_array_equal(fitted.identity, [False, False, True])
    assert (fitted.slopes[2], fitted.offsets[2]) == (1.0, 0.0)


@pytest.mark.scenario(36)
def test_a_class_with_fewer_than_two_negatives_keeps_its_probability() -> None:
    fitted = fit_calibration(two_classes([0.8] * 20), np.array([0] * 19 + [1]), Calibrator.PLATT, min_val=20)
    np.testing.assert_array_equal(fitted.identity, [True, True])


@pytest.mark.scenario(36)
@pytest.mark.parametrize("kind", list(Calibrator))
def test_below_the_minimum_calibration_is_the_identity(kind: Calibrator) -> None:
    p = two_classes([0.9] * 10 + [0.2] * 9)
    calibrated = fit_calibration(p, np.arange(19) % 2, kind, min_val=20).apply(p)
    np.testing.assert_allclose(calibrated, p, rtol=1e-15)


@pytest.mark.scenario(37)
@pytest.mark.parametrize("kind", list(Calibrator))
def test_a_one_class_client_keeps_probability_one(kind: Calibrator) -> None:
    fitted = fit_calibration(np.ones((30, 1)), np.zeros(30, dtype=int), kind, min_val=20)
    np.testing.assert_array_equal(fitted.apply(np.ones((5, 1))), np.ones((5, 1)))


@pytest.mark.scenario(36, 38)
@pytest.mark.parametrize("kind", list(Calibrator))
def test_no_validation_samples_at_all_is_the_identity(kind: Calibrator) -> None:
    fitted = fit_calibration(np.ones((0, 3)), np.zeros(0, dtype=int), kind, min_val=0)
    np.testing.assert_allclose(fitted.apply(np.array([[0.2, 0.3, 0.5]])), [[0.2, 0.3, 0.5]], rtol=1e-15)


@pytest.mark.parametrize("kind", list(Calibrator))
def test_two_samples_stay_finite(kind: Calibrator) -> None:
    p = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32)
    calibrated = fit_calibration(p, np.array([1, 2]), kind, min_val=0).apply(p)
    assert np.all(np.isfinite(calibrated))
    np.testing.assert_allclose(calibrated.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("kind", list(Calibrator))
def test_rows_sum_to_one_on_random_classes(kind: Calibrator) -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet([0.1] * 6, size=80)
    calibrated = fit_calibration(p, rng.integers(0, 5, size=80), kind, min_val=20).apply(p)
    assert np.all(np.isfinite(calibrated))
    np.testing.assert_allclose(calibrated.sum(axis=1), 1.0, rtol=1e-12)


def test_temperature_undoes_a_known_sharpening() -> None:
    # Right 4 times of 5 with 80 % confidence is calibrated; sharpened by 3, the fit must answer T = 3.
    honest = two_classes([0.8] * 50)
    sharp = honest**3 / (honest**3).sum(axis=1, keepdims=True)
    labels = (np.arange(50) % 5 == 0).astype(int)
    fitted = fit_calibration(sharp, labels, Calibrator.TEMPERATURE, min_val=20)
    assert fitted.temperature == pytest.approx(3.0, rel=1e-4)
    np.testing.assert_allclose(fitted.apply(sharp), honest, rtol=1e-4)


def test_temperature_of_a_separable_split_stops_at_the_end_of_its_range() -> None:
    p = two_classes([0.6] * 10 + [0.4] * 10)
    fitted = fit_calibration(p, np.array([0] * 10 + [1] * 10), Calibrator.TEMPERATURE, min_val=20)
    assert fitted.temperature == pytest.approx(0.1, rel=1e-3)


def test_labels_outside_the_local_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels in 0\.\.1"):
        fit_calibration(np.full((2, 2), 0.5), np.array([0, 2]), Calibrator.PLATT, min_val=0)


def test_applying_a_given_line_gives_the_hand_computed_odds() -> None:
    # Class 0: log-odds of 0.5 are 0, offset log 3 gives σ = 3/4. Class 1 keeps 1/2. 3/4 : 1/2 = 3/5 : 2/5.
    calibration = Calibration(
        slopes=np.array([1.0, 1.0]),
        offsets=np.array([np.log(3.0), 0.0]),
        identity=np.array([False, True]),
        temperature=1.0,
    )
    np.testing.assert_allclose(calibration.apply(np.array([[0.5, 0.5]])), [[0.6, 0.4]], rtol=1e-12)


@pytest.mark.scenario(36)
def test_absent_class_keeps_positive_probability() -> None:
    # N_val = 8: the absent class weighs 1/10 against 1, hence 1/11.
    spread = expand_to_global(np.array([[0.3, 0.7]]), np.array([0, 2]), 3, n_val=8)
    np.testing.assert_allclose(spread, np.array([[0.3, 0.1, 0.7]]) / 1.1, rtol=1e-12)


@pytest.mark.scenario(37, 38)
def test_a_one_class_client_without_validation_still_sums_to_one() -> None:
    spread = expand_to_global(np.ones((2, 1)), np.array([1]), 3, n_val=0)
    np.testing.assert_allclose(spread, [[0.25, 0.5, 0.25]] * 2, rtol=1e-12)


def test_with_all_classes_present_nothing_changes() -> None:
    p = np.array([[0.25, 0.75]])
    np.testing.assert_array_equal(expand_to_global(p, np.array([0, 1]), 2, n_val=5), p)
