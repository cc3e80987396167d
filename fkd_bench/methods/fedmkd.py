"""FedMKD-style."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fkd_bench.methods.averaging import averaged
from fkd_bench.methods.distillation import Distillation, ServerDistillation, probabilities
from fkd_bench.methods.networks import kd_loss
from fkd_common.exchange_method import MODEL, Aggregate, State, Upload
from fkd_common.method.probabilities import softmax


class Confidence(StrEnum):
    """How sure of a sample a teacher is."""

    MAXIMUM = "maximum"
    ENTROPY = "entropy"


class FedMKD(ServerDistillation):
    """FedAvg whose server distils several teachers into the average, each weighted by its confidence per sample.

    With confidence c_k(x) = max_c σ(z_k(x))_c the weights are a_k(x) = exp(c_k/τ) / Σ_j exp(c_j/τ), the target is
    q(x) = Σ_k a_k(x)·σ(z_k(x)/T), and the student minimises T²·KL(q ‖ σ(z/T)).

    "-style", because the supervised method of this name is published without equations: this follows its
    description, a confidence-weighted multi-teacher distillation. A client that knows one class is sure of
    everything, and nothing here holds that against it.
    """

    title = "FedMKD-style"
    source = (
        "after a description of FedMKD (confidence-weighted multi-teacher distillation); the name is that of Li et "
        "al., Resource-Aware Federated Self-Supervised Learning with Global Class Representations, NeurIPS 2024"
    )

    class Options(Distillation):
        """Of FedMKD-style."""

        batch_size: int = Field(64, ge=2)
        """Public samples per mini-batch."""
        temperature: float = Field(2.0, gt=0)
        """Distillation temperature T."""
        confidence: Confidence = Confidence.MAXIMUM
        """c_k: the `maximum` of the class probabilities, or 1 − H/log C of their `entropy` H."""
        tau: float = Field(0.1, gt=0)
        """τ: the smaller, the more the surest teacher alone counts."""

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Average, then distil the weighted teachers into it."""
        average, record = averaged(uploads)
        z = self.teacher_logits(uploads)
        a = teacher_weights(z, self.options.confidence, self.options.tau)
        q = np.einsum("km,kmc->mc", a, probabilities(z, self.options.temperature))
        student, losses = self.distilled(
            average, q, lambda logits, q: kd_loss(logits, q, self.options.temperature), round_number
        )
        shares = {upload.client: float(a_k.mean()) for upload, a_k in zip(uploads, a, strict=True)}
        return Aggregate({MODEL: student}, record | losses | {"teacher_weights": shares})


def teacher_weights(logits: NDArray[Any], confidence: Confidence, tau: float) -> NDArray[np.float64]:
    """a_k(x), softmax of c_k(x)/τ over the teachers.

    Args:
        logits: (K, m, C) z_k(x).
        confidence: What c_k is.
        tau: τ

    Returns:
        (K, m) float64; sums to 1 for every sample.
    """
    p = probabilities(logits)
    if confidence is Confidence.MAXIMUM:
        c = p.max(axis=2)
    else:
        entropy = -(p * np.log(np.maximum(p, np.finfo(np.float64).tiny))).sum(axis=2)
        c = 1.0 - entropy / np.log(logits.shape[2])
    return softmax(c.T, tau).T
