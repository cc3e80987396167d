"""FedDF: the ensemble is the mean of logits."""

from __future__ import annotations

import pytest

from fkd_bench.methods.fedavg import FedAvg
from fkd_bench.methods.feddf import FedDF
from tests.methods import rehearsal
from tests.methods.constant import divergence, saying, sigma
from tests.methods.rehearsal import Held, Rehearsal


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_loss_is_the_divergence_from_the_mean_logits(temperature: float) -> None:
    run = rehearsal.federation(
        num_classes=2, method="feddf", options={"steps": 0, "temperature": temperature}
    )
    # n_k weighs the average but no teacher: logits (1, 0) on average by teachers, (½, 0) by weights.
    uploads = [Held("a", 1, saying(run, [2.0, 0.0])), Held("b", 3, saying(run, [0.0, 0.0]))]
    record = FedDF(run).aggregate({}, uploads, 1).record
    expected = divergence(sigma(1 / temperature), sigma(0.5 / temperature))
    assert record["distillation"]["loss_before"] == pytest.approx(expected, rel=1e-4)
    assert record["weights"] == {"a": 0.25, "b": 0.75}


def test_the_student_ends_at_the_ensemble() -> None:
    run = rehearsal.federation(num_classes=2, method="feddf", options={"steps": 300, "lr": 0.02})
    uploads = [Held("a", 1, saying(run, [2.0, 0.0])), Held("b", 3, saying(run, [0.0, 0.0]))]
    made = FedDF(run)
    student = made.aggregate({}, uploads, 1).groups["model"]
    margins = made.scores(student, run.public) @ [1, -1]
    assert margins == pytest.approx(1.0, abs=0.02)


def test_the_ensemble_is_ahead_of_the_average() -> None:
    run = rehearsal.federation(method="feddf", anchors=200)
    distilled, average = (
        Rehearsal(method(run), rehearsal.sites(run)).run(2).global_accuracy(rehearsal.test_set(run))
        for method in (FedDF, FedAvg)
    )
    assert distilled > 0.9 > average
