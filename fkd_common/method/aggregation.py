"""Averages of uploads: client weights (Eq. 15), students (Eq. 14), residuals (Eq. 12); validates no client.

Both averages stream: one upload at a time enters a running mean in float64, so memory is one model whatever
the number of clients. A running mean also returns a lone client's values bit for bit. Floating-point addition
depends on order, so callers add clients in sorted order; then arrival order cannot change a bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def client_weights(n: NDArray[Any], r: NDArray[Any], tau: float) -> NDArray[np.float64]:
    """α_k = n_k·max(r_k, τ_r) / Σ_j n_j·max(r_j, τ_r) over the clients that returned (Eq. 15).

    Args:
        n: (K,) training samples n_k.
        r: (K,) reliabilities r_k.
        tau: floor τ_r.

    Returns:
        (K,) float64, sums to 1.

    Raises:
        ValueError: no weight is positive, or one is not a number.
    """
    weights = np.asarray(n, dtype=np.float64) * np.maximum(np.asarray(r, dtype=np.float64), tau)
    total = weights.sum()
    if not (np.isfinite(total) and total > 0.0):
        raise ValueError(f"expected client weights with a positive sum, got {weights.tolist()}")
    return np.asarray(weights / total)


def capped_shares(weights: NDArray[Any], cap: float) -> NDArray[np.float64]:
    """Shares of a sum in which nobody has more than `cap`: what is cut goes to the others in proportion.

    Water-filling: whoever is above the cap is set to it, the rest is divided among the others by their weights,
    until nobody is above. The result is exact, and the only one that keeps the order and the ratios below the cap.

    Args:
        weights: (K,) weights of at least 0 with a positive sum, such as α_k or n_k.
        cap: largest share, above 0. Below one over the number of positive weights it cannot be kept, and those
            weights become equal; from 1 on it changes nothing.

    Returns:
        (K,) float64, sums to 1; a weight of 0 stays 0.
    """
    values = np.asarray(weights, dtype=np.float64)
    positive = values > 0.0
    if cap * np.count_nonzero(positive) <= 1.0:
        return positive / np.count_nonzero(positive)
    at_cap = np.zeros_like(positive)
    while True:
        free = positive & ~at_cap
        shares = np.where(free, values * (1.0 - cap * np.count_nonzero(at_cap)) / values[free].sum(), 0.0)
        above = free & (shares > cap)
        if not above.any():
            return np.where(at_cap, cap, shares)
        at_cap |= above


def drop_unreliable(r: NDArray[Any], drop_below: float | None) -> NDArray[np.bool_]:
    """Which clients stay in the average: those with r_k >= `drop_below`.

    Args:
        r: (K,) reliabilities r_k.
        drop_below: threshold; None keeps everybody.

    Returns:
        (K,) mask, True for a client that stays.
    """
    reliabilities = np.asarray(r, dtype=np.float64)
    return np.asarray(reliabilities >= (-np.inf if drop_below is None else drop_below))


_PIECE = 1 << 16
"""Values moved at a time: 512 KiB, which stay in the processor's cache."""


