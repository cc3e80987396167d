"""Clipping and Gaussian noise for residuals and moments, and what they bound; counts no releases, keeps no state.

The Gaussian mechanism adds noise of standard deviation σ·Δ to each number of a release whose L2 norm changes by
at most Δ between neighbouring inputs; σ is the configured `noise_multiplier` (Dwork & Roth 2014, appendix A).

Neighbours differ in two ways here:

- *Residuals*: one site is replaced by any other. Its matrix is clipped to an L2 norm of L, so Δ = 2L.
- *Moments*: one sample of a site's training part is replaced by any other; n_k, the split and the student it is
  given stay. A sample's z = [φ; h̄; 1] is clipped to ||φ|| ≤ F and ||h̄|| ≤ F, so ||z|| ≤ Z = √(2F² + 1), and its
  r to ||r|| ≤ R. With A in units of Z² and B in units of Z·R, writing ρ = z·z'/Z², replacing a sample moves
  (A, B) by at most √(2 - 2ρ² + 2 + 2|ρ|) ≤ √4.5. The triangle of A that travels is a part of A. Its last entry,
  n_k, is the same for neighbours and carries no noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.blas import one_blas_thread
from fkd_common.choices import MomentFeatures
from fkd_common.config import RunConfig

MOMENT_SENSITIVITY = math.sqrt(4.5)
"""L2 distance of (A/Z², B/(Z·R)) when one sample is replaced, at most."""


@dataclass(frozen=True)
class NoiseScale:
    """Standard deviations of the noise on one client's uploads; 0 where the run adds none."""

    residuals: float
    A: float
    B: float

    @classmethod
    def of(cls, config: RunConfig) -> NoiseScale:
        """σ times the sensitivities of the module's docstring."""
        sigma = config.noise_multiplier
        residuals = sigma * 2.0 * (config.residual_l2_clip or 0.0)
        if config.feature_clip is None or config.target_clip is None:
            return cls(residuals, 0.0, 0.0)
        unit = sigma * MOMENT_SENSITIVITY
        longest = longest_feature(config.feature_clip, config.moment_features)
        return cls(residuals, unit * longest**2, unit * longest * config.target_clip)


def longest_feature(clip: float, which: MomentFeatures) -> float:
    """Z: the largest ||z|| after :func:`clip_features`."""
    parts = 1 if which is MomentFeatures.EMBEDDING else 2
    return math.sqrt(parts * clip**2 + 1.0)


def clip_rows(values: NDArray[Any], limit: float | None) -> NDArray[Any]:
    """Shorten every row that is longer than a limit.

    Args:
        values: (n, w).
        limit: largest L2 norm of a row; None returns the array itself.

    Returns:
        (n, w) of the same dtype.
    """
    if limit is None or values.shape[1] == 0:
        return values
    lengths = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
    factors = np.minimum(1.0, limit / np.maximum(lengths, 1e-300))
    return np.asarray(values * factors[:, None], dtype=values.dtype)


def clip_features(z: NDArray[np.float32], d: int, limit: float | None) -> NDArray[np.float32]:
    """Clip the hidden part and the embedding part of z = [φ; h̄; 1], each by itself; the constant stays 1.

    By itself, so that the block of the embedding does not depend on the student and need not be sent again.

    Args:
        z: (n, p) features, the last d + 1 columns [h̄; 1].
        d: embedding dimension.
        limit: largest L2 norm of either part; None returns z itself.
    """
    if limit is None:
        return z
    q = z.shape[1] - d - 1
    return np.concatenate([clip_rows(z[:, :q], limit), clip_rows(z[:, q:-1], limit), z[:, -1:]], axis=1)


def private_residuals(
    predicted: NDArray[np.float32], config: RunConfig, generator: np.random.Generator
) -> NDArray[np.float32]:
    """R̂_k clipped to its L2 norm and noised, as configured.

    Args:
        predicted: (m, C) predictions on the anchors.
        config: the run configuration.
        generator: source of the noise; it must not be predictable.
    """
    limit = config.residual_l2_clip
    if limit is None:
        return predicted
    flat = clip_rows(predicted.astype(np.float64).reshape(1, -1), limit)
    if scale := NoiseScale.of(config).residuals:
        flat = flat + generator.normal(0.0, scale, flat.shape)
    return flat.reshape(predicted.shape).astype(np.float32)


def noised_moments(
    packed_A: NDArray[np.float64],
    B: NDArray[np.float64],
    config: RunConfig,
    generator: np.random.Generator,
    *,
    ends_with_n: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Moments of clipped samples with symmetric Gaussian noise, as configured.

    Args:
        packed_A: what travels of A's upper triangle: noise on it is symmetric noise on A.
        B: (p, C).
        config: the run configuration.
        generator: source of the noise; it must not be predictable.
        ends_with_n: the last packed value is n_k, which neighbours share.

    Returns:
        The two, of the same shapes.
    """
    scale = NoiseScale.of(config)
    if scale.A == 0.0:
        return packed_A, B
    noised = packed_A + generator.normal(0.0, scale.A, packed_A.shape)
    if ends_with_n:
        noised[-1] = packed_A[-1]
    return noised, B + generator.normal(0.0, scale.B, B.shape)


def nearest_positive_semidefinite(A: NDArray[np.float64]) -> NDArray[np.float64]:
    """A symmetric matrix without its negative eigenvalues: the nearest PSD one in Frobenius norm (Higham 1988).

    Noise makes a sum of moments indefinite, and a ridge problem with an indefinite matrix can have an absurd
    solution. Computed on one BLAS thread so that a machine always gives the same bits.
    """
    with one_blas_thread:
        values, vectors = np.linalg.eigh(A)
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
