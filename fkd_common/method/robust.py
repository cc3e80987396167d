"""Estimates that a minority of liars cannot move far: median, trimmed mean, norm bounds; weighs no client.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018 (coordinate-wise
median and trimmed mean); Sun et al., "Can You Really Backdoor Federated Learning?", 2019 (norm bounds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import Aggregation

_CHUNK = 1 << 16
"""Coordinates combined at a time, so that float64 copies stay small."""


def combine_coordinates(
    values: Sequence[NDArray[Any]], rule: Aggregation, trim_fraction: float
) -> NDArray[Any]:
    """Coordinate-wise median or trimmed mean of what K clients sent.

    Both count every client alike. Weights would be n_k and r_k, which clients claim themselves: a weighted median
    belongs to whoever claims half of the samples. The price is paid under honest but uneven sizes, where a small
    site counts as much as a large one.

    Args:
        values: K ≥ 1 arrays of one shape and dtype.
        rule: `median` (of an even number, the mean of the middle two) or `trimmed_mean`.
        trim_fraction: share β in [0, 0.5) of clients left out at each end: ⌊βK⌋ of them.

    Returns:
        Same shape; float64, and of integers (step counters) the maximum in their own dtype. Values that are all at
        least 0, such as variances, give a result of at least 0.

    Raises:
        ValueError: there are no values, or the rule is a mean.
    """
    if not values:
        raise ValueError("expected at least one client, got none")
    if np.issubdtype(values[0].dtype, np.integer):
        return np.asarray(np.max(np.stack(values), axis=0))
    combined = np.empty(values[0].size)
    flat = [value.reshape(-1) for value in values]
    for start in range(0, combined.size, _CHUNK):
        block = np.stack([value[start : start + _CHUNK] for value in flat]).astype(np.float64)
        combined[start : start + _CHUNK] = _centre_of(block, rule, trim_fraction)
    return combined.reshape(values[0].shape)


def _centre_of(block: NDArray[np.float64], rule: Aggregation, trim_fraction: float) -> NDArray[np.float64]:
    if rule is Aggregation.MEDIAN:
        return np.asarray(np.median(block, axis=0))
    if rule is Aggregation.TRIMMED_MEAN:
        trimmed = num_trimmed(len(block), trim_fraction)
        ordered = np.sort(block, axis=0)
        return np.asarray(ordered[trimmed : len(block) - trimmed].mean(axis=0))
    raise ValueError(f"{rule} is not a coordinate-wise rule")


def num_trimmed(num_clients: int, trim_fraction: float) -> int:
    """⌊βK⌋ clients left out at each end, of which at least one stays; 0.29 of 100 are 29 in spite of rounding."""
    return int(np.floor(trim_fraction * num_clients + 1e-9))


def update_norm(state: Mapping[str, NDArray[Any]], reference: Mapping[str, NDArray[Any]]) -> float:
    """||W_k - W_t||: L2 norm of the difference over all floating-point tensors, in float64."""
    squares = 0.0
    for name, tensor in state.items():
        if not np.issubdtype(tensor.dtype, np.integer):
            difference = np.asarray(tensor, np.float64) - np.asarray(reference[name], np.float64)
            squares += float(np.vdot(difference, difference))
    return float(np.sqrt(squares))


def clip_factors(norms: NDArray[Any], bound: float) -> NDArray[np.float64]:
    """What to multiply updates with so that none is longer than a multiple of the median length.

    Args:
        norms: (K,) lengths of the updates.
        bound: the multiple.

    Returns:
        (K,) factors in [0, 1]; 1 for an update within the bound.
    """
    lengths = np.asarray(norms, dtype=np.float64)
    longest = bound * float(np.median(lengths))
    return np.divide(longest, lengths, out=np.ones_like(lengths), where=lengths > longest)


def shortened(
    state: Mapping[str, NDArray[Any]], reference: Mapping[str, NDArray[Any]], factor: float
) -> dict[str, NDArray[Any]]:
    """W_t + c·(W_k - W_t): a student whose update is cut to a factor c of its length.

    Args:
        state: W_k; integer tensors are left as they are.
        reference: W_t.
        factor: c in [0, 1]; 1 returns the student as it is, bit for bit.

    Returns:
        Float64 tensors. Variances stay at least 0, also after rounding.
    """
    if factor == 1.0:
        return dict(state)
    cut: dict[str, NDArray[Any]] = {}
    for name, tensor in state.items():
        if np.issubdtype(tensor.dtype, np.integer):
            cut[name] = tensor
            continue
        start = np.asarray(reference[name], np.float64)
        cut[name] = start + factor * (np.asarray(tensor, np.float64) - start)
        if name.endswith("running_var"):
            np.maximum(cut[name], 0.0, out=cut[name])
    return cut
