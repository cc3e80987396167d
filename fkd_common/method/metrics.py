"""How good predictions are: accuracy, recall, client-matched accuracy, calibration; it never decides."""

from __future__ import annotations

from dataclasses import dataclass
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
    return share(correct(scores, labels))


def correct(scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) which rows have their largest score at the label; arguments as for :func:`accuracy`."""
    return np.asarray(np.asarray(scores).argmax(axis=1) == labels)


def share(hits: NDArray[np.bool_]) -> float:
    """Share of what is true; nan of nothing."""
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


def full_and_matched(
    scores: NDArray[Any], labels: NDArray[Any], class_counts: NDArray[np.int64]
) -> dict[str, float]:
    """Accuracy on a test set, whole ("full") and re-weighted by a client's label shares ("matched").

    Args:
        scores: (n, C) logits or probabilities.
        labels: (n,) integer classes.
        class_counts: (C,) of the client's training part.
    """
    shares = class_counts / max(1, class_counts.sum())
    return {"full": accuracy(scores, labels), "matched": matched_accuracy(scores, labels, shares)}


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Confidence and accuracy of predictions in bins of equal width over (0, 1], each open on the left."""

    count: NDArray[np.int64]
    """(bins,) predictions."""
    confidence: NDArray[np.float64]
    """(bins,) sum of their largest probabilities."""
    hits: NDArray[np.float64]
    """(bins,) how many are right."""

    @classmethod
    def of(cls, p: NDArray[Any], labels: NDArray[Any], bins: int) -> ReliabilityBins:
        """The bins of (n, C) probabilities and (n,) integer classes."""
        confidence = np.asarray(p, dtype=np.float64).max(axis=1)
        hits = (np.asarray(p).argmax(axis=1) == labels).astype(np.float64)
        bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
        return cls(
            np.bincount(bin_of, minlength=bins),
            np.asarray(np.bincount(bin_of, weights=confidence, minlength=bins), np.float64),
            np.asarray(np.bincount(bin_of, weights=hits, minlength=bins), np.float64),
        )

    @property
    def expected_error(self) -> float:
        """Mean gap between confidence and accuracy, weighted by bin size (ECE)."""
        return float(np.abs(self.hits - self.confidence).sum() / self.count.sum())


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
    return ReliabilityBins.of(p, labels, bins).expected_error


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
