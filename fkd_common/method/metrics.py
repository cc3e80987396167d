"""How good predictions are: accuracy, recall, client-matched accuracy, calibration; it never decides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def accuracy(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of rows whose largest score is at the label.

    Args:
        scores: (n, C) logits or probabilities; the first of equal scores counts as largest.
        labels: (n,) integer classes.

    Returns:
        Value in [0, 1]; nan without samples.
    """
    hits = np.asarray(scores).argmax(axis=1) == labels
    return float(hits.mean()) if hits.size else float("nan")


def per_class_recall(scores: NDArray[Any], labels: NDArray[Any], num_classes: int) -> NDArray[np.float64]:
    """Accuracy within each class.

    Args:
        scores: (n, C) logits or probabilities.
        labels: (n,) integer classes.
        num_classes: C.

    Returns:
        (C,) float64; nan for a class without samples.
    """
    hits = np.asarray(scores).argmax(axis=1) == labels
    counts = np.bincount(labels, minlength=num_classes)
    correct = np.bincount(labels[hits], minlength=num_classes).astype(np.float64)
    recall = np.full(num_classes, np.nan)
    np.divide(correct, counts, out=recall, where=counts > 0)
    return recall


def matched_accuracy(scores: NDArray[Any], labels: NDArray[Any], class_shares: NDArray[Any]) -> float:
    """Accuracy on a test set re-weighted to a client's label shares: Σ_c share_c · recall_c.

    Args:
        scores: (n, C) logits or probabilities.
        labels: (n,) integer classes.
        class_shares: (C,) label shares or counts of the client, renormalised over classes with test samples.

    Returns:
        Value in [0, 1]; nan when the client has none of the classes tested.
    """
    shares = np.asarray(class_shares, dtype=np.float64)
    recall = per_class_recall(scores, labels, shares.size)
    tested = ~np.isnan(recall)
    total = shares[tested].sum()
    return float(shares[tested] @ recall[tested] / total) if total > 0.0 else float("nan")


def expected_calibration_error(p: NDArray[Any], labels: NDArray[Any], bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over equal-width confidence bins, weighted by bin size (ECE).

    Args:
        p: (n, C) probabilities.
        labels: (n,) integer classes.
        bins: number of bins over (0, 1], each open on the left.

    Returns:
        Value in [0, 1]; nan without samples.
    """
    if len(labels) == 0:
        return float("nan")
    confidence = np.asarray(p, dtype=np.float64).max(axis=1)
    hits = (np.asarray(p).argmax(axis=1) == labels).astype(np.float64)
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(bin_of, weights=hits - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def negative_log_likelihood(p: NDArray[Any], labels: NDArray[Any]) -> float:
    """Mean of -log p_y in nats.

    Args:
        p: (n, C) probabilities; values below the float64 resolution count as that, so the result is finite.
        labels: (n,) integer classes.

    Returns:
        Nats per sample; nan without samples.
    """
    if len(labels) == 0:
        return float("nan")
    chosen = np.asarray(p, dtype=np.float64)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).eps)).mean())
