"""What the moments of real samples must satisfy; finds the first flaw, repairs nothing.

From the definitions A = Σ z zᵀ and B = Σ z rᵀ with z = [φ; h̄; 1], r = t - centre(S), t = κ(ỹ - 1/C):

- A's last entry is n_k, its diagonal is at least 0, it is positive semidefinite, so |A_ij|² ≤ A_ii·A_jj;
- r sums to 0 over classes, and so does every row of B;
- S is linear in the last hidden layer, which is part of z, so Σ z Sᵀ follows from A and the student's output
  layer, and Y = Σ z ỹᵀ = (B + centre(Σ z Sᵀ))/κ + A_{·,1}/C can be computed. Its last row holds the class counts
  n_{k,c} ≥ 0, and since ỹ lies in [0, 1], |Y_jc|² ≤ A_jj·n_{k,c}.

Tolerances leave room for float32 and TF32 arithmetic on the client, and for the codec in use. Moments that pass may
still be lies: those of made-up samples satisfy all of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.blas import one_blas_thread
from fkd_common.choices import StatisticsCodec
from fkd_common.codecs.quantise import INT16_STEPS
from fkd_common.config import RunConfig
from fkd_common.method.privacy import NoiseScale, longest_feature

MAX_FEATURE = 1e6
"""Largest magnitude of a hidden feature: a hundred times what an average may reach on the anchors."""
MAX_EMBEDDING_SQUARE = 1e6
"""Largest mean square of a standardised embedding: a thousand of the anchors' standard deviations."""

_RIDGE = 1e-3
_ROUNDING = 1e-3
_FLOOR = 1e-12
"""A feature whose mean square is below this counts as 0: float32 cannot hold its products."""


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """The student's last layer: S = W·φ_last + b."""

    weight: NDArray[np.float32]
    """(C, w)"""
    bias: NDArray[np.float32]
    """(C,)"""


def samples_per_class(
    A: NDArray[Any], B: NDArray[Any], n: int, d: int, kappa: float, output: OutputLayer
) -> NDArray[np.int64]:
    """How many samples of each class are in a client's moments, by what their sums say of its labels; rounded.

    The constant feature's row of B is Σ r = κ·(Σ ỹ - n/C) - Σ centre(S), and Σ S = W·Σ φ_last + n·b, with Σ φ_last in
    the constant feature's column of A. Where targets are partly a teacher's, these are sums of probabilities.

    Args:
        A: 1-D, a client's moments as :func:`~fkd_common.method.moments.pack_symmetric` packed them.
        B: (p, C).
        n: n_k.
        d: embedding dimension.
        kappa: scale κ of the targets.
        output: the student's last layer.

    Returns:
        (C,) counts, at least 0.
    """
    p, (num_classes, width) = len(B), output.weight.shape
    last_of_row = (
        np.cumsum(p - np.arange(p - d - 1)) - 1
    )  # row i of the packed triangle ends with A[i, p - 1]
    hidden = A[last_of_row[-width:]].astype(np.float64)
    scores = output.weight.astype(np.float64) @ hidden + n * output.bias.astype(np.float64)
    counts = (B[-1] + scores - scores.mean()) / kappa + n / num_classes
    return np.asarray(np.maximum(0, np.rint(counts)), dtype=np.int64)


def moment_flaw(
    A: NDArray[np.float64],
    B: NDArray[Any],
    n: int,
    d: int,
    config: RunConfig,
    output: OutputLayer | None,
    sites: int = 1,
) -> str | None:
    """The first thing about a client's moments that no n samples can produce, or None.

    Args:
        A: (p, p) symmetric, finite; used up, because a server has no memory for a second one.
        B: (p, C), finite.
        n: n_k, at least 0.
        d: embedding dimension.
        config: the run configuration.
        output: the student's last layer, where z holds the last hidden layer.
        sites: most sites that they are sums over; each may have added noise.

    Returns:
        A sentence: what was expected and what came.
    """
    if np.float32(A[-1, -1]) != np.float32(n):
        return f"the last entry of A is {A[-1, -1]:.6g}; expected n_k = {n}"
    if config.noise_multiplier > 0:
        return _noised_flaw(A, B, n, config, sites)
    diagonal = A.diagonal()
    flaw = _diagonal_flaw(diagonal, n, d, config)
    if flaw is not None:
        return flaw
    return _residual_flaw(A, B, n, d, config, output, diagonal) or _definite_flaw(A, n, _room(len(A), config))


def _room(p: int, config: RunConfig) -> float:
    """Ridge that makes real moments definite: for float32, and for roundings at random to steps of 1/32767.

    Independent errors of standard deviation 0.41 steps make eigenvalues of up to 2·0.41·√p steps (Wigner).
    """
    coded = config.statistics_in_force is StatisticsCodec.INT16
    return _RIDGE + (2.0 * np.sqrt(p) / INT16_STEPS if coded else 0.0)


