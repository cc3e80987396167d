"""FedTKD-style: who is left out, what is fused, how strongly it is distilled."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fkd_bench.methods.fedtkd import (
    FUSED,
    FedTKD,
    adaptive_weight,
    divergence,
    mean_divergences,
    mean_entropy,
    outliers,
    selective_fusion,
)
from fkd_common.exchange_method import Labelled, Site
from fkd_common.tensors import Tensors
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal


def test_divergence_is_that_of_jensen_and_shannon() -> None:
    a, b = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert divergence(a, b) == pytest.approx(math.log(2))
    assert divergence(a, a) == 0
    assert mean_entropy(np.array([[0.5, 0.5], [1.0, 0.0]])) == pytest.approx(math.log(2) / 2)
    assert mean_divergences([a, a, b]) == pytest.approx([math.log(2) / 2, math.log(2) / 2, math.log(2)])
    assert mean_divergences([a]) == [0.0]


def test_who_is_far_from_the_others_is_left_out_with_the_reason() -> None:
    near = {"a": 1.0, "b": 1.1, "c": 0.9, "d": 1.05}
    found = outliers({"entropy": {**near, "e": 9.0}}, 3.0)
    # median 1.05, deviations 0.05, 0.05, 0.15, 0, 7.95: MAD 0.05, z = 7.95 / 0.07413
    assert found == {"e": "entropy 9 nats, robust z-score 107"}
    assert outliers({"entropy": near}, 3.0) == {}


def test_most_clients_always_stay_the_nearest_ones() -> None:
    same = dict.fromkeys("abcdef", 0.0)
    features = {"entropy": {**same, "d": 5.0, "e": 7.0}, "divergence": {**same, "f": -6.0}}
    assert sorted(outliers(features, 3.0)) == ["e", "f"]
    assert outliers({"entropy": {"a": 0.0, "b": 5.0}}, 3.0) == {}


def test_clients_that_differ_by_rounding_are_not_told_apart() -> None:
    assert outliers({"entropy": {"a": 1.0, "b": 1.0, "c": 1.0 + 1e-4}}, 3.0) == {}


def test_the_fusion_takes_the_majority_and_the_confident() -> None:
    p = np.array(
        [
            [[0.6, 0.2, 0.2]],  # top 0; votes for it are 0.6 + 0.5
            [[0.5, 0.3, 0.2]],  # top 0
            [[0.1, 0.8, 0.1]],  # top 1, not the majority, but the most confident
            [[0.3, 0.3, 0.4]],  # top 2, below the median confidence of 0.55
        ]
    )
    fused, shares = selective_fusion(p)
    assert fused == pytest.approx(np.array([[0.4, 1.3 / 3, 0.5 / 3]]))
    assert shares == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_the_weight_follows_agreement_and_confidence() -> None:
    a, b = np.array([[0.75, 0.25]]), np.array([[1.0, 0.0]])
    assert adaptive_weight(a, a, 0.5) == pytest.approx(0.5 * 0.75)
    assert adaptive_weight(np.array([[0.0, 1.0]]), b, 0.5) == pytest.approx(0)


def test_a_liar_is_excluded_and_recorded() -> None:
    run = rehearsal.federation(method="fedtkd")
    method = FedTKD(run)
    rng = np.random.default_rng(0)
    honest = np.eye(4)[rng.integers(0, 4, 60)] * 0.9 + 0.025
    uploads = []
    for k in range(5):
        p = honest + rng.uniform(0, 0.02, honest.shape)
        uploads.append(Held(f"c{k}", 10, {"probabilities": _rows(p)}))
    uploads.append(Held("liar", 10, {"probabilities": _rows(np.roll(honest, 1, axis=1))}))
    result = method.aggregate({}, uploads, 1)
    assert list(result.record["excluded"]) == ["liar"]
    assert "divergence" in result.record["excluded"]["liar"]
    assert "liar" not in result.record["weights"]
    assert sum(result.record["weights"].values()) == pytest.approx(1)
    assert (result.groups[FUSED]["probabilities"].argmax(axis=1) == honest.argmax(axis=1)).all()


def _rows(p: np.ndarray) -> np.ndarray:
    return (p / p.sum(axis=1, keepdims=True)).astype(np.float32)


def test_what_is_no_probability_is_refused() -> None:
    method = FedTKD(rehearsal.federation())
    sound = np.full((2, 4), 0.25, np.float32)
    assert method.flaw({"probabilities": sound}) is None
    for wrong in (sound * 2, sound - np.array([0.5, -0.5, 0, 0], np.float32)):
        assert method.flaw({"probabilities": wrong}) == "probabilities below 0 or that do not sum to 1"


def test_the_weight_pulls_towards_the_fused_predictions_and_private_data_stay_known() -> None:
    reached = []
    for lambda_max in (0.0, 0.9):
        run = rehearsal.federation(method="fedtkd", options={"digest_epochs": 20, "lambda_max": lambda_max})
        play = Rehearsal(FedTKD(run), rehearsal.sites(run)).run(2)
        site, method = play.sites[0], play.method
        model = method.personal_model(site, play.received(3, site.name))
        reached.append(_divergence(method, model, play.state[FUSED]["probabilities"]))
        known = method.scores(model, site.train.inputs).argmax(axis=1) == site.train.labels
        assert known.mean() > 0.95
    assert reached[1] < 0.5 * reached[0]


def _divergence(method: FedTKD, network: Tensors, fused: np.ndarray) -> float:
    logits = method.scores(network, method.federation.public).astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return divergence(p / p.sum(axis=1, keepdims=True), fused)


def test_without_distillation_weight_digesting_is_private_training() -> None:
    found = []
    for fused_class in (0, 1):
        run = rehearsal.federation(method="fedtkd", options={"lambda_max": 0.0})
        method, site = FedTKD(run), rehearsal.sites(run)[0]
        fused = np.zeros((60, 4), np.float32)
        fused[:, fused_class] = 1
        found.append(method.personal_model(site, {FUSED: {"probabilities": fused}}))
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


def test_it_learns() -> None:
    run = rehearsal.federation(method="fedtkd", options={"digest_epochs": 5})
    play = Rehearsal(FedTKD(run), rehearsal.sites(run)).run(4)
    test = rehearsal.test_set(run)
    assert play.personal_accuracy(test) > 0.85
    alone = [play.method.trained(site, play.method.networks.start(), 0) for site in play.sites]
    baseline = np.mean([(play.method.scores(m, test.inputs).argmax(1) == test.labels).mean() for m in alone])
    assert play.personal_accuracy(test) > baseline + 0.05
    assert play.method.global_model(play.state) is None


@pytest.mark.parametrize("n", [1, 2])
def test_a_tiny_site_alone_in_its_cohort(n: int) -> None:
    run = rehearsal.federation(method="fedtkd", anchors=33)
    rows = rehearsal.sites(run)[0].train
    empty = Labelled(rows.inputs[:0], rows.labels[:0])
    site = Site("one", Labelled(rows.inputs[:n], np.zeros(n, np.int64)), empty, seed=1)
    play = Rehearsal(FedTKD(run), [site]).run(2)
    assert play.records[1]["weights"] == {"one": 1.0}
    model = play.method.personal_model(site, play.received(3, "one"))
    assert all(np.isfinite(values).all() for values in model.values())


def test_its_bytes_are_the_probabilities_both_ways() -> None:
    run = rehearsal.federation(num_classes=10, anchors=5000, local_steps=1)
    play = Rehearsal(FedTKD(run), rehearsal.sites(run, count=1)).run(2)
    assert play.up["site0"] == 2 * 4 * 5000 * 10 == 2 * 200_000
    assert play.down["site0"] == 200_000
