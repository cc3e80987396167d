"""Personal models in closed form: ridge towards the global model, class prior, teacher blend; no training.

Nothing here is ever uploaded. Fine-tuning by gradient (Eq. 9) needs torch and lives with the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.method.moments import solve
from fkd_common.method.probabilities import clip_probabilities


def closed_form(A_k: NDArray[Any], B_k: NDArray[Any], V: NDArray[Any], lambda_: float) -> NDArray[np.float64]:
    """Personal correction V_k = (A_k + λ_k I)⁻¹(B_k + λ_k V), which pulls the global one towards the client.

    Args:
        A_k: (p, p) the client's own Σ z zᵀ.
        B_k: (p, C) the client's own Σ z rᵀ.
        V: (p, C) global correction.
        lambda_: λ_k > 0; large values return V, small ones forget it.

    Returns:
        (p, C) float64.
    """
    return solve(A_k, B_k + lambda_ * np.asarray(V, dtype=np.float64), lambda_)


def log_prior(class_counts: NDArray[Any]) -> NDArray[np.float64]:
    """Smoothed log-shares log((n_c + ½)/(n + C/2)) of a client's classes.

    Args:
        class_counts: (C,) training samples per class.

    Returns:
        (C,) float64, finite for absent classes.
    """
    counts = np.asarray(class_counts, dtype=np.float64)
    return np.asarray(np.log((counts + 0.5) / (counts.sum() + counts.size / 2.0)))


def blend(
    global_logits: NDArray[Any], log_prior: NDArray[Any], teacher_probabilities: NDArray[Any], gamma: float
) -> NDArray[np.float64]:
    """Global corrected logits + log prior + γ·log p̂_k of the local teacher.

    Args:
        global_logits: (n, C) corrected scores of the global model.
        log_prior: (C,) from :func:`log_prior`.
        teacher_probabilities: (n, C) calibrated p̂_k, clipped to [1e-6, 1 - 1e-6].
        gamma: γ; 0 leaves the prior alone.

    Returns:
        (n, C) float64 scores.
    """
    log_teacher = np.log(clip_probabilities(teacher_probabilities))
    return np.asarray(np.asarray(global_logits, dtype=np.float64) + log_prior + gamma * log_teacher)


def clearly_best(right: Mapping[str, NDArray[np.bool_]]) -> str:
    """The first candidate, unless validation samples say clearly that another is better.

    Of a few dozen samples one candidate in five always gets the most right by luck. So another counts as better only
    by more than one standard error (Breiman et al., Classification and Regression Trees, 1984, 3.4.3). With b samples
    that it alone gets right and c that the first alone does, b - c has the standard error sqrt(b + c) between equals
    (McNemar, Psychometrika 12, 1947). Of several that are better, the one with the most right answers; of those, the
    earlier.

    Args:
        right: by candidate, (v,) whether it gets each sample right; the first is the one to prefer.

    Returns:
        The name of one.
    """
    (first, answers), *others = right.items()
    best = first
    for name, its in others:
        alone, lost = np.count_nonzero(its & ~answers), np.count_nonzero(answers & ~its)
        if alone - lost > np.sqrt(alone + lost) and its.sum() > right[best].sum():
            best = name
    return best
