"""Accuracy, recall, matched accuracy and calibration error."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_common.method.metrics import (
    accuracy,
    expected_calibration_error,
    matched_accuracy,
    negative_log_likelihood,
    per_class_recall,
)

# Predictions 0, 0, 1, 1 against labels 0, 0, 0, 1: three of four; recalls 2/3, 1, none.
SCORES = np.array([[2.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 5.0, 1.0]])
LABELS = np.array([0, 0, 0, 1])


def test_accuracy_counts_hits() -> None:
    assert accuracy(SCORES, LABELS) == 0.75


def test_recall_is_nan_for_a_class_without_samples() -> None:
    np.testing.assert_allclose(per_class_recall(SCORES, LABELS, 3), [2 / 3, 1.0, np.nan])


def test_matched_accuracy_weighs_recall_by_the_clients_shares() -> None:
    assert matched_accuracy(SCORES, LABELS, np.array([0.75, 0.25, 0.0])) == pytest.approx(0.75)
    assert matched_accuracy(SCORES, LABELS, np.array([0.0, 1.0, 0.0])) == 1.0


def test_shares_are_renormalised_over_tested_classes() -> None:
    # Shares ½, 0, ½ with class 2 untested: class 0 carries everything.
    assert matched_accuracy(SCORES, LABELS, np.array([0.5, 0.0, 0.5])) == pytest.approx(2 / 3)


def test_counts_serve_as_shares() -> None:
    assert matched_accuracy(SCORES, LABELS, np.array([30, 10, 0])) == pytest.approx(0.75)


def test_a_client_with_no_tested_class_has_no_matched_accuracy() -> None:
    assert np.isnan(matched_accuracy(SCORES, LABELS, np.array([0.0, 0.0, 1.0])))


def test_no_samples_have_no_score() -> None:
    p, labels = np.zeros((0, 3)), np.zeros(0, dtype=np.int64)
    assert np.isnan(accuracy(p, labels))
    assert np.isnan(expected_calibration_error(p, labels))
    assert np.isnan(negative_log_likelihood(p, labels))
    assert np.all(np.isnan(per_class_recall(p, labels, 3)))


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    # 90 % confident four times, right twice: a gap of 0.4. Certain and right six times: none. Mean: 0.16.
    p = np.array([[0.9, 0.1]] * 4 + [[1.0, 0.0]] * 6)
    labels = np.array([0, 0, 1, 1] + [0] * 6)
    assert expected_calibration_error(p, labels) == pytest.approx(0.16)


def test_errors_in_different_bins_do_not_cancel() -> None:
    # 60 % and right (gap -0.4), 100 % and wrong (gap +1): mean 0.7 apart, 0.3 in one bin.
    p, labels = np.array([[0.6, 0.4], [1.0, 0.0]]), np.array([0, 1])
    assert expected_calibration_error(p, labels) == pytest.approx(0.7)
    assert expected_calibration_error(p, labels, bins=1) == pytest.approx(0.3)


def test_likelihood_by_hand() -> None:
    p = np.array([[0.5, 0.5], [0.125, 0.875]])
    assert negative_log_likelihood(p, np.array([0, 0])) == pytest.approx(2.0 * np.log(2.0))


def test_a_certain_mistake_costs_a_finite_amount() -> None:
    assert negative_log_likelihood(np.array([[0.0, 1.0]]), np.array([0])) == pytest.approx(36.04, abs=0.01)