class WeightedAverage:
    """W_{t+1} = Σ α_k W_k, one client at a time (Eq. 14).

    Weights need not sum to 1: the result is divided by their sum. Running mean and variance of BatchNorm are
    averaged like weights; integer tensors (`num_batches_tracked`) take the maximum.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._mean: dict[str, NDArray[Any]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, state: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Fold one client in.

        Args:
            state: named tensors of the student; not kept.
            weight: α_k, or any number proportional to it; a client of weight 0 leaves no trace.

        Raises:
            ValueError: the weight is negative or not finite, or the layout differs from the first client's.
        """
        if not (np.isfinite(weight) and weight >= 0.0):
            raise ValueError(f"expected a finite weight of at least 0, got {weight}")
        if weight == 0.0:
            return
        self._total += weight
        if not self._mean:
            self._dtypes = {name: tensor.dtype for name, tensor in state.items()}
            self._mean = {name: _accumulator(tensor) for name, tensor in state.items()}
            return
        self._check_same_layout(state)
        share = weight / self._total
        for name, mean in self._mean.items():
            if np.issubdtype(mean.dtype, np.integer):
                np.maximum(mean, state[name], out=mean)
            else:
                _move(mean, state[name], share)

    def result(self) -> dict[str, NDArray[Any]]:
        """The average, in the names, shapes and dtypes of the first client; it is handed over, and nothing stays.

        Raises:
            ValueError: nothing of positive weight was added.
        """
        if not self._mean:
            raise ValueError("expected at least one client of positive weight, got none")
        self._total = 0.0
        # One at a time: a tensor in float64 goes as soon as it is there in its own dtype.
        return {
            name: self._mean.pop(name).astype(self._dtypes[name], copy=False) for name in list(self._mean)
        }

    def _check_same_layout(self, state: Mapping[str, NDArray[Any]]) -> None:
        expected = {name: mean.shape for name, mean in self._mean.items()}
        actual = {name: tensor.shape for name, tensor in state.items()}
        if actual != expected:
            odd = sorted({name for name, _ in expected.items() ^ actual.items()})
            raise ValueError(f"expected the tensors of the first client, these differ: {', '.join(odd)}")


def _move(mean: NDArray[np.float64], values: NDArray[Any], share: float) -> None:
    """mean += (values - mean)·share, piece by piece: float64 copies stay small, and the bits are the same."""
    flat, given = mean.reshape(-1), np.asarray(values).reshape(-1)
    buffer = np.empty(min(_PIECE, flat.size))
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE]
        change = buffer[: piece.size]
        change[...] = given[start : start + _PIECE]
        change -= piece
        change *= share
        piece += change


class ResidualFusion:
    """R̄ = Σ ω_k R̂_k, one client at a time (Eq. 12).

    Weights by size are n_k; class-aware weights are n_{k,c}, one per class. Either way a column is divided by
    the sum of its weights, and a column nobody has weight in is 0.
    """

    def __init__(self) -> None:
        self._mean: NDArray[np.float64] | None = None
        self._total: NDArray[np.float64] = np.zeros(0)

    def add(self, residuals: NDArray[Any], weight: float | NDArray[Any]) -> None:
        """Fold one client in.

        Args:
            residuals: (m, C) predictions R̂_k on the anchors; not kept.
            weight: n_k, or (C,) n_{k,c}; at least 0.

        Raises:
            ValueError: a weight is negative or not finite, or the shape differs from the first client's.
        """
        weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), residuals.shape[1:])
        if not np.all(np.isfinite(weights) & (weights >= 0.0)):
            raise ValueError(f"expected finite weights of at least 0, got {np.asarray(weight).tolist()}")
        if self._mean is None:
            self._mean = np.zeros(residuals.shape)
            self._total = np.zeros(residuals.shape[1])
        if residuals.shape != self._mean.shape:
            raise ValueError(f"expected residuals of shape {self._mean.shape}, got {residuals.shape}")
        self._total = self._total + weights
        share = np.divide(weights, self._total, out=np.zeros_like(self._total), where=self._total > 0.0)
        self._mean += (np.asarray(residuals, dtype=np.float64) - self._mean) * share

    def result(self) -> NDArray[np.float32]:
        """The fused residuals R̄, (m, C) float32.

        Raises:
            ValueError: nothing was added.
        """
        if self._mean is None:
            raise ValueError("expected residuals of at least one client, got none")
        return self._mean.astype(np.float32)


def _accumulator(tensor: NDArray[Any]) -> NDArray[Any]:
    """A contiguous copy in the dtype the average is kept in: integers as they are, everything else float64."""
    dtype = tensor.dtype if np.issubdtype(tensor.dtype, np.integer) else np.float64
    return np.array(tensor, dtype=dtype, order="C")
