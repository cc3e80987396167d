"""Calibration C_k of teacher probabilities on the validation split (before Eq. 3); no teacher lives here.

Platt scaling per class, one against the rest, on log-odds u_c = log p_c - log(1 - p_c):
p̂_c ∝ σ(a_c·u_c + b_c) with a_c >= 0, fitted to Platt's smoothed targets t⁺ = (N⁺+1)/(N⁺+2), t⁻ = 1/(N⁻+2)
by Newton's method (Lin, Lin and Weng, "A note on Platt's probabilistic outputs", Machine Learning 68, 2007).
Alternatively one temperature for all classes, p̂ = softmax(log p / T), or nothing at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import Calibrator
from fkd_common.method.probabilities import clip_probabilities, log_softmax, softmax

_MIN_PER_SIDE = 2
"""A class needs this many positives and as many negatives, or it stays as it is."""
_TEMPERATURE_RANGE = (0.1, 10.0)
"""A separable validation split has no finite best temperature: the search stops at these ends."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted calibrator over the C_loc classes present at a client."""

    slopes: NDArray[np.float64]
    """(C_loc,) a_c >= 0; 1 where the class is left alone."""
    offsets: NDArray[np.float64]
    """(C_loc,) b_c; 0 where the class is left alone."""
    identity: NDArray[np.bool_]
    """(C_loc,) True where the class keeps its raw probability before renormalising."""
    temperature: float
    """One temperature for all classes; 1 unless `temperature` scaling was asked for."""

    def apply(self, p: NDArray[Any]) -> NDArray[np.float64]:
        """Calibrated probabilities p̂.

        Args:
            p: (n, C_loc) teacher probabilities.

        Returns:
            (n, C_loc) float64, rows sum to 1.
        """
        if self.temperature != 1.0:
            return softmax(np.log(clip_probabilities(p)), self.temperature)
        raw = np.asarray(p, dtype=np.float64)
        scores = np.where(self.identity, raw, _sigmoid(self.slopes * _log_odds(raw) + self.offsets))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def fit_calibration(
    p_val: NDArray[Any], y_val_local: NDArray[Any], kind: Calibrator, min_val: int
) -> Calibration:
    """Fit C_k on the validation split.

    Args:
        p_val: (v, C_loc) teacher probabilities on D_val.
        y_val_local: (v,) integer labels in 0..C_loc-1, positions among the classes present locally.
        kind: `platt`, `temperature` or `none`.
        min_val: with fewer validation samples than this the result is the identity.

    Returns:
        The calibrator; a class with fewer than 2 positives or 2 negatives is left alone.

    Raises:
        ValueError: a label lies outside 0..C_loc-1.
    """
    samples, num_classes = p_val.shape
    labels = np.asarray(y_val_local, dtype=np.int64)
    if labels.shape != (samples,) or np.any((labels < 0) | (labels >= num_classes)):
        raise ValueError(f"expected {samples} labels in 0..{num_classes - 1}, one per row of p_val")
    slopes, offsets = np.ones(num_classes), np.zeros(num_classes)
    identity = np.ones(num_classes, dtype=np.bool_)
    temperature = 1.0
    if samples >= max(min_val, 1):
        if kind is Calibrator.TEMPERATURE:
            temperature = _fit_temperature(p_val, labels)
        elif kind is Calibrator.PLATT:
            log_odds = _log_odds(p_val)
            for c in range(num_classes):
                positive = labels == c
                if min(positive.sum(), (~positive).sum()) >= _MIN_PER_SIDE:
                    slopes[c], offsets[c] = _fit_platt(log_odds[:, c], positive)
                    identity[c] = False
    return Calibration(slopes=slopes, offsets=offsets, identity=identity, temperature=temperature)


def expand_to_global(
    p: NDArray[Any], present: NDArray[np.int64], num_classes: int, n_val: int
) -> NDArray[np.float64]:
    """Spread probabilities of present classes onto all classes; an absent one is rare, never impossible.

    Args:
        p: (n, C_loc) probabilities over the present classes.
        present: (C_loc,) their global class ids.
        num_classes: C.
        n_val: validation samples N_val; an absent class gets 1/(N_val + 2) before renormalising.

    Returns:
        (n, C) float64, positive where p is, rows sum to 1.
    """
    spread = np.full((p.shape[0], num_classes), 1.0 / (n_val + 2))
    spread[:, present] = p
    return np.asarray(spread / spread.sum(axis=1, keepdims=True))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -x))


def _log_odds(p: NDArray[Any]) -> NDArray[np.float64]:
    clipped = clip_probabilities(p)
    return np.log(clipped) - np.log1p(-clipped)


def _cross_entropy(x: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    return float(np.sum(np.logaddexp(0.0, x) - targets * x))


def _fit_platt(u: NDArray[np.float64], positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and offset minimising the cross-entropy of σ(a·u + b) under a >= 0."""
    n_pos = int(positive.sum())
    n_neg = positive.size - n_pos
    targets = np.where(positive, (n_pos + 1.0) / (n_pos + 2.0), 1.0 / (n_neg + 2.0))
    share = float(targets.mean())
    flat = np.array([0.0, np.log(share / (1.0 - share))])  # the best line of slope 0
    design = np.stack([u, np.ones_like(u)], axis=1)
    line = _newton(design, targets, flat)
    # The objective is convex: if its minimum has a negative slope, the constrained one lies on slope 0.
    slope, offset = line if line[0] >= 0.0 else flat
    return float(slope), float(offset)


def _newton(
    design: NDArray[np.float64], targets: NDArray[np.float64], start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Newton's method with backtracking for a logistic regression on soft targets."""
    line = start
    loss = _cross_entropy(design @ line, targets)
    for _ in range(100):
        q = _sigmoid(design @ line)
        gradient = design.T @ (q - targets)
        if np.abs(gradient).max() < 1e-9 * targets.size:
            break
        # The tiny ridge keeps the step defined when all log-odds are equal.
        hessian = design.T @ (design * (q * (1.0 - q))[:, None]) + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while (candidate := _cross_entropy(design @ (line - size * step), targets)) > loss and size > 1e-10:
            size /= 2.0
        if candidate >= loss:
            break
        line, loss = line - size * step, candidate
    return line


def _fit_temperature(p_val: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Temperature of least negative log-likelihood, by golden-section search on log T."""
    logits = np.log(clip_probabilities(p_val))
    if logits.shape[1] < 2:
        return 1.0
    rows = np.arange(labels.size)

    def loss(log_t: float) -> float:
        return -float(log_softmax(logits, float(np.exp(log_t)))[rows, labels].mean())

    # The loss is convex in 1/T, hence has one valley in log T.
    low, high = (float(np.log(end)) for end in _TEMPERATURE_RANGE)
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    left, right = high - golden * (high - low), low + golden * (high - low)
    loss_left, loss_right = loss(left), loss(right)
    while high - low > 1e-6:
        if loss_left <= loss_right:
            high, right, loss_right = right, left, loss_left
            left = high - golden * (high - low)
            loss_left = loss(left)
        else:
            low, left, loss_left = left, right, loss_right
            right = low + golden * (high - low)
            loss_right = loss(right)
    return float(np.exp((low + high) / 2.0))
