"""FedMKD-style: the surer teacher counts more, sample by sample."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fkd_bench.methods.fedmkd import Confidence, FedMKD, teacher_weights
from tests.methods import rehearsal
from tests.methods.constant import divergence, saying, sigma
from tests.methods.rehearsal import Held

LOG_3 = math.log(3)


def test_weights_are_a_softmax_of_confidence() -> None:
    # Sample 1: probabilities (3/4, 1/4) and (1/2, 1/2); sample 2: both (1/2, 1/2).
    logits = np.array([[[LOG_3, 0.0], [1.0, 1.0]], [[0.0, 0.0], [7.0, 7.0]]])
    a = teacher_weights(logits, Confidence.MAXIMUM, tau=0.25 / LOG_3)
    assert a[:, 0] == pytest.approx([0.75, 0.25])  # (3/4 − 1/2)/τ = log 3
    assert a[:, 1] == pytest.approx([0.5, 0.5])


def test_confidence_may_be_what_the_entropy_leaves() -> None:
    # Entropy log 2 of at most log 4, against none: confidences 1/2 and 1.
    sure, unsure = [[200.0, 0.0, 0.0, 0.0]], [[100.0, 100.0, 0.0, 0.0]]
    a = teacher_weights(np.array([unsure, sure]), Confidence.ENTROPY, tau=0.5 / LOG_3)
    assert a[:, 0] == pytest.approx([0.25, 0.75])


def test_a_small_tau_leaves_the_surest_alone() -> None:
    logits = np.array([[[3.0, 0.0]], [[0.0, 5.0]], [[0.0, 0.0]]])
    assert teacher_weights(logits, Confidence.MAXIMUM, tau=1e-6)[:, 0].tolist() == [0, 1, 0]


def test_the_target_mixes_the_teachers_probabilities() -> None:
    run = rehearsal.federation(
        num_classes=2, method="fedmkd", options={"steps": 0, "temperature": 2.0, "tau": 0.25 / LOG_3}
    )
    uploads = [Held("a", 1, saying(run, [LOG_3, 0.0])), Held("b", 1, saying(run, [0.0, 0.0]))]
    record = FedMKD(run).aggregate({}, uploads, 1).record
    assert record["teacher_weights"] == pytest.approx({"a": 0.75, "b": 0.25}, rel=1e-4)
    q = 0.75 * sigma(LOG_3 / 2) + 0.25 * 0.5
    expected = 2.0**2 * divergence(q, sigma(LOG_3 / 2 / 2))
    assert record["distillation"]["loss_before"] == pytest.approx(expected, rel=1e-3)
