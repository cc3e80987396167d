"""Softmax, its logarithm and clipping, stable in float64; no model, no label, no loss lives here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def log_softmax(logits: NDArray[Any], temperature: float = 1.0) -> NDArray[np.float64]:
    """Logarithm of :func:`softmax`, finite wherever the logits are.

    Args:
        logits: (n, C) scores, any float dtype.
        temperature: positive divisor T of the logits.

    Returns:
        (n, C) float64.
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    shifted = scaled - scaled.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def softmax(logits: NDArray[Any], temperature: float = 1.0) -> NDArray[np.float64]:
    """Class probabilities exp(s_c / T) / Σ_j exp(s_j / T).

    Args:
        logits: (n, C) scores, any float dtype.
        temperature: positive divisor T of the logits.

    Returns:
        (n, C) float64, rows sum to 1.
    """
    return np.exp(log_softmax(logits, temperature))


def clip_probabilities(p: NDArray[Any], low: float = 1e-6) -> NDArray[np.float64]:
    """Keep probabilities inside [low, 1 - low], so that log-odds stay finite.

    Args:
        p: probabilities of any shape.
        low: distance kept from 0 and from 1.

    Returns:
        Same shape, float64; rows are not renormalised.
    """
    return np.clip(np.asarray(p, dtype=np.float64), low, 1.0 - low)
