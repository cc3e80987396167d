"""FedNTD: what the received network says of the wrong classes holds clients back, what it says of the true one not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fkd_bench.methods.fedavg import FedAvg
from fkd_bench.methods.fedntd import FedNTD, not_true, not_true_loss
from fkd_common.exchange_method import MODEL, Labelled, Site
from fkd_common.tensors import Tensors
from tests.methods import rehearsal
from tests.methods.rehearsal import Rehearsal


def test_the_true_class_is_left_out() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert not_true(logits, torch.tensor([1, 2])).tolist() == [[1.0, 3.0], [4.0, 5.0]]


def test_the_loss_is_the_divergence_over_the_other_classes() -> None:
    # Without class 0: the received network says (3/4, 1/4), the local one (1/2, 1/2).
    received = torch.tensor([[9.0, math.log(3), 0.0]])
    local = torch.tensor([[-5.0, 1.0, 1.0]])
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert not_true_loss(local, received, torch.tensor([0]), 1.0).item() == pytest.approx(expected)
    # With τ = ½ logits count twice, so 3 becomes 9; there is no factor τ².
    expected = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert not_true_loss(local, received, torch.tensor([0]), 0.5).item() == pytest.approx(expected)


def test_the_loss_does_not_touch_the_true_class() -> None:
    local = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    not_true_loss(local, torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([2]), 1.0).backward()
    assert local.grad is not None
    assert local.grad[0, 2] == 0
    assert local.grad[0, :2].abs().min() > 0


def test_two_classes_leave_nothing_to_distil() -> None:
    logits = torch.tensor([[1.0, -2.0]])
    assert not_true_loss(logits, -logits, torch.tensor([0]), 1.0).item() == 0


def _update(options: dict[str, float], method: type[FedAvg] | type[FedNTD] = FedNTD) -> Tensors:
    run = rehearsal.federation(method=method.title.lower(), options=options)
    made, site = method(run), rehearsal.sites(run)[0]
    trained = {MODEL: made.local_update(site, made.start(), 1)}
    return made.local_update(site, trained, 2)


def test_without_the_term_it_is_fedavg() -> None:
    ntd, avg = _update({"beta": 0.0}), _update({}, FedAvg)
    assert all((ntd[name] == avg[name]).all() for name in avg)


def test_the_term_keeps_what_the_received_network_says_of_other_classes() -> None:
    run = rehearsal.federation()
    plain = FedAvg(run)
    trained = {MODEL: Rehearsal(plain, rehearsal.sites(run, skewed=False)).run(3).state[MODEL]}
    h, y = rehearsal.clusters(200, run.embedding_dim, run.num_classes, 7)
    own = Labelled(h[y < 2], y[y < 2])
    site = Site("half", own, Labelled(h[:0], y[:0]), seed=1)

    def forgotten(beta: float) -> float:
        options = {"beta": beta}
        method = FedNTD(rehearsal.federation(method="fedntd", options=options, local_steps=60))
        after = method.scores(method.local_update(site, trained, 1), own.inputs)
        before = method.scores(trained[MODEL], own.inputs)
        return not_true_loss(*(torch.from_numpy(z) for z in (after, before, own.labels)), 1.0).item()

    losses = [forgotten(beta) for beta in (0.0, 1.0, 10.0)]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("n", [1, 5])
def test_a_site_of_one_class_trains(n: int) -> None:
    run = rehearsal.federation(method="fedntd")
    h, _ = rehearsal.clusters(n, run.embedding_dim, run.num_classes, 1)
    site = Site("one", Labelled(h, np.zeros(n, np.int64)), Labelled(h[:0], np.zeros(0, np.int64)), seed=1)
    play = Rehearsal(FedNTD(run), [site]).run(2)
    assert all(np.isfinite(array).all() for array in play.state[MODEL].values())


def test_it_learns() -> None:
    run = rehearsal.federation(method="fedntd")
    play = Rehearsal(FedNTD(run), rehearsal.sites(run)).run(10)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.8
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.8


def test_its_bytes_are_the_networks_both_ways() -> None:
    run = rehearsal.federation(
        method="fedntd", d=512, num_classes=10, hidden=(512, 256, 128), dropout=(0.4, 0.3, 0.2), local_steps=1
    )
    play = Rehearsal(FedNTD(run), rehearsal.sites(run, count=1)).run(1)
    assert play.up["site0"] == play.down["site0"] == 1_727_040
