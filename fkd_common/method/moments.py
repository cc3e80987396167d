"""Stage 2, pooled moments: the correction the pooled data would give, from sums alone; no cohort, no vote.

z = [φ(h); h̄; 1] are the student's hidden activations, the standardised embedding and a constant;
r = t - centre(S(h)) is Eq. 10's residual in the score domain, with targets t = κ(ỹ - 1/C).
Clients send A_k = Σ z zᵀ and B_k = Σ z rᵀ, which add up exactly, and V = (Σ A_k + λI)⁻¹ Σ B_k corrects
every client alike: S̃ = centre(S) + zᵀV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fkd_common.blas import one_blas_thread
from fkd_common.choices import MomentFeatures

_Layer = TypeVar("_Layer")

_CHUNK = 4096
"""Rows turned into float64 at a time."""


def moment_vector(
    hidden: Sequence[NDArray[Any]], embedding_standardised: NDArray[Any], which: MomentFeatures
) -> NDArray[np.float32]:
    """Features z = [selected hidden layers…; h̄; 1].

    Args:
        hidden: per layer (n, h_i) activations of the student in eval mode, first layer first.
        embedding_standardised: (n, d) h̄, standardised with the anchors' mean and standard deviation.
        which: all hidden layers, the last one, or none.

    Returns:
        (n, p) float32; the last d + 1 columns, [h̄; 1], do not depend on the student.
    """
    constant = np.ones((embedding_standardised.shape[0], 1), dtype=np.float32)
    parts = [*_selected(hidden, which), embedding_standardised, constant]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def num_moment_features(hidden: Sequence[int], d: int, which: MomentFeatures) -> int:
    """Length p of z for hidden layers of these widths and a d-dimensional embedding."""
    return sum(_selected(hidden, which)) + d + 1


def moment_targets(
    labels: NDArray[Any], oof: NDArray[Any] | None, num_classes: int, kappa: float, beta: float
) -> NDArray[np.float64]:
    """Targets t = κ(ỹ - 1/C) with ỹ = (1-β)·onehot(y) + β·p̂_oof.

    Args:
        labels: (n,) integer classes y.
        oof: (n, C) calibrated out-of-fold teacher probabilities at T = 1; may be None when β = 0.
        num_classes: C.
        kappa: scale κ in logits.
        beta: share β of the teacher.

    Returns:
        (n, C) float64, rows sum to 0.

    Raises:
        ValueError: β is positive and there are no teacher probabilities.
    """
    mixed = (1.0 - beta) * np.eye(num_classes)[labels]
    if beta > 0.0:
        if oof is None:
            raise ValueError(f"expected out-of-fold probabilities for beta = {beta}, got none")
        mixed += beta * np.asarray(oof, dtype=np.float64)
    return np.asarray(kappa * (mixed - 1.0 / num_classes))


def centre(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Scores minus their mean over classes, (n, C) float64: the part of S that softmax sees."""
    scores = np.asarray(logits, dtype=np.float64)
    return np.asarray(scores - scores.mean(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over samples; the sums of two clients add up to those of their pooled data."""

    A: NDArray[np.float64]
    """(p, p) Σ z zᵀ, symmetric."""
    B: NDArray[np.float64]
    """(p, C) Σ z rᵀ."""
    n: int
    """Samples summed over."""

    def __add__(self, other: Moments) -> Moments:
        return Moments(A=self.A + other.A, B=self.B + other.B, n=self.n + other.n)


def accumulate(z: NDArray[Any], residual: NDArray[Any], chunk: int = _CHUNK) -> Moments:
    """A = Σ z zᵀ and B = Σ z rᵀ over the given samples, in float64.

    Args:
        z: (n, p) features of :func:`moment_vector`.
        residual: (n, C) r = t - centre(S).
        chunk: rows turned into float64 at a time, to bound memory.

    Returns:
        The moments of these n samples.
    """
    n, p = z.shape
    A, B = np.zeros((p, p)), np.zeros((p, residual.shape[1]))
    for start in range(0, n, chunk):
        rows = z[start : start + chunk].astype(np.float64)
        A += rows.T @ rows
        B += rows.T @ residual[start : start + chunk].astype(np.float64)
    return Moments(A=A, B=B, n=n)


def pack_symmetric(A: NDArray[Any], known_block: int) -> NDArray[Any]:
    """The part of a symmetric matrix that has to travel: its upper triangle, row by row.

    Args:
        A: (p, p) symmetric.
        known_block: size of the trailing block the receiver already has (d + 1 for [h̄; 1]); 0 sends all.

    Returns:
        1-D, same dtype: q(q+1)/2 + q·known_block values with q = p - known_block.
    """
    rows = range(A.shape[0] - known_block)
    return np.concatenate([A[i, i:] for i in rows]) if rows else np.empty(0, dtype=A.dtype)


def unpack_symmetric(values: NDArray[Any], p: int, block: NDArray[Any] | None) -> NDArray[np.float64]:
    """Rebuild the matrix :func:`pack_symmetric` took apart.

    Args:
        values: 1-D packed values.
        p: size of the matrix.
        block: (known_block, known_block) trailing block known beforehand, or None if all was sent.

    Returns:
        (p, p) float64, exactly symmetric if `block` is.

    Raises:
        ValueError: the number of values does not fit.
    """
    known = 0 if block is None else block.shape[0]
    q = p - known
    expected = q * (q + 1) // 2 + q * known
    if values.shape != (expected,):
        raise ValueError(f"expected {expected} packed values for p = {p}, got shape {values.shape}")
    A = np.empty((p, p))
    start = 0
    for i in range(q):  # row by row: index arrays would be twice as large as the matrix
        row = values[start : start + p - i]
        A[i, i:] = row
        A[i:, i] = row
        start += p - i
    if block is not None:
        A[q:, q:] = block
    return A


def make_definite(A: NDArray[np.float64], lambda_: float) -> None:
    """Make A + λI positive definite in place: where it is not, A gets the smallest of a few ridges.

    Rounding leaves sums of z zᵀ a little indefinite, and so may a liar, within the tolerance that ``moment_checks``
    leaves for it: A_k plus a hundredth of its diagonal is positive definite, and so is the sum.

    Args:
        A: (p, p) summed moments Σ A_k, symmetric, float64; unchanged if A + λI is positive definite.
        lambda_: the smallest ridge strength λ > 0 that A will be solved with.

    Raises:
        ValueError: none of the ridges is enough: A is no sum of moments.
    """
    diagonal = np.einsum("ii->i", A)
    kept = diagonal.copy()
    for share in (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        diagonal[:] = kept + share * np.abs(kept) + lambda_
        try:
            with one_blas_thread:
                np.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            continue
        diagonal[:] = kept + share * np.abs(kept)
        return
    diagonal[:] = kept
    raise ValueError("the summed moments are not positive semidefinite, as sums of z zᵀ are")


def solve(A: NDArray[Any], B: NDArray[Any], lambda_: float) -> NDArray[np.float64]:
    """V = (A + λI)⁻¹ B, with BLAS on one thread so that a machine always gives the same bits.

    Args:
        A: (p, p) summed moments Σ A_k, writeable; its diagonal is changed and restored.
        B: (p, C) summed moments Σ B_k.
        lambda_: ridge strength λ > 0.

    Returns:
        (p, C) float64.
    """
    ridged = np.asarray(A, dtype=np.float64)
    diagonal = np.einsum(
        "ii->i", ridged
    )  # a view: a second matrix of this size is memory a server must not spend
    kept = diagonal.copy()
    try:
        diagonal += lambda_
        with one_blas_thread:
            return np.asarray(np.linalg.solve(ridged, np.asarray(B, dtype=np.float64)))
    finally:
        diagonal[:] = kept


def apply_moments(z: NDArray[Any], V: NDArray[Any]) -> NDArray[np.float32]:
    """ΔS(h) = zᵀV; the corrected scores are centre(S) + ΔS.

    Args:
        z: (n, p) features of :func:`moment_vector`.
        V: (p, C) solution of :func:`solve`.

    Returns:
        (n, C) float32.
    """
    delta = np.empty((z.shape[0], V.shape[1]), dtype=np.float32)
    for start in range(0, z.shape[0], _CHUNK):
        rows = slice(start, start + _CHUNK)
        delta[rows] = z[rows].astype(np.float64) @ V
    return delta


def _selected(layers: Sequence[_Layer], which: MomentFeatures) -> Sequence[_Layer]:
    if which is MomentFeatures.HIDDEN:
        return layers
    return layers[-1:] if which is MomentFeatures.LAST else layers[:0]
