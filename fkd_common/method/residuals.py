"""Stage 2 as the paper has it: residuals (Eqs. 10-11), correction ΔS fitted on anchors (Eq. 13); no trees.

Fusing the clients' residuals (Eq. 12) is a weighted average and lives in ``aggregation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fkd_common.blas import one_blas_thread
from fkd_common.choices import ResidualForm
from fkd_common.errors import DataError
from fkd_common.method.probabilities import log_softmax


def residual(
    soft: NDArray[Any], student_logits: NDArray[Any], temperature: float, eps: float, form: ResidualForm
) -> NDArray[np.float64]:
    """What the student is missing of the teacher, in log-probabilities (Eq. 10).

    *aligned*: log(p̃+ε) - log softmax(S/T), zero (up to ε) exactly when stage 1 succeeded;
    *literal*: log(p̃+ε) - (S+ε), as printed.

    Args:
        soft: (n, C) targets p̃ at temperature T.
        student_logits: (n, C) scores S of the averaged student in eval mode.
        temperature: T; the literal form does not use it.
        eps: ε inside the logarithm.
        form: which of the two readings.

    Returns:
        (n, C) float64.
    """
    log_soft = np.log(np.asarray(soft, dtype=np.float64) + eps)
    if form is ResidualForm.ALIGNED:
        return np.asarray(log_soft - log_softmax(student_logits, temperature))
    return np.asarray(log_soft - (np.asarray(student_logits, dtype=np.float64) + eps))


def prepare_residual(
    r: NDArray[Any], present: NDArray[np.int64], clip: float, divisor: float
) -> NDArray[np.float64]:
    """Regression targets of the residual learners (Eq. 11).

    Centred over locally present classes, 0 for absent ones (log ε would drag rare classes down for
    everybody), clipped to [-clip, clip], divided by T_r; in this order.

    Args:
        r: (n, C) residuals of Eq. 10.
        present: global ids of the classes present locally.
        clip: largest absolute value before division.
        divisor: T_r.

    Returns:
        (n, C) float64.
    """
    own = np.asarray(r, dtype=np.float64)[:, present]
    prepared = np.zeros(r.shape)
    prepared[:, present] = np.clip(own - own.mean(axis=1, keepdims=True), -clip, clip) / divisor
    return prepared


@dataclass(frozen=True, eq=False)
class Standardiser:
    """Shift and scale that give the anchor embeddings mean 0 and standard deviation 1 in every dimension."""

    mean: NDArray[np.float64]
    """(d,)"""
    std: NDArray[np.float64]
    """(d,) population standard deviation; 1 where a dimension is constant."""

    @classmethod
    def of(cls, h: NDArray[Any]) -> Self:
        """Measure (n, d) embeddings; a standard deviation below 1e-6 counts as constant."""
        embeddings = np.asarray(h, dtype=np.float64)
        std = embeddings.std(axis=0)
        return cls(mean=embeddings.mean(axis=0), std=np.where(std < 1e-6, 1.0, std))

    def apply(self, h: NDArray[Any]) -> NDArray[np.float32]:
        """Standardised embeddings h̄, (n, d) float32."""
        return np.asarray((np.asarray(h, dtype=np.float64) - self.mean) / self.std, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class AnchorCorrection:
    """ΔS as a linear function of the standardised embedding (Eq. 13)."""

    standardiser: Standardiser
    coefficients: NDArray[np.float64]
    """(d, C)"""
    intercept: NDArray[np.float64]
    """(C,)"""
    strength: float
    """Ridge strength λ that was chosen."""
    loo_r2: float
    """Share of the fused residuals' variance explained under leave-one-out; 0 when there is none."""

    def apply(self, h: NDArray[Any]) -> NDArray[np.float32]:
        """ΔS for (n, d) embeddings, (n, C) float32; the corrected scores are S + λ_res·ΔS."""
        standardised = self.standardiser.apply(h).astype(np.float64)
        return np.asarray(standardised @ self.coefficients + self.intercept, dtype=np.float32)


def fit_anchor_correction(
    anchor_embeddings: NDArray[Any], fused: NDArray[Any], lambda_: float | Sequence[float]
) -> AnchorCorrection:
    """Ridge from standardised anchor embeddings to the fused residuals R̄, intercept unpenalised (Eq. 13).

    Minimises ‖R̄ - (X·B + b)‖² + λ‖B‖². Of several λ the one with the least leave-one-out error is taken (the
    first of equals); that error is exact in closed form, e_i / (1 - H_ii) with H the hat matrix. BLAS runs
    single-threaded, so both sides compute the same bits on like machines and only R̄ has to travel.

    Args:
        anchor_embeddings: (m, d) embeddings of the anchors.
        fused: (m, C) fused residuals R̄.
        lambda_: ridge strength, or several to choose from; each above 0.

    Returns:
        The fitted correction.

    Raises:
        DataError: there are fewer than 2 anchors.
        ValueError: the two arrays disagree about the number of anchors.
    """
    anchors = anchor_embeddings.shape[0]
    if fused.shape[0] != anchors:
        raise ValueError(f"expected residuals for {anchors} anchors, got {fused.shape[0]}")
    if anchors < 2:
        raise DataError(f"expected at least 2 anchors, got {anchors}: publish a larger anchor set")
    grid = [float(lambda_)] if isinstance(lambda_, int | float) else [float(value) for value in lambda_]
    standardiser = Standardiser.of(anchor_embeddings)
    X = standardiser.apply(anchor_embeddings).astype(np.float64)
    Y = np.asarray(fused, dtype=np.float64)
    x_mean, y_mean = X.mean(axis=0), Y.mean(axis=0)
    Y = Y - y_mean
    with one_blas_thread:
        U, s, Vt = np.linalg.svd(X - x_mean, full_matrices=False)
        projected = U.T @ Y
        errors = [_leave_one_out_error(U, s, projected, Y, value) for value in grid]
        best = int(np.argmin(errors))
        coefficients = Vt.T @ ((s / (s**2 + grid[best]))[:, None] * projected)
        intercept = y_mean - x_mean @ coefficients
    variance = float(np.sum(Y**2))
    return AnchorCorrection(
        standardiser=standardiser,
        coefficients=coefficients,
        intercept=intercept,
        strength=grid[best],
        loo_r2=1.0 - errors[best] / variance if variance > 0.0 else 0.0,
    )


def _leave_one_out_error(
    U: NDArray[np.float64],
    s: NDArray[np.float64],
    projected: NDArray[np.float64],
    Y: NDArray[np.float64],
    strength: float,
) -> float:
    """Sum of squared leave-one-out errors of centred ridge, from the SVD of the centred design."""
    shrink = s**2 / (s**2 + strength)
    hat = 1.0 / U.shape[0] + (U**2) @ shrink  # 1/m is the intercept's share
    left_out = (Y - U @ (shrink[:, None] * projected)) / (1.0 - hat)[:, None]
    return float(np.sum(left_out**2))
