"""Clipping and noise: what one sample or one site can change, by hand and by trying."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fkd_common.choices import MomentFeatures
from fkd_common.config import RunConfig
from fkd_common.method.privacy import (
    MOMENT_SENSITIVITY,
    NoiseScale,
    clip_features,
    clip_rows,
    longest_feature,
    nearest_positive_semidefinite,
    noised_moments,
    private_residuals,
)


def noisy(**changes: Any) -> RunConfig:
    clips = {"residual_l2_clip": 5.0, "feature_clip": 2.0, "target_clip": 3.0}
    return RunConfig(**{"noise_multiplier": 2.0, **clips, **changes})


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def test_rows_longer_than_the_limit_are_shortened_and_others_left_alone() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=np.float32)
    clipped = clip_rows(rows, 1.0)
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-6)
    assert clipped.dtype == np.float32
    assert clip_rows(rows, None) is rows


def test_features_are_clipped_in_two_parts_and_the_constant_stays() -> None:
    """z = [φ (2); h̄ (2); 1]."""
    z = np.array([[3.0, 4.0, 0.6, 0.8, 1.0], [0.0, 0.5, 6.0, 8.0, 1.0]], dtype=np.float32)
    expected = [[0.6, 0.8, 0.6, 0.8, 1.0], [0.0, 0.5, 0.6, 0.8, 1.0]]
    np.testing.assert_allclose(clip_features(z, 2, 1.0), expected, rtol=1e-6)
    assert clip_features(z, 2, None) is z
    # Embedding alone: there is no hidden part.
    np.testing.assert_allclose(clip_features(z[:, 2:], 2, 1.0)[1], [0.6, 0.8, 1.0], rtol=1e-6)


def test_noise_is_the_multiplier_times_the_sensitivity() -> None:
    """σ = 2, L = 5: 2·2·5. F = 2: Z² = 2·4 + 1 = 9, Z = 3, R = 3."""
    scale = NoiseScale.of(noisy())
    assert scale.residuals == 20.0
    unit, noise_A, noise_B = 2 * math.sqrt(4.5), scale.A, scale.B
    assert noise_A == pytest.approx(unit * 9)
    assert noise_B == pytest.approx(unit * 3 * 3)
    assert longest_feature(2.0, MomentFeatures.EMBEDDING) == pytest.approx(math.sqrt(5))
    assert NoiseScale.of(RunConfig()) == NoiseScale(0.0, 0.0, 0.0)


def test_replacing_one_sample_moves_the_moments_by_no_more_than_the_stated_sensitivity() -> None:
    rng, worst = np.random.default_rng(1), 0.0
    for trial in range(4000):
        z, other = (row / np.linalg.norm(row) * rng.choice([1.0, 0.5]) for row in rng.normal(size=(2, 2)))
        r, s = (row / np.linalg.norm(row) for row in rng.normal(size=(2, 2)))
        if trial % 2:  # near the worst case: ρ = 1/2 and opposite residuals
            other, s = np.array([[0.5, -(0.75**0.5)], [0.75**0.5, 0.5]]) @ z, -r
        A = np.outer(z, z) - np.outer(other, other)
        B = np.outer(z, r) - np.outer(other, s)
        worst = max(worst, float(np.sqrt((A**2).sum() + (B**2).sum())))
    assert 0.99 * MOMENT_SENSITIVITY < worst <= MOMENT_SENSITIVITY + 1e-9


def test_residuals_are_clipped_as_one_matrix() -> None:
    """Norm √(4·25) = 10, clipped to 5: halved."""
    predicted = np.full((2, 2), 5.0, dtype=np.float32)
    clipped = private_residuals(predicted, RunConfig(residual_l2_clip=5.0), generator())
    np.testing.assert_allclose(clipped, np.full((2, 2), 2.5), rtol=1e-6)
    assert private_residuals(predicted, RunConfig(), generator()) is predicted


def test_noise_on_residuals_has_the_stated_size() -> None:
    noised = private_residuals(np.zeros((100, 100), np.float32), noisy(), generator())
    assert noised.std() == pytest.approx(20.0, rel=0.03)
    assert abs(noised.mean()) < 1.0


def moments() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.append(np.zeros(20_000), 7.0), np.zeros((100, 100))


def test_noise_on_moments_has_the_stated_size_and_spares_the_number_of_samples() -> None:
    A, B = noised_moments(*moments(), noisy(), generator(), ends_with_n=True)
    scale = NoiseScale.of(noisy())
    assert A[:-1].std() == pytest.approx(scale.A, rel=0.03)
    assert B.std() == pytest.approx(scale.B, rel=0.03)
    assert A[-1] == 7.0
    A, _ = noised_moments(*moments(), noisy(), generator(), ends_with_n=False)
    assert A[-1] != 7.0


def test_without_a_multiplier_moments_are_left_alone() -> None:
    A, B = moments()
    for config in (RunConfig(), noisy(noise_multiplier=0.0)):
        assert noised_moments(A, B, config, generator(), ends_with_n=True) == (A, B)


def test_negative_eigenvalues_are_removed_and_nothing_else_changes() -> None:
    """Eigenvectors (1, 1) and (1, -1), eigenvalues 3 and -1: 1.5 everywhere is left."""
    np.testing.assert_allclose(
        nearest_positive_semidefinite(np.array([[1.0, 2.0], [2.0, 1.0]])), np.full((2, 2), 1.5), rtol=1e-12
    )
    A = np.array([[2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(nearest_positive_semidefinite(A), A, rtol=1e-12)


def test_noise_without_clips_or_with_teacher_targets_is_refused() -> None:
    with pytest.raises(ValueError, match="needs residual_l2_clip"):
        noisy(residual_l2_clip=None)
    with pytest.raises(ValueError, match="needs feature_clip and target_clip"):
        noisy(feature_clip=None, target_clip=None)
    noisy(correction="anchors", feature_clip=None, target_clip=None)
    with pytest.raises(ValueError, match="needs beta = 0"):
        noisy(beta=0.5)
