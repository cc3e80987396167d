"""The student's forward pass in numpy, for programs without torch; never trains, judges nothing.

[Linear → norm → GELU] per hidden layer, then Linear, as ``fkd_client.student_network`` has it without dropout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import Norm

_EPS = 1e-5
"""torch's default in both normalisations."""


@dataclass(frozen=True, eq=False)
class StudentResponses:
    """What a student computes on its way from embeddings to logits."""

    linear: tuple[NDArray[np.float32], ...]
    """Per hidden layer (n, w) outputs of the linear map, before normalisation."""
    hidden: tuple[NDArray[np.float32], ...]
    """Per hidden layer (n, w) activations φ(h) after GELU."""
    logits: NDArray[np.float32]
    """(n, C) scores S(h)."""

    def named(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """All of them, by the name of the tensors they come out of, first layer first."""
        for i, (linear, hidden) in enumerate(zip(self.linear, self.hidden, strict=True)):
            yield f"layers.{i}.linear", linear
            yield f"layers.{i}.norm", hidden
        yield "output", self.logits


def student_responses(
    student: Mapping[str, NDArray[Any]], h: NDArray[np.float32], norm: Norm, *, batch_statistics: bool = False
) -> StudentResponses:
    """Logits and activations of a student, without dropout.

    Args:
        student: tensors of a :func:`student_layout`.
        h: (n, d) embeddings.
        norm: the student's normalisation.
        batch_statistics: with `norm = batch`, normalise with mean and variance of these embeddings, as training
            does, not with the running ones.

    Returns:
        Float32 arrays. What leaves float32's range becomes infinite or NaN, without a warning.
    """
    linear, hidden = [], []
    with np.errstate(all="ignore"):
        for i in range(sum(name.endswith("norm.weight") for name in student)):
            layer = f"layers.{i}"
            x = h @ student[f"{layer}.linear.weight"].T + student[f"{layer}.linear.bias"]
            linear.append(x)
            if norm is Norm.BATCH and not batch_statistics:
                mean, variance = student[f"{layer}.norm.running_mean"], student[f"{layer}.norm.running_var"]
            else:
                axis = 0 if norm is Norm.BATCH else 1
                mean, variance = x.mean(axis=axis, keepdims=True), x.var(axis=axis, keepdims=True)
            unit = (x - mean) / np.sqrt(variance + np.float32(_EPS))
            h = _gelu(unit * student[f"{layer}.norm.weight"] + student[f"{layer}.norm.bias"])
            hidden.append(h)
        logits = h @ student["output.weight"].T + student["output.bias"]
    return StudentResponses(tuple(linear), tuple(hidden), logits)


def _gelu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x·Φ(x), with erf as in Abramowitz and Stegun, 7.1.26: wrong by at most 1.5e-7."""
    z = np.abs(x) * np.float32(math.sqrt(0.5))
    t = 1.0 / (1.0 + np.float32(0.3275911) * z)
    series = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series += np.float32(coefficient)
        series *= t
    tail = 0.5 * series * np.exp(-z * z)  # Φ(-|x|)
    return np.asarray(np.where(x >= 0, x - x * tail, x * tail), dtype=np.float32)
