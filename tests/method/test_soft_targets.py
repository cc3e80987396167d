"""Soft targets and the distillation loss."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_common.method.probabilities import softmax
from fkd_common.method.soft_targets import alpha_at, complete_absent, distillation_loss, smooth


def test_temperature_does_not_cancel() -> None:
    # T = 2: square roots of 0.1 and 0.9 stand 1 : 3. In the wrong reading of Eq. 3, p^(1/T) normalised as
    # softmax(T·log p / T), T would cancel and 0.9 would come back.
    np.testing.assert_allclose(smooth(np.array([[0.1, 0.9]]), 2.0), [[0.25, 0.75]], rtol=1e-12)


def test_temperature_one_returns_the_probabilities() -> None:
    p = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(smooth(p, 1.0), p, rtol=1e-12, atol=1e-300)


def test_high_temperature_flattens() -> None:
    np.testing.assert_allclose(smooth(np.array([[0.01, 0.99]]), 1e6), [[0.5, 0.5]], atol=1e-5)


def test_zero_probabilities_stay_finite() -> None:
    smoothed = smooth(np.array([[0.0, 1.0]], dtype=np.float32), 2.0)
    assert np.all(np.isfinite(smoothed))
    assert smoothed.sum() == pytest.approx(1.0)


def test_absent_classes_get_exactly_the_students_mass() -> None:
    # Student: 0.2 on the absent class 1, so 0.8 is left, split 1 : 3 as the teacher has it.
    completed = complete_absent(
        np.array([[0.2, 0.2, 0.6]]), np.array([[0.5, 0.2, 0.3]]), present=np.array([0, 2])
    )
    np.testing.assert_allclose(completed, [[0.2, 0.2, 0.6]], rtol=1e-12)
    assert completed[0, 1] == 0.2


@pytest.mark.scenario(37)
def test_completion_of_a_one_class_client_is_the_student_itself() -> None:
    student = np.array([[0.5, 0.2, 0.3]])
    completed = complete_absent(np.array([[0.1, 0.8, 0.1]]), student, present=np.array([1]))
    np.testing.assert_allclose(completed, student, rtol=1e-12)


def test_completion_changes_nothing_when_every_class_is_present() -> None:
    soft = np.array([[0.25, 0.75]])
    completed = complete_absent(soft, np.array([[0.9, 0.1]]), present=np.array([0, 1]))
    np.testing.assert_array_equal(completed, soft)


def test_completion_survives_a_student_certain_of_an_absent_class() -> None:
    completed = complete_absent(np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]]), present=np.array([0]))
    np.testing.assert_array_equal(completed, [[0.0, 1.0]])


def test_completion_leaves_its_inputs_alone() -> None:
    soft, student = np.array([[0.2, 0.8]]), np.array([[0.6, 0.4]])
    complete_absent(soft, student, present=np.array([0]))
    np.testing.assert_array_equal(soft, [[0.2, 0.8]])
    np.testing.assert_array_equal(student, [[0.6, 0.4]])


def test_alpha_runs_linearly_from_start_to_end() -> None:
    values = [alpha_at(t, 5, 0.7, 0.3) for t in range(1, 6)]
    np.testing.assert_allclose(values, [0.7, 0.6, 0.5, 0.4, 0.3], rtol=1e-12)


def test_a_single_round_uses_the_start() -> None:
    assert alpha_at(1, 1, 0.7, 0.3) == 0.7


def test_alpha_zero_is_the_cross_entropy() -> None:
    # softmax(0, log 3) = (1/4, 3/4).
    loss = distillation_loss(
        np.array([[0.0, np.log(3.0)]]), np.array([[0.5, 0.5]]), np.array([1]), temperature=2.0, alpha=0.0
    )
    assert loss == pytest.approx(np.log(4 / 3))


def test_alpha_one_is_t_squared_times_the_forward_divergence() -> None:
    # T = 2 on logits (0, 2·log 3) gives (1/4, 3/4).
    # KL((1/2, 1/2) ‖ (1/4, 3/4)) = ½log 2 + ½log(2/3) = ½log(4/3).
    loss = distillation_loss(
        np.array([[0.0, 2.0 * np.log(3.0)]]),
        np.array([[0.5, 0.5]]),
        np.array([0]),
        temperature=2.0,
        alpha=1.0,
    )
    assert loss == pytest.approx(4.0 * 0.5 * np.log(4 / 3))


def test_loss_is_the_batch_mean_of_both_terms() -> None:
    logits = np.array([[0.0, np.log(3.0)], [0.0, 0.0]])
    soft = np.array([[0.25, 0.75], [0.5, 0.5]])  # the student's own probabilities at T = 1: no divergence
    loss = distillation_loss(logits, soft, np.array([1, 0]), temperature=1.0, alpha=0.25)
    assert loss == pytest.approx(0.75 * (np.log(4 / 3) + np.log(2.0)) / 2)


def test_a_zero_in_the_targets_costs_nothing() -> None:
    loss = distillation_loss(
        np.zeros((1, 2)), np.array([[0.0, 1.0]]), np.array([1]), temperature=1.0, alpha=1.0
    )
    assert loss == pytest.approx(np.log(2.0))


def test_divergence_vanishes_when_the_student_has_the_targets() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 4))
    loss = distillation_loss(logits, softmax(logits, 3.0), np.zeros(7, dtype=int), temperature=3.0, alpha=1.0)
    assert loss == pytest.approx(0.0, abs=1e-14)