def _residual_flaw(
    A: NDArray[np.float64],
    B: NDArray[Any],
    n: int,
    d: int,
    config: RunConfig,
    output: OutputLayer | None,
    diagonal: NDArray[np.float64],
) -> str | None:
    """Rows of B sum to 0 and are no longer than A allows; with the student's output, neither are the labels in them."""
    lengths = np.sqrt(diagonal + _FLOOR * n)
    total, size = np.abs(B.sum(axis=1, dtype=np.float64)), np.abs(B).sum(axis=1, dtype=np.float64)
    if np.any(total > _ROUNDING * (size + lengths * np.sqrt(n))):
        return f"row {int(np.argmax(total - _ROUNDING * size))} of B does not sum to 0 over classes"
    if output is not None and config.feature_clip is None and config.target_clip is None:
        return _label_flaw(A, B, n, d, lengths, config.kappa, output)
    longest = config.target_clip or config.kappa + MAX_FEATURE
    if np.any(np.abs(B) > (1 + _ROUNDING) * longest * lengths[:, None] * np.sqrt(n) + 1e-6):
        return f"B is larger than {n} residuals of length {longest:.3g} allow"
    return None


def _diagonal_flaw(diagonal: NDArray[np.float64], n: int, d: int, config: RunConfig) -> str | None:
    if diagonal.min() < 0:
        return f"the diagonal of A has {diagonal.min():.3g}; expected squares, which are at least 0"
    if diagonal.max() > n * MAX_FEATURE**2:
        return f"the diagonal of A has {diagonal.max():.3g}; expected at most {n * MAX_FEATURE**2:.3g}"
    hidden, embedding = float(diagonal[: -d - 1].sum()), float(diagonal[-d - 1 : -1].sum())
    limit = n * d * MAX_EMBEDDING_SQUARE
    if config.feature_clip is not None:
        limit = n * config.feature_clip**2 * (1 + _ROUNDING)
        if hidden > limit:
            return f"squares of hidden features add up to {hidden:.3g}; clipping allows at most {limit:.3g}"
    if embedding > limit:
        return (
            f"squares of embeddings add up to {embedding:.3g}; expected at most {limit:.3g} (do the anchors look like "
            "this site's images at all?)"
        )
    return None


def _definite_flaw(A: NDArray[np.float64], n: int, ridge: float) -> str | None:
    """A in units of its diagonal plus a small ridge must have a Cholesky factor; A is used up."""
    scale = 1.0 / np.sqrt(A.diagonal() + _FLOOR * max(n, 1))
    unit = A
    unit *= scale
    unit *= scale[:, None]
    if max(unit.max(), -unit.min()) > 1 + ridge:
        i, j = np.unravel_index(int(np.abs(unit).argmax()), unit.shape)
        return f"A[{i}, {j}]² is larger than A[{i}, {i}] times A[{j}, {j}]"
    np.einsum("ii->i", unit)[:] += ridge
    with one_blas_thread:
        try:
            np.linalg.cholesky(unit)
        except np.linalg.LinAlgError:
            return "A is not positive semidefinite, as a sum of z zᵀ is"
    return None


def _label_flaw(
    A: NDArray[np.float64],
    B: NDArray[Any],
    n: int,
    d: int,
    lengths: NDArray[np.float64],
    kappa: float,
    output: OutputLayer,
) -> str | None:
    """Recover Σ z ỹᵀ; the student's own scores may be large, and rounding grows with them."""
    num_classes, width = output.weight.shape
    last = slice(len(A) - d - 1 - width, len(A) - d - 1)
    weight, bias = output.weight.astype(np.float64), output.bias.astype(np.float64)
    scores = A[:, last] @ weight.T + A[:, -1:] * bias
    squares = np.einsum("cw,wc->c", weight, scores[last]) + bias * scores[-1]
    rounding = _ROUNDING * (np.sqrt(n) + np.sqrt(max(0.0, float(squares.max()))) / kappa)
    labelled = (B + scores - scores.mean(axis=1, keepdims=True)) / kappa + A[:, -1:] / num_classes
    counts = labelled[-1]
    slack = rounding * np.sqrt(n)
    if counts.min() < -slack:
        return f"B implies {counts.min():.3g} samples of class {int(counts.argmin())}; expected at least 0"
    limit = lengths[:, None] * (np.sqrt(np.maximum(counts, 0.0) + slack) + rounding)
    excess = np.abs(labelled) - limit
    if excess.max() > 0:
        j, c = np.unravel_index(int(excess.argmax()), excess.shape)
        return (
            f"B implies a sum of {labelled[j, c]:.3g} for feature {j} over the {counts[c]:.0f} samples of class {c}; "
            f"A allows at most {limit[j, c]:.3g}"
        )
    return None


def _noised_flaw(
    A: NDArray[np.float64], B: NDArray[Any], n: int, config: RunConfig, sites: int
) -> str | None:
    """Noise hides all structure: only magnitudes are left to check. Independent noise adds up as √K does."""
    assert config.feature_clip is not None
    assert config.target_clip is not None
    scale, longest = NoiseScale.of(config), longest_feature(config.feature_clip, config.moment_features)
    for name, values, per_sample, noise in (
        ("A", A, longest**2, scale.A),
        ("B", B, longest * config.target_clip, scale.B),
    ):
        limit, largest = (
            n * per_sample * (1 + _ROUNDING) + 10 * noise * np.sqrt(sites),
            float(np.abs(values).max()),
        )
        if largest > limit:
            return f"{name} has a value of magnitude {largest:.3g}; clipping and noise allow {limit:.3g}"
    return None
