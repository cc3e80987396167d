"""Real numbers as integers modulo 2^64, so that masks can hide them and sums stay exact; no masks here.

A value x travels as round(x·2^20) modulo 2^64, negative ones as two's complement. Rounding moves a value by at most
2^-21, a sum over K participants by at most K·2^-21; addition itself is exact, so the order of summands is irrelevant.
20 fraction bits leave ±2^43 ≈ 8.8·10^12 for a whole sum: with 10 participants each value may reach 8.8·10^11, such
as a weight of magnitude 10^6 times n_k = 880,000.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FRACTION_BITS = 20
QUANTUM = 2.0**-FRACTION_BITS
"""Distance of neighbouring representable values."""


def largest_summand(participants: int) -> float:
    """Largest magnitude of a value such that a sum over this many participants cannot wrap around."""
    return 2.0 ** (63 - FRACTION_BITS) / participants - 1.0


def to_fixed(values: NDArray[Any], participants: int) -> NDArray[np.uint64]:
    """Encode values of a sum over at most `participants` summands.

    Args:
        values: real or integer array of any shape.
        participants: how many arrays may be added before the sum is decoded.

    Returns:
        uint64 of the same shape, round(x·2^20) mod 2^64.

    Raises:
        ValueError: a value is not finite, or so large that the sum could wrap around.
    """
    reals = np.asarray(values, dtype=np.float64)
    largest = float(np.abs(reals).max(initial=0.0))
    if not largest <= largest_summand(participants):  # false for NaN too
        raise ValueError(
            f"a value of magnitude {largest:.4g} does not fit a secure sum over {participants} participants; "
            f"at most {largest_summand(participants):.4g} does"
        )
    fixed = np.rint(reals * 2.0**FRACTION_BITS).astype(np.int64)
    return np.ascontiguousarray(fixed).view(np.uint64).reshape(reals.shape)


def from_fixed(total: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Decode a sum of encoded values: float64 of the same shape."""
    return np.asarray(total.view(np.int64).astype(np.float64) * QUANTUM)
