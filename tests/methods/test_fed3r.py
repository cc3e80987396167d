"""FED3R and FED3R-RF: sums give the pooled solution, counts choose λ, two rounds are enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fkd_bench.methods.fed3r import CANDIDATES, FED3R, MOMENTS, VOTE
from fkd_bench.methods.fed3r_rf import FED3RRF, random_layer
from fkd_common.config import RunConfig
from fkd_common.exchange_method import MODEL, Federation, Labelled, Site
from fkd_common.method.residuals import Standardiser
from fkd_common.tensors import Tensors, decode, encode
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal

BOTH = pytest.mark.parametrize("kind", [FED3R, FED3RRF])


def _run(kind: type[FED3R], **keys: Any) -> Federation:
    options = {"features": 30} if kind is FED3RRF else {}
    return rehearsal.federation(**{"options": options, "method": "x", "rounds": 2, **keys})


def _by_hand() -> tuple[FED3R, list[Site]]:
    """Two anchors at ±1, so that h̄ = h; one sample a site."""
    anchors = np.array([[1.0], [-1.0]], np.float32)
    config = RunConfig(method="x", rounds=1, lambda_grid=(1.0,), kappa=2.0)
    run = Federation(config, 2, np.zeros((2, 1, 1, 3), np.uint8), anchors, lambda: b"")
    empty = Labelled(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
    made = [
        Site(name, Labelled(np.array([[h]], np.float32), np.array([y])), empty, seed=0)
        for name, h, y in (("a", 1.0, 0), ("b", -1.0, 1))
    ]
    return FED3R(run), made


def test_by_hand() -> None:
    method, made = _by_hand()
    assert method.local_update(made[1], {}, MOMENTS)["A"].tolist() == [1.0, -1.0, 1.0]
    assert method.local_update(made[1], {}, MOMENTS)["b"].tolist() == [[0.0, -1.0], [0.0, 1.0]]
    # Σ A = [[2, 0], [0, 2]], Σ b = [[1, -1], [1, 1]], λ = 1: W is a third of Σ b, and scores are twice zᵀW.
    model = Rehearsal(method, made).run(1).state[MODEL]
    np.testing.assert_allclose(model["W"], np.array([[1, -1], [1, 1]]) / 3, rtol=1e-6)
    np.testing.assert_allclose(method.scores(model, np.array([[2.0]], np.float32)), [[2, -2 / 3]], rtol=1e-6)


@BOTH
def test_the_sums_give_the_pooled_solution(kind: type[FED3R]) -> None:
    run = _run(kind)
    method, made = kind(run), rehearsal.sites(run)
    play = Rehearsal(method, made)
    play.round(1)
    h = np.concatenate([site.train.inputs for site in made])
    z = method.z(h, Standardiser.of(run.anchor_embeddings)).astype(np.float64)
    y = np.eye(run.num_classes)[np.concatenate([site.train.labels for site in made])]
    for W, strength in zip(play.state[CANDIDATES]["W"], run.config.lambda_grid, strict=True):
        pooled = np.linalg.solve(z.T @ z + strength * np.eye(z.shape[1]), z.T @ y)
        np.testing.assert_allclose(W, pooled, atol=1e-4)
    assert sum(play.records[0]["weights"].values()) == pytest.approx(1)


@BOTH
def test_it_learns_in_two_rounds_and_later_ones_change_nothing(kind: type[FED3R]) -> None:
    run = _run(kind, rounds=3)
    play = Rehearsal(kind(run), rehearsal.sites(run)).run(2)
    after_two, up = play.state[MODEL], dict(play.up)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.9
    assert list(play.state) == [MODEL]
    play.round(3)
    assert play.state[MODEL] is after_two
    assert play.up == up
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.6
    nothing = play.method.local_update(play.sites[0], {}, 3)
    assert decode(encode(nothing)) == {}


def test_everyone_takes_part_while_something_happens() -> None:
    method = FED3R(_run(FED3R))
    assert [method.everyone(number) for number in (1, 2, 3)] == [True, True, False]


def test_counts_choose_the_strength() -> None:
    run = _run(FED3R)
    method = FED3R(run)
    play = Rehearsal(method, rehearsal.sites(run))
    play.round(1)
    W = play.state[CANDIDATES]["W"]
    votes = [
        Held("a", 9, {"correct": np.array([5, 4, 1, 0]), "validation": np.array(6)}),
        Held("b", 1, {"correct": np.array([0, 0, 4, 0]), "validation": np.array(4)}),
    ]
    result = method.aggregate(play.state, votes, VOTE)
    assert (result.groups[MODEL]["W"] == W[0]).all()  # 5 and 5: of equals the first
    votes[1] = Held("b", 1, {"correct": np.array([0, 0, 5, 0]), "validation": np.array(5)})
    result = method.aggregate(play.state, votes, VOTE)
    assert (result.groups[MODEL]["W"] == W[2]).all()
    assert result.record["lambda"] == 100.0
    assert result.record["validation_samples"] == 11
    assert result.record["validation_accuracy"]["100"] == 6 / 11


def test_a_site_counts_its_own_validation_samples() -> None:
    run = _run(FED3R)
    method, site = FED3R(run), rehearsal.sites(run)[0]
    play = Rehearsal(method, [site])
    play.round(1)
    vote = method.local_update(site, play.received(2, site.name), VOTE)
    scores = method.scores(play.state[MODEL], site.val.inputs)  # that of the first λ
    assert vote["correct"][0] == (scores.argmax(axis=1) == site.val.labels).sum()
    assert vote["validation"] == len(site.val)


@BOTH
@pytest.mark.parametrize("n", [1, 3])
def test_a_lonely_site_of_one_class_without_validation(kind: type[FED3R], n: int) -> None:
    run = _run(kind)
    h, _ = rehearsal.clusters(n, run.embedding_dim, run.num_classes, 1)
    site = Site("one", Labelled(h, np.full(n, 2)), Labelled(h[:0], np.zeros(0, np.int64)), seed=1)
    method = kind(run)
    play = Rehearsal(method, [site]).run(2)
    personal = method.personal_model(site, play.received(3, "one"))
    scores = method.scores(personal, h)
    assert np.isfinite(scores).all()
    assert (scores.argmax(axis=1) == 2).all()
    assert play.records[1]["lambda"] == run.config.lambda_grid[0]
    assert method.scores(personal, h[:0]).shape == (0, run.num_classes)


def test_the_prior_is_kept_where_it_helps() -> None:
    run = _run(FED3R)
    method, made = FED3R(run), rehearsal.sites(run)
    play = Rehearsal(method, made).run(2)
    received = play.received(3, "site0")
    h, _ = rehearsal.clusters(40, run.embedding_dim, run.num_classes, 8)
    # Everything is of class 1, whatever it looks like: only the prior knows.
    ones = Labelled(h, np.ones(40, np.int64))
    personal = method.personal_model(Site("odd", ones, ones, seed=0), received)
    shift = method.scores(personal, h) - method.scores(received[MODEL], h)
    np.testing.assert_allclose(
        shift, np.broadcast_to(np.log([0.5, 40.5, 0.5, 0.5]) - np.log(42), shift.shape), atol=1e-5
    )
    # A site whose D_val contradicts its prior keeps the global model.
    y = method.scores(received[MODEL], h).argmax(axis=1)
    assert method.personal_model(Site("even", ones, Labelled(h, y), seed=0), received) == received[MODEL]


def test_personal_models_between_rounds_have_something_to_build_on() -> None:
    run = _run(FED3R, rounds=4, personal_every=1)
    method = FED3R(run)
    play = Rehearsal(method, rehearsal.sites(run))
    for number in (1, 2, 3, 4):
        play.round(number)
        personal = method.personal_model(play.sites[0], play.received(number + 1, "site0"))
        assert (personal["W"] == play.state[MODEL]["W"]).all()


@BOTH
def test_a_model_is_scored_without_anchors(kind: type[FED3R]) -> None:
    run = _run(kind)
    play = Rehearsal(kind(run), rehearsal.sites(run)).run(2)
    h = rehearsal.test_set(run).inputs
    bare = Federation(
        run.config, run.num_classes, run.anchor_images[:0], run.anchor_embeddings[:0], run.extractor
    )
    model = decode(encode(play.state[MODEL]))
    assert (kind(bare).scores(model, h) == play.method.scores(play.state[MODEL], h)).all()


def _spoilt(upload: Tensors, name: str, index: Any, value: float) -> Tensors:
    return {**upload, name: _with(upload[name], index, value)}


def _with(array: np.ndarray[Any, Any], index: Any, value: float) -> np.ndarray[Any, Any]:
    changed = array.copy()
    changed[index] = value
    return changed


def test_what_no_samples_produce_is_refused() -> None:
    run = _run(FED3R)
    method, site = FED3R(run), rehearsal.sites(run)[0]
    moments = method.local_update(site, {}, MOMENTS)
    assert method.flaw(moments) is None
    assert "0.5" in str(method.flaw(_spoilt(moments, "A", -1, 0.5)))
    assert "a class of -1" in str(method.flaw(_spoilt(moments, "b", (-1, 0), -1)))
    assert "sum to 0" in str(method.flaw(_spoilt(moments, "b", (0, 0), 1e3)))
    assert "diagonal" in str(method.flaw(_spoilt(moments, "A", 0, -1)))
    assert "larger than" in str(method.flaw(_spoilt(moments, "A", 1, 1e5)))
    vote = {"correct": np.array([1, 2, 3, 4]), "validation": np.array(4)}
    assert method.flaw(vote) is None
    assert "of 4" in str(method.flaw(_spoilt(vote, "correct", 0, 5)))
    assert method.flaw(_spoilt(vote, "correct", 0, -1)) is not None
    assert method.flaw({**vote, "validation": np.array(10**12)}) is not None


def test_the_random_layer_follows_from_the_seed() -> None:
    R, b = random_layer(3, 200, 300)
    assert (random_layer(3, 200, 300)[0] == R).all()
    assert (random_layer(4, 200, 300)[0] != R).any()
    assert R.var() == pytest.approx(1 / 200, rel=0.05)
    assert b.std() == pytest.approx(0.5, rel=0.1)
    run = _run(FED3RRF)
    method = FED3RRF(run)
    h = run.anchor_embeddings[:3]
    standardiser = Standardiser.of(run.anchor_embeddings)
    R, b = random_layer(run.config.seed, run.embedding_dim, 30)
    z = method.z(h, standardiser)
    np.testing.assert_allclose(z[:, :30], np.maximum(standardiser.apply(h) @ R + b, 0), atol=1e-6)
    assert (z[:, 30:-1] == standardiser.apply(h)).all()
    assert (z[:, -1] == 1).all()


@pytest.mark.parametrize(
    ("kind", "options", "p"),
    [(FED3R, {}, 513), (FED3RRF, {"features": 1000}, 1513), (FED3RRF, {"features": 4000}, 4513)],
)
def test_its_bytes(kind: type[FED3R], options: dict[str, int], p: int) -> None:
    run = _run(kind, options=options, d=512, num_classes=10)
    method = kind(run)
    sizes = [sum(spec.num_bytes for spec in method.upload_layout(number, 1).values()) for number in (1, 2, 3)]
    assert sizes == [4 * (p * (p + 1) // 2 + 10 * p), 8 * 4 + 8, 0]
    assert sizes[0] == {513: 547_884, 1513: 4_641_884, 4513: 40_923_884}[p]


def test_its_bytes_down_are_the_candidates_once() -> None:
    run = _run(FED3R, d=512, num_classes=10)
    play = Rehearsal(FED3R(run), rehearsal.sites(run, count=1)).run(2)
    assert play.up["site0"] == 547_884 + 40
    assert play.down["site0"] == 4 * 4 * 513 * 10
