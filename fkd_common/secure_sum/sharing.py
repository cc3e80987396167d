"""Shamir's secret sharing of 128-bit secrets, and the threshold rule; the field arithmetic is pycryptodome's.

128 bits is the field size of the library and the security level of X25519: longer keys are expanded from such
secrets (``fkd_common.secure_sum.masks``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from Crypto.Protocol.SecretSharing import Shamir

SECRET_BYTES = 16
MIN_SUMMANDS = 2
"""A "sum" over one participant would be its own data."""


@dataclass(frozen=True)
class ThresholdRule:
    """How many answers a secure sum needs, as both sides compute it from the run configuration."""

    share: float
    """`secure_threshold`: share of those who published keys."""
    at_least: int = MIN_SUMMANDS
    """`min_cohort`: no sum of fewer is ever uncovered."""

    def of(self, participants: int) -> int:
        """The threshold t for this many participants; may exceed them, and then there can be no sum.

        More than half, so that no two disjoint groups could reveal a participant's two secrets separately.
        """
        # The small step back keeps 2/3 of 3 at 2 for every way of writing 2/3.
        share = math.ceil(self.share * participants - 1e-9)
        return max(MIN_SUMMANDS, self.at_least, participants // 2 + 1, share)


def split(secret: bytes, threshold: int, participants: int) -> list[bytes]:
    """Shares of a secret: any `threshold` of them give it back, fewer say nothing about it.

    Args:
        secret: 16 bytes.
        threshold: t, at most `participants`.
        participants: number of shares.

    Returns:
        16 bytes each; the share at index i belongs to position i + 1.
    """
    if len(secret) != SECRET_BYTES or not 0 < threshold <= participants:
        raise ValueError(
            f"expected a secret of {SECRET_BYTES} bytes and a threshold of 1 to {participants}, "
            f"got {len(secret)} bytes and {threshold}"
        )
    return [share for _, share in Shamir.split(threshold, participants, secret, False)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret behind shares, by position from 1; exactly `threshold` of them are used, lowest positions first.

    Raises:
        ValueError: There are fewer than `threshold`.
    """
    if len(shares) < threshold:
        raise ValueError(f"expected {threshold} shares of a secret, got {len(shares)}")
    chosen = sorted(shares.items())[:threshold]
    return bytes(Shamir.combine(chosen, False))
