"""FedMD: the plain mean of logits, who digests it, and that it teaches classes a site does not have."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_bench.methods.fedmd import CONSENSUS, FedMD
from fkd_bench.methods.private import passes
from fkd_common.exchange_method import Federation, Labelled, Site
from fkd_common.tensors import Tensors
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal

METHOD = {"method": "fedmd", "options": {"digest_epochs": 20, "digest_batch": 32}}


def _play(**keys: object) -> Rehearsal:
    run = rehearsal.federation(**{**METHOD, **keys})
    return Rehearsal(FedMD(run), rehearsal.sites(run))


def _mean_distance(method: FedMD, run: Federation, network: Tensors, consensus: np.ndarray) -> float:
    return float(np.abs(method.networks.logits(network, run.public) - consensus).mean())


def test_the_consensus_is_the_plain_mean_whatever_the_sizes() -> None:
    method = FedMD(rehearsal.federation())
    uploads = [
        Held("a", 1, {"logits": np.array([[0.0, 4.0], [2.0, 2.0]], np.float32)}),
        Held("b", 999, {"logits": np.array([[4.0, -4.0], [0.0, 2.0]], np.float32)}),
    ]
    result = method.aggregate({}, uploads, 1)
    assert result.groups[CONSENSUS]["logits"].tolist() == [[2.0, 0.0], [1.0, 2.0]]
    assert result.record == {"weights": {"a": 0.5, "b": 0.5}}


def test_the_first_round_trains_on_private_data_alone() -> None:
    play = _play()
    site = play.sites[0]
    sent = play.method.local_update(site, {}, 1)["logits"]
    alone = play.method.trained(site, play.method.networks.start(), 0)
    assert (sent == play.method.networks.logits(alone, play.method.federation.public)).all()


def test_digesting_approaches_the_consensus() -> None:
    play = _play()
    method, run, site = play.method, play.method.federation, play.sites[0]
    assert isinstance(method, FedMD)
    play.round(1)
    private, consensus = method.private(site), play.state[CONSENSUS]["logits"]
    digested = method._digested(site, private, consensus, 2)
    near, far = (_mean_distance(method, run, network, consensus) for network in (digested, private))
    assert near < 0.7 * far


def test_a_client_that_was_away_digests_the_latest_consensus() -> None:
    play = _play()
    play.round(1)
    play.round(2, absent=("site1",))
    play.round(3, absent=("site1",))
    got = play.received(4, "site1")
    assert got[CONSENSUS]["logits"] is play.state[CONSENSUS]["logits"]
    before = play.sites[1].memory["private"]
    play.round(4)
    assert not (play.sites[1].memory["private"]["output.bias"] == before["output.bias"]).all()
    assert sorted(play.records[2]["weights"]) == ["site0", "site2"]


def test_digesting_teaches_a_class_that_the_site_does_not_have() -> None:
    play = _play(options={"digest_epochs": 60, "digest_batch": 32}).run(2)
    test = rehearsal.test_set(play.method.federation)
    missing = test.inputs[test.labels == 0]
    method, site = play.method, play.sites[0]
    assert isinstance(method, FedMD)
    alone = method.trained(site, method.networks.start(), 0)
    digested = method._digested(site, method.private(site), play.state[CONSENSUS]["logits"], 3)
    knows = [(method.scores(m, missing).argmax(axis=1) == 0).mean() for m in (alone, digested)]
    assert knows[0] == 0
    assert knows[1] > 0.9


def test_it_learns() -> None:
    play = _play().run(3)
    test = rehearsal.test_set(play.method.federation)
    assert play.personal_accuracy(test) > 0.8  # alone 0.72
    assert play.method.global_model(play.state) is None


def test_making_a_personal_model_changes_nothing() -> None:
    play = _play().run(1)
    site = play.sites[0]
    first, second = (play.method.personal_model(site, play.received(2, site.name)) for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("anchors", [1, 33])
def test_a_tiny_site_alone_in_its_cohort(n: int, anchors: int) -> None:
    run = rehearsal.federation(**METHOD, anchors=anchors)
    rows = rehearsal.sites(run)[0].train
    empty = Labelled(rows.inputs[:0], rows.labels[:0])
    site = Site("one", Labelled(rows.inputs[:n], np.zeros(n, np.int64)), empty, seed=1)
    play = Rehearsal(FedMD(run), [site]).run(2)
    model = play.method.personal_model(site, play.received(3, "one"))
    assert all(np.isfinite(values).all() for values in model.values())


@pytest.mark.parametrize(
    ("n", "size", "expected"), [(1, 64, 1), (64, 64, 1), (65, 64, 1), (66, 64, 2), (10, 4, 3)]
)
def test_a_pass_leaves_out_a_last_batch_of_one(n: int, size: int, expected: int) -> None:
    assert passes(n, size, 3) == 3 * expected


def test_absurd_logits_are_refused() -> None:
    flaw = FedMD(rehearsal.federation()).flaw({"logits": np.full((2, 4), 2e5, np.float32)})
    assert flaw == "a logit of magnitude 2e+05; at most 1e+05 is accepted"


def test_its_bytes_are_the_logits_both_ways() -> None:
    run = rehearsal.federation(num_classes=10, anchors=5000, local_steps=1)
    play = Rehearsal(FedMD(run), rehearsal.sites(run, count=1)).run(2)
    assert play.up["site0"] == 2 * 4 * 5000 * 10 == 2 * 200_000
    assert play.down["site0"] == 200_000  # in round 2; in round 1 there is no consensus
