"""Stage 2, refined: logistic regression on the pooled moment features, from sums of gradients alone.

The ridge solution V fits squared residuals. The likelihood that classification is about, Σ log softmax(S̃)_y with
S̃ = centre(S) + zᵀV, has no closed form, but its curvature never exceeds ½ Σ z zᵀ, whatever V is (Böhning,
"Multinomial logistic regression algorithm", Annals of the Institute of Statistical Mathematics 44, 1992): with the
pooled A that the clients have sent already, every step is one exchange of gradients G_k = Σ z (y - softmax(S̃))ᵀ,

    N = W + (½ Σ A_k + μI)⁻¹ (Σ G_k(W) - μW),

with Nesterov's momentum between steps. Gradients add up exactly, so the result is the pooled data's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.blas import one_blas_thread
from fkd_common.method.moments import centre
from fkd_common.method.probabilities import softmax

REFINED = "moments.refined"
"""The candidate that logistic regression makes of the pooled moments."""

_CHUNK = 4096
"""Rows turned into float64 at a time."""


def likelihood_residual(
    logits: NDArray[Any], delta: NDArray[Any], labels: NDArray[Any]
) -> NDArray[np.float64]:
    """y - softmax(S̃): what of the labels the corrected scores do not explain.

    Args:
        logits: (n, C) the student's scores S.
        delta: (n, C) zᵀV.
        labels: (n,) classes.

    Returns:
        (n, C) float64, rows sum to 0.
    """
    p = softmax(centre(logits) + delta)
    p[np.arange(len(labels)), labels] -= 1.0
    return np.asarray(-p)


def gradient(z: NDArray[Any], residual: NDArray[np.float64]) -> NDArray[np.float32]:
    """G = Σ z (y - softmax(S̃))ᵀ.

    Args:
        z: (n, p) features of ``moment_vector``.
        residual: (n, C) of :func:`likelihood_residual`.

    Returns:
        (p, C) float32, summed in float64; rows sum to 0.
    """
    total = np.zeros((z.shape[1], residual.shape[1]))
    for start in range(0, len(z), _CHUNK):
        rows = slice(start, start + _CHUNK)
        total += z[rows].astype(np.float64).T @ residual[rows]
    return total.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Ascent:
    """Where the steps stand."""

    W: NDArray[np.float64]
    """(p, C) where the next gradients are asked for."""
    N: NDArray[np.float64]
    """(p, C) the solution so far."""
    t: float = 1.0
    """Nesterov's t."""


def ascend(at: Ascent, A: NDArray[np.float64], G: NDArray[np.float64], mu: float) -> Ascent:
    """One step.

    Args:
        at: Where the steps stand; G was computed at ``at.W``.
        A: (p, p) Σ A_k, writeable; used up.
        G: (p, C) Σ G_k over the same samples.
        mu: strength μ > 0 of the L2 penalty ½ μ ‖V‖².

    Returns:
        The next position.
    """
    A *= 0.5
    np.einsum("ii->i", A)[:] += mu
    with one_blas_thread:
        N = at.W + np.linalg.solve(A, G - mu * at.W)
    t = (1.0 + np.sqrt(1.0 + 4.0 * at.t**2)) / 2.0
    return Ascent(N + (at.t - 1.0) / t * (N - at.N), N, float(t))


def gradient_flaw(G: NDArray[Any], n: int, diagonal: NDArray[np.float64], slack: float = 1e-3) -> str | None:
    """The first thing about a client's gradient that no n samples can produce, or None.

    Args:
        G: (p, C), finite.
        n: n_k, at least 0.
        diagonal: (p,) at least the client's own Σ z², such as the diagonal of the pooled A.
        slack: Relative tolerance for float32.

    Returns:
        A sentence: what was expected and what came.
    """
    limit = (1.0 + slack) * np.sqrt(np.maximum(diagonal, 0.0) * n) + 1e-6
    size = np.abs(G).astype(np.float64)
    if np.any(size.max(axis=1) > limit):
        row = int(np.argmax(size.max(axis=1) - limit))
        return f"row {row} of the gradient has {size[row].max():.3g}; {n} samples allow {limit[row]:.3g}"
    total = np.abs(G.sum(axis=1, dtype=np.float64))
    if np.any(total > slack * (size.sum(axis=1) + limit)):
        return f"row {int(np.argmax(total))} of the gradient does not sum to 0 over classes"
    return None


def solutions_by_candidate(
    ridge: Mapping[str, NDArray[Any]], refined: Mapping[str, NDArray[Any]], p: int
) -> dict[str, NDArray[Any]]:
    """The moment solutions that a vote compares, by candidate, each on all of z.

    Args:
        ridge: "V.0", "V.1", ... one per ridge strength; may be empty.
        refined: "V"; may be empty.
        p: Length of z.
    """
    found = {f"moments.{i}": ridge[f"V.{i}"] for i in range(len(ridge))}
    if refined:
        found[REFINED] = refined["V"]
    return {name: padded(V, p) for name, V in found.items()}


def padded(V: NDArray[Any], p: int) -> NDArray[Any]:
    """A solution on the last rows of z, as one on all of z: hidden features have weight 0.

    Args:
        V: (q, C) with q ≤ p, for the last q features.
        p: Length of z.
    """
    return V if len(V) == p else np.concatenate([np.zeros((p - len(V), V.shape[1]), V.dtype), V])
