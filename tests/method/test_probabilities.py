"""Softmax and clipping."""

from __future__ import annotations

import numpy as np

from fkd_common.method.probabilities import clip_probabilities, log_softmax, softmax


def test_softmax_of_log_ratios_is_their_shares() -> None:
    logits = np.log([[1.0, 2.0, 5.0]])
    np.testing.assert_allclose(softmax(logits), [[0.125, 0.25, 0.625]], rtol=1e-12)


def test_temperature_two_takes_square_roots() -> None:
    np.testing.assert_allclose(softmax(np.log([[1.0, 9.0]]), 2.0), [[0.25, 0.75]], rtol=1e-12)


def test_huge_logits_stay_finite() -> None:
    logits = np.array([[1e4, 0.0, -1e4]], dtype=np.float32)
    assert np.all(np.isfinite(log_softmax(logits)))
    np.testing.assert_allclose(softmax(logits), [[1.0, 0.0, 0.0]])


def test_float32_logits_give_float64_probabilities() -> None:
    assert softmax(np.zeros((2, 3), dtype=np.float32)).dtype == np.float64


def test_one_class_has_probability_one() -> None:
    np.testing.assert_array_equal(softmax(np.array([[-3.0], [7.0]])), [[1.0], [1.0]])


def test_clipping_moves_only_the_ends() -> None:
    np.testing.assert_array_equal(clip_probabilities(np.array([0.0, 0.5, 1.0]), 0.25), [0.25, 0.5, 0.75])
