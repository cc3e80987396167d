"""What the student learns from: soft targets (Eq. 3), absent classes, the loss (Eqs. 4-6); trains nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.method.probabilities import log_softmax, softmax


def smooth(p: NDArray[Any], temperature: float) -> NDArray[np.float64]:
    """Temperature-smoothed targets p̃ = softmax(log p̂ / T) (Eq. 3).

    Args:
        p: (n, C) calibrated probabilities p̂.
        temperature: T > 0; 1 returns p̂.

    Returns:
        (n, C) float64, rows sum to 1.
    """
    floor = np.finfo(np.float64).tiny  # keeps the logarithm of a zero finite, changes nothing else
    return softmax(np.log(np.maximum(np.asarray(p, dtype=np.float64), floor)), temperature)


def complete_absent(
    soft: NDArray[Any], student_probabilities: NDArray[Any], present: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Give absent classes the received student's mass, so that distillation does not unlearn them.

    Args:
        soft: (n, C) targets p̃ of the client's own teacher.
        student_probabilities: (n, C) of the received student at the same temperature.
        present: global ids of the classes present locally.

    Returns:
        (n, C) float64: absent classes hold exactly the student's mass, present ones p̃ scaled to the rest.
    """
    completed = np.array(student_probabilities, dtype=np.float64)
    absent = np.ones(completed.shape[1], dtype=np.bool_)
    absent[present] = False
    rest = np.maximum(1.0 - completed[:, absent].sum(axis=1, keepdims=True), 0.0)
    own = np.asarray(soft, dtype=np.float64)[:, present]
    completed[:, present] = own / own.sum(axis=1, keepdims=True) * rest
    return completed


def alpha_at(round_number: int, rounds: int, start: float, end: float) -> float:
    """Weight α of the distillation term: linear from `start` in round 1 to `end` in round `rounds`.

    Args:
        round_number: 1-based round.
        rounds: R; with R = 1 the answer is `start`.
        start: α in the first round.
        end: α in the last round.

    Returns:
        α of this round.
    """
    if rounds == 1:
        return start
    return start + (end - start) * (round_number - 1) / (rounds - 1)


def distillation_loss(
    student_logits: NDArray[Any],
    soft_targets: NDArray[Any],
    labels: NDArray[Any],
    temperature: float,
    alpha: float,
) -> float:
    """(1-α)·CE(S, y) + α·T²·KL(p̃ ‖ softmax(S/T)), mean over the batch (Eqs. 4-6).

    The reference the torch implementation is tested against.

    Args:
        student_logits: (n, C) scores S.
        soft_targets: (n, C) targets p̃ at the same temperature.
        labels: (n,) integer classes y.
        temperature: T.
        alpha: α in [0, 1].

    Returns:
        The loss in nats.
    """
    cross_entropy = -log_softmax(student_logits)[np.arange(len(labels)), labels].mean()
    target = np.asarray(soft_targets, dtype=np.float64)
    # 0·log 0 counts as 0.
    log_target = np.log(np.where(target > 0.0, target, 1.0))
    divergence = (target * (log_target - log_softmax(student_logits, temperature))).sum(axis=1).mean()
    return float((1.0 - alpha) * cross_entropy + alpha * temperature**2 * divergence)
