"""FedICT: weighted distillation both ways, and logits that only their owner gets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fkd_bench.methods.fedict import COUNTS, SERVER, FedICT, frequencies, logits_of, weighted_kd
from fkd_bench.methods.networks import kd_loss
from fkd_common.errors import DataError
from fkd_common.exchange_method import Labelled, Site
from fkd_common.method.student_layout import payload_bytes
from fkd_common.tensors import decode, encode
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal


def _play(**keys: object) -> Rehearsal:
    run = rehearsal.federation(method="fedict", **keys)
    return Rehearsal(FedICT(run), rehearsal.sites(run))


def test_weighted_distillation_on_two_classes() -> None:
    logits, teacher = torch.zeros(1, 2), torch.tensor([[0.75, 0.25]])
    parts = [0.75 * math.log(0.75 / 0.5), 0.25 * math.log(0.25 / 0.5)]
    loss = weighted_kd(logits, teacher, torch.tensor([1.5, 2.0]), 3.0)
    assert float(loss) == pytest.approx(9 * (1.5 * parts[0] + 2.0 * parts[1]), abs=1e-6)


def test_with_factors_of_one_it_is_plain_distillation() -> None:
    torch.manual_seed(0)
    logits, teacher = torch.randn(5, 4), torch.softmax(torch.randn(5, 4), dim=1)
    plain = kd_loss(logits, teacher, 3.0)
    assert float(weighted_kd(logits, teacher, torch.ones(4), 3.0)) == pytest.approx(float(plain), rel=1e-6)


@pytest.mark.parametrize(
    ("adjustment", "expected"),
    [
        # cos((1/2, 1/2), (1, 0)) = 1/√2
        ("similarity", [1 + math.sqrt(0.5), 1 + math.sqrt(0.5)]),
        ("balance", [1 - 0.5 / 7, 1 + 0.5 / 7]),
    ],
)
def test_the_server_adjusts_to_what_a_client_knows(adjustment: str, expected: list[float]) -> None:
    method = FedICT(rehearsal.federation(method="fedict", options={"adjustment": adjustment}))
    d, d_k = frequencies(np.array([5, 5])), frequencies(np.array([3, 0]))
    assert method._adjusted(d, d_k) == pytest.approx(expected)


def test_every_sample_is_adjusted_for_its_own_client() -> None:
    # The first client's frequencies are those of all, so that U matters only through the other two's.
    labels = {"a": [0, 1] * 8, "b": [0] * 16, "c": [1] * 16}
    features = np.random.default_rng(0).normal(size=(16, 12)).astype(np.float32)
    logits = np.tile(np.array([2, 0, 0, 0], np.float32), (16, 1))
    biases = []
    for U in (1.01, 1e6):
        method = FedICT(
            rehearsal.federation(method="fedict", options={"adjustment": "balance", "balance": U})
        )
        uploads = [
            Held(client, 16, {"features": features, "logits": logits, "labels": np.array(y, np.int32)})
            for client, y in labels.items()
        ]
        biases.append(method.aggregate(method.start(), uploads, 1).groups[SERVER]["output.bias"])
    assert not np.array_equal(*biases)


def test_a_client_cares_most_about_its_own_classes() -> None:
    sent = []
    for prior_temperature in (0.05, 1e6):
        play = _play(options={"prior_temperature": prior_temperature})
        site = play.sites[0]
        answer = {"logits": np.tile(np.array([4, 4, 0, 0], np.float32), (len(site.train), 1))}
        logits = play.method.local_update(site, {logits_of(site.name): answer}, 1)["logits"]
        sent.append(logits - logits.mean(axis=1, keepdims=True))
    # It lacks class 0: the stronger the prior, the less of that class it takes over.
    assert sent[0][:, 0].mean() < sent[1][:, 0].mean() - 0.05


def test_counts_are_those_of_all_clients_so_far() -> None:
    play = _play()
    play.round(1, absent=("site2",))
    assert sorted(play.state[COUNTS]) == ["site0", "site1"]
    play.round(2, absent=("site0",))
    assert sorted(play.state[COUNTS]) == ["site0", "site1", "site2"]
    for site in play.sites:
        assert (play.state[COUNTS][site.name] == site.class_counts(4)).all()


def test_a_client_gets_the_servers_logits_of_its_own_samples_in_its_own_order() -> None:
    play = _play()
    play.round(1)
    for site in play.sites:
        got = play.received(2, site.name)
        assert list(got) == [logits_of(site.name)]
        expected = play.method.scores(play.state[SERVER], site.train.inputs)
        assert (got[logits_of(site.name)]["logits"] == expected).all()


def test_a_client_that_was_away_still_has_its_last_logits() -> None:
    play = _play()
    play.round(1)
    before = play.state[logits_of("site1")]["logits"]
    play.round(2, absent=("site1",))
    assert (play.received(3, "site1")[logits_of("site1")]["logits"] == before).all()


def test_the_servers_answer_changes_a_clients_training() -> None:
    updates = []
    for alpha in (0.0, 1.5):
        play = _play(options={"alpha": alpha})
        site = play.sites[0]
        answer = {"logits": np.tile(np.array([9, 0, 0, 0], np.float32), (len(site.train), 1))}
        updates.append(play.method.local_update(site, {logits_of(site.name): answer}, 1)["logits"])
    shift = updates[1].mean(axis=0) - updates[0].mean(axis=0)
    assert shift.argmax() == 0


def test_logits_of_other_data_are_refused_in_a_sentence() -> None:
    play = _play()
    with pytest.raises(DataError, match="its data may not change during a run"):
        play.method.local_update(
            play.sites[0], {logits_of("site0"): {"logits": np.zeros((3, 4), np.float32)}}, 2
        )


def test_labels_and_features_that_cannot_be_are_refused() -> None:
    method = FedICT(rehearsal.federation())
    sound = {
        "features": np.zeros((2, 12), np.float32),
        "logits": np.zeros((2, 4), np.float32),
        "labels": np.array([0, 3], np.int32),
    }
    assert method.flaw(sound) is None
    assert method.flaw({**sound, "labels": np.array([0, 4], np.int32)}) == "labels 0...4; expected 0...3"
    assert method.flaw({**sound, "labels": np.array([-1, 3], np.int32)}) == "labels -1...3; expected 0...3"
    assert "a feature" in str(method.flaw({**sound, "features": np.full((2, 12), 1e9, np.float32)}))
    assert "a logit" in str(method.flaw({**sound, "logits": np.full((2, 4), 1e9, np.float32)}))


def test_it_learns() -> None:
    play = _play().run(5)
    test = rehearsal.test_set(play.method.federation)
    assert (play.method.scores(play.state[SERVER], test.inputs).argmax(axis=1) == test.labels).mean() > 0.9
    own = []
    for site in play.sites:
        mine = np.isin(test.labels, site.train.labels)
        model = play.method.personal_model(site, play.received(9, site.name))
        own.append((play.method.scores(model, test.inputs[mine]).argmax(axis=1) == test.labels[mine]).mean())
    assert min(own) > 0.85
    assert play.method.global_model(play.state) is None


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("adjustment", ["similarity", "balance"])
def test_a_tiny_site_alone_in_its_cohort(n: int, adjustment: str) -> None:
    run = rehearsal.federation(method="fedict", options={"adjustment": adjustment})
    rows = rehearsal.sites(run)[0].train
    empty = Labelled(rows.inputs[:0], rows.labels[:0])
    site = Site("one", Labelled(rows.inputs[:n], np.zeros(n, np.int64)), empty, seed=1)
    play = Rehearsal(FedICT(run), [site]).run(2)
    model = play.method.personal_model(site, play.received(3, "one"))
    assert all(np.isfinite(values).all() for values in model.values())


def test_its_state_survives_being_written() -> None:
    play = _play().run(1)
    for tensors in play.state.values():
        back = decode(encode(tensors))
        assert all(
            (back[name] == values).all() and back[name].dtype == values.dtype
            for name, values in tensors.items()
        )


def test_its_bytes_are_those_of_features_logits_and_labels() -> None:
    run = rehearsal.federation(d=512, num_classes=10, local_steps=1)
    method = FedICT(run)
    assert payload_bytes(method.upload_layout(1, 5000)) == 5000 * (2048 + 4 * 10 + 4) == 10_460_000
    play = Rehearsal(method, rehearsal.sites(run, count=1, n=50)).run(2)
    n = len(play.sites[0].train)
    assert play.up["site0"] == 2 * n * (2048 + 40 + 4)
    assert play.down["site0"] == n * 40


def test_equal_uploads_give_equal_networks() -> None:
    play = _play()
    uploads = [Held(site.name, len(site.train), play.method.local_update(site, {}, 1)) for site in play.sites]
    results = [play.method.aggregate(play.state, uploads, 1).groups for _ in range(2)]
    assert all((results[0][SERVER][name] == values).all() for name, values in results[1][SERVER].items())
