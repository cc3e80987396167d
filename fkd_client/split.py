"""The stratified split of a shard into training part and D_val; indices only, no data touched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_CLASS_FOR_VAL = 5
"""A class with at least this many samples gives at least one of them to D_val."""


def split_train_val(
    labels: NDArray[np.integer], fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split sample indices, class by class, into a training and a validation part.

    Each class gives its rounded share; a class of at least :data:`MIN_CLASS_FOR_VAL` gives at least one
    (unless `fraction` is 0), and every class keeps at least one sample for training.

    Args:
        labels: (n,) class indices.
        fraction: share held out, in [0, 1).
        seed: equal seeds give equal splits; one class's draw does not depend on the other classes.

    Returns:
        (train, val) sorted int64 indices that together are 0 … n−1.
    """
    labels = np.asarray(labels)
    held_out: list[NDArray[np.int64]] = []
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c).astype(np.int64)
        count = round(len(members) * fraction)
        if fraction > 0 and len(members) >= MIN_CLASS_FOR_VAL:
            count = max(1, count)
        count = min(count, len(members) - 1)
        rng = np.random.default_rng([seed, int(c)])
        held_out.append(rng.permutation(members)[:count])
    val = np.sort(np.concatenate(held_out)) if held_out else np.empty(0, np.int64)
    train = np.setdiff1d(np.arange(len(labels), dtype=np.int64), val, assume_unique=True)
    return train, val


def stratified_folds(labels: NDArray[np.integer], folds: int, seed: int) -> NDArray[np.int64]:
    """Assign each sample to one of `folds` folds, every class spread evenly over them.

    Args:
        labels: (n,) class indices.
        folds: number of folds, at least 2.
        seed: equal seeds give equal folds.

    Returns:
        (n,) fold of each sample, 0 … folds−1. The dealing goes on from class to class, so that
        small classes do not all land in fold 0.
    """
    labels = np.asarray(labels)
    assignment = np.empty(len(labels), np.int64)
    dealt = 0
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        order = np.random.default_rng([seed, int(c), 1]).permutation(len(members))
        assignment[members[order]] = (dealt + np.arange(len(members))) % folds
        dealt += len(members)
    return assignment
