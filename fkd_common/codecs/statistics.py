"""Moments, gradients, residuals and solutions on the wire: matrices in 16 bits.

A matrix is counted row by row in steps of a power of two. Second moments are first divided by √A_ii·√A_jj, which
leaves at most 1 in magnitude, and rounded at random: a feature that is nearly dead keeps as many digits as any other,
and A stays positive semidefinite up to the tolerance of ``moment_checks``. The diagonal and the constant feature's
column, which hold sums of squares and sums, travel exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import StatisticsCodec
from fkd_common.codecs.quantise import INT16_STEPS, rows_from_int16, rows_to_int16
from fkd_common.codecs.squeeze import Parts, squeeze
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors


def pack_statistics(
    tensors: Mapping[str, NDArray[Any]], codec: StatisticsCodec
) -> Mapping[str, NDArray[Any]]:
    """Matrices by name."""
    if codec is StatisticsCodec.FP32:
        return tensors
    packed = Tensors()
    for name, matrix in tensors.items():
        steps, packed[f"{name}/exponents"] = rows_to_int16(matrix)
        packed[name] = squeeze(steps)
    return packed


def unpack_statistics(packed: Tensors, layout: Mapping[str, TensorSpec], codec: StatisticsCodec) -> Tensors:
    """The matrices, nearly; with `fp32` as they came, unchecked.

    Raises:
        InvalidUploadError: They were packed otherwise.
    """
    if codec is StatisticsCodec.FP32:
        return packed
    parts = Parts(packed)
    found = {name: _rows(parts, name, spec.shape) for name, spec in layout.items()}
    parts.finish()
    return found


def pack_moments(
    A: NDArray[np.float32],
    B: NDArray[np.float32],
    left_out: NDArray[Any],
    codec: StatisticsCodec,
    rng: np.random.Generator,
) -> Mapping[str, NDArray[Any]]:
    """A client's second moments.

    Args:
        A: 1-D, as :func:`~fkd_common.method.moments.pack_symmetric` packed it.
        B: (p, C).
        left_out: (b,) diagonal of the block that A is without; empty where it has all.
        codec: How they are coded.
        rng: Rounds without bias: the products of samples that are alike are alike too, and errors that were would
            add up until A is not positive semidefinite any more.
    """
    if codec is StatisticsCodec.FP32:
        return {"A": A, "B": B}
    p = len(B)
    rows = _num_rows(len(A), p)
    first, last = _ends_of_rows(rows, p)
    diagonal = np.zeros(p, dtype=np.float32)
    diagonal[p - len(left_out) :] = left_out
    diagonal[:rows] = A[first]
    scale = _scale(diagonal)
    steps = np.empty(len(A), dtype=np.int16)
    for i, start, end in zip(range(rows), first, last + 1, strict=True):
        unit = A[start:end] / (scale[i] * scale[i:])
        rounded = np.floor(unit * INT16_STEPS + rng.random(end - start, dtype=np.float32))
        steps[start:end] = np.clip(rounded, -INT16_STEPS, INT16_STEPS)
    return {
        "A": squeeze(steps),
        "A/diagonal": diagonal,
        "A/constant": A[last],
        **pack_statistics({"B": B}, codec),
    }


def unpack_moments(
    packed: Tensors, p: int, num_classes: int, known_block: int, codec: StatisticsCodec
) -> Tensors:
    """ "A" and "B", nearly; with `fp32` as they came, unchecked.

    Args:
        packed: What :func:`pack_moments` made.
        p: number of features.
        num_classes: C.
        known_block: size of the trailing block that was left out.
        codec: How they are coded.

    Raises:
        InvalidUploadError: They were packed otherwise.
    """
    if codec is StatisticsCodec.FP32:
        return packed
    parts, rows = Parts(packed), p - known_block
    first, last = _ends_of_rows(rows, p)
    diagonal = parts.take("A/diagonal", (p,), "float32")
    steps = parts.take_squeezed("A", (int(last[-1]) + 1 if rows else 0,), "int16")
    with np.errstate(over="ignore", invalid="ignore"):
        scale = _scale(diagonal)
        A = steps.astype(np.float32)
        for i, start, end in zip(range(rows), first, last + 1, strict=True):
            A[start:end] *= scale[i] * scale[i:] / np.float32(INT16_STEPS)
    A[first] = diagonal[:rows]
    A[last] = parts.take("A/constant", (rows,), "float32")
    B = _rows(parts, "B", (p, num_classes))
    parts.finish()
    return {"A": A, "B": B}


def _rows(parts: Parts, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    steps = parts.take_squeezed(name, shape, "int16")
    return rows_from_int16(steps, parts.take(f"{name}/exponents", shape[:1], "int8"))


def _scale(diagonal: NDArray[np.float32]) -> NDArray[np.float32]:
    """√A_ii, 1 where that is 0."""
    return np.sqrt(np.where(diagonal == 0, np.float32(1), diagonal))


def _num_rows(length: int, p: int) -> int:
    """Rows of a packed triangle of so many values: all p, or those before a block that was left out."""
    return int(np.searchsorted(np.cumsum(p - np.arange(p)), length, side="right"))


def _ends_of_rows(rows: int, p: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the packed rows A[i, i:] begin and end: their first value is A_ii, their last A_ip."""
    last = np.cumsum(p - np.arange(rows)) - 1
    return last - (p - np.arange(rows)) + 1, last
