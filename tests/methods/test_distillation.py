"""Server-side distillation: what FedDF, FedMKD-style and DaFKD-F share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkd_bench.methods.averaging import averaged
from fkd_bench.methods.dafkd import DaFKD
from fkd_bench.methods.distillation import ServerDistillation
from fkd_bench.methods.feddf import FedDF
from fkd_bench.methods.fedmkd import FedMKD
from fkd_bench.methods.networks import Networks, kd_loss, shuffled_batches
from fkd_common.exchange_method import MODEL, Labelled, Site
from tests.methods import rehearsal
from tests.methods.constant import divergence, saying, sigma
from tests.methods.rehearsal import Held, Rehearsal

METHODS = pytest.mark.parametrize("method", [FedDF, FedMKD, DaFKD])


@METHODS
def test_the_average_moves_towards_the_teachers(method: type[ServerDistillation]) -> None:
    run = rehearsal.federation(method="x")
    record = Rehearsal(method(run), rehearsal.sites(run)).round(1).record
    assert record["distillation"]["loss_after"] < 0.3 * record["distillation"]["loss_before"]
    assert sum(record["weights"].values()) == pytest.approx(1)


@METHODS
def test_it_learns(method: type[ServerDistillation]) -> None:
    run = rehearsal.federation(method="x", options={"steps": 50})
    play = Rehearsal(method(run), rehearsal.sites(run, skewed=False)).run(2)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.95
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.95


@METHODS
def test_without_steps_it_is_the_average(method: type[ServerDistillation]) -> None:
    run = rehearsal.federation(method="x", options={"steps": 0})
    made = method(run)
    uploads = [
        Held(site.name, len(site.train), made.local_update(site, made.start(), 1))
        for site in rehearsal.sites(run)
    ]
    student = made.aggregate(made.start(), uploads, 1).groups[MODEL]
    average, _ = averaged(uploads)
    assert all((student[name] == average[name]).all() for name in student)
    assert student.keys() == made.networks.layout.keys()


@METHODS
def test_public_samples_do_not_enter_the_normalisation(method: type[ServerDistillation]) -> None:
    run = rehearsal.federation(method="x")
    made = method(run)
    uploads = [
        Held(site.name, len(site.train), made.local_update(site, made.start(), 1))
        for site in rehearsal.sites(run)
    ]
    student = made.aggregate(made.start(), uploads, 1).groups[MODEL]
    average, _ = averaged(uploads)
    statistics = [name for name in student if "running" in name or "num_batches" in name]
    assert len(statistics) == 9
    assert all((student[name] == average[name]).all() for name in statistics)
    assert (student["output.weight"] != average["output.weight"]).any()


@METHODS
def test_a_seed_decides_everything(method: type[ServerDistillation]) -> None:
    run = rehearsal.federation(method="x", options={"steps": 10}, dropout=(0.3, 0.3, 0.0))
    first, second = (Rehearsal(method(run), rehearsal.sites(run)).run(2).state[MODEL] for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


@METHODS
@pytest.mark.parametrize("anchors", [1, 2, 9])
def test_sites_and_cohorts_as_small_as_they_come(method: type[ServerDistillation], anchors: int) -> None:
    run = rehearsal.federation(method="x", options={"steps": 5}, anchors=anchors)
    h, y = rehearsal.clusters(20, run.embedding_dim, run.num_classes, 1)
    none = Labelled(h[:0], y[:0])
    single = Site("single", Labelled(h[:1], y[:1]), none, seed=1)
    one_class = Site("one-class", Labelled(h, np.full(20, 2)), none, seed=2)
    play = Rehearsal(method(run), [single, one_class])
    play.round(1)
    play.round(2, absent=("one-class",))
    play.round(3, absent=("single",))
    play.round(4)
    assert all(np.isfinite(values).all() for values in play.state[MODEL].values())
    assert np.isfinite(list(play.records[-1]["distillation"].values())).all()
    assert 0 <= play.personal_accuracy(rehearsal.test_set(run)) <= 1


@pytest.mark.parametrize(
    ("method", "up"), [(FedDF, 1_727_040), (FedMKD, 1_727_040), (DaFKD, 1_727_040 + 4 * 513)]
)
def test_bytes(method: type[ServerDistillation], up: int) -> None:
    run = rehearsal.federation(
        method="x", options={"steps": 1}, d=512, num_classes=10, hidden=(512, 256, 128),
        dropout=(0.4, 0.3, 0.2), local_steps=1, anchors=500,
    )  # fmt: skip
    play = Rehearsal(method(run), rehearsal.sites(run, count=1)).run(1)
    assert play.up["site0"] == up
    assert play.down["site0"] == 1_727_040


def test_an_annealed_learning_rate_follows_a_cosine_to_zero() -> None:
    run = rehearsal.federation(num_classes=2, weight_decay=0.0)
    networks = Networks(run)

    def moved(steps: int) -> float:
        # The gradient's sign never changes, so that Adam moves the bias by the learning rate in every step.
        after = networks.fit(
            saying(run, [0.0, 0.0]),
            run.public,
            shuffled_batches(len(run.public), 60, steps, [0]),
            lambda batch: 100 * batch.network.output.bias[0],
            steps=4,
            lr=0.01,
            annealed=True,
        )
        return float(-after["output.bias"][0] / 0.01)

    shares = (1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4)
    assert [moved(1), moved(2), moved(3), moved(4)] == pytest.approx(np.cumsum(shares), rel=1e-3)


def test_the_distillation_loss_is_the_divergence_times_the_squared_temperature() -> None:
    loss = kd_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]]), 2.0)
    assert loss.item() == pytest.approx(2.0**2 * divergence(0.5, sigma(1.0)) / 2)
