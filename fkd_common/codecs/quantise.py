"""Values as small integers with a scale, or with fewer digits: rows as int8 or int16, whole vectors as float16.

Unbiased where a generator is given: a value between two steps becomes one of them with the probability that keeps
its mean (Alistarh et al., "QSGD", NeurIPS 2017, Eq. 4), so that the errors of several clients cancel in their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

INT8_STEPS = 127
INT16_STEPS = 32767
_FEWER_BITS = 13
"""Of a float32's 24 significant bits, those that float16 has no room for."""


def rows_to_int8(
    values: NDArray[Any], lengths: Sequence[int], rng: np.random.Generator | None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows of several lengths, each in 255 steps of its largest magnitude.

    Args:
        values: 1-D, all rows one after the other, finite.
        lengths: How many values each row has, at least 1.
        rng: Rounds up or down at random, without bias; None rounds to the nearest step.

    Returns:
        1-D int8 steps, and (rows,) float32 sizes of a step.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    step = (np.maximum.reduceat(np.abs(values), starts) / INT8_STEPS).astype(np.float32)
    scaled = values / np.repeat(np.where(step > 0, step, 1), lengths)
    rounded = np.rint(scaled) if rng is None else np.floor(scaled + rng.random(len(scaled)))
    return np.clip(rounded, -INT8_STEPS, INT8_STEPS).astype(np.int8), step


def rows_from_int8(
    steps: NDArray[np.int8], step: NDArray[np.float32], lengths: Sequence[int]
) -> NDArray[np.float32]:
    """What :func:`rows_to_int8` was given, nearly: off by less than a step, half of it without a generator."""
    return steps.astype(np.float32) * np.repeat(step, lengths)


def rows_to_int16(matrix: NDArray[Any]) -> tuple[NDArray[np.int16], NDArray[np.int8]]:
    """A matrix whose every row is counted in steps of a power of two, and keeps its sum.

    Rows of B = Σ z rᵀ and of the gradient sum to 0 over classes. With each value rounded by itself, a thousand
    classes that nobody has, all with the same small value, would sum to hundreds of steps. So as many values are
    rounded up as the sum asks for: those with the largest remainders (Hamilton's method of apportionment).

    Args:
        matrix: (r, c) finite.

    Returns:
        (r, c) int16 steps, and (r,) int8 exponents of the steps.
    """
    largest = np.abs(matrix).max(axis=1, initial=0.0).astype(np.float64)
    exponents = np.ceil(np.log2(np.where(largest > 0, largest, 1.0) / INT16_STEPS))
    exponents = np.clip(exponents, -127, 127)
    scaled = matrix * np.exp2(-exponents)[:, None]
    steps = np.floor(scaled)
    remainders = scaled - steps
    ups = np.rint(remainders.sum(axis=1))[:, None]
    rank = np.argsort(np.argsort(-remainders, axis=1, kind="stable"), axis=1)
    steps += rank < ups
    return np.clip(steps, -INT16_STEPS, INT16_STEPS).astype(np.int16), exponents.astype(np.int8)


def rows_from_int16(steps: NDArray[np.int16], exponents: NDArray[np.int8]) -> NDArray[np.float32]:
    """What :func:`rows_to_int16` was given, nearly: off by less than a step, 2/32767 of the row's largest magnitude."""
    with np.errstate(over="ignore"):  # infinity is refused where values are checked
        return (steps * np.exp2(exponents.astype(np.float64))[:, None]).astype(np.float32)


def with_fewer_digits(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values rounded to float16's 11 significant bits, in float32's range; the bytes left over are easy to compress.

    Args:
        values: finite.

    Returns:
        float32 of the same shape; what would leave the range stays as it was.
    """
    bits = values.astype(np.float32).view(np.uint32)
    half = np.uint32((1 << (_FEWER_BITS - 1)) - 1) + (
        bits >> np.uint32(_FEWER_BITS) & np.uint32(1)
    )  # ties to even
    rounded = ((bits + half) >> np.uint32(_FEWER_BITS) << np.uint32(_FEWER_BITS)).view(np.float32)
    return np.where(np.isfinite(rounded), rounded, values)


def to_float16(values: NDArray[Any]) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
    """Values over a power of two that brings the largest below 1; half precision has no room above 65,504.

    Returns:
        float16 of the same shape, and the power, () float32.
    """
    largest = float(np.abs(values).max(initial=0.0))
    scale = np.float32(2.0 ** np.ceil(np.log2(largest))) if largest > 0 else np.float32(1.0)
    return (values / scale).astype(np.float16), np.asarray(scale, dtype=np.float32)


def from_float16(halves: NDArray[np.float16], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """What :func:`to_float16` was given, with 11 significant bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        return halves.astype(np.float32) * scale
