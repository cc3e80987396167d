"""DaFKD-F: a teacher counts where its discriminator takes the sample for its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fkd_bench.methods.dafkd import BIAS, WEIGHT, DaFKD, discriminator_loss, domain_weights
from fkd_bench.methods.fedavg import FedAvg
from fkd_common.exchange_method import Federation, Labelled, Site
from fkd_common.tensors import Tensors
from tests.methods import rehearsal
from tests.methods.constant import divergence, saying, sigma
from tests.methods.rehearsal import Held, Rehearsal

LOG_3 = math.log(3)


def test_weights_are_shares_of_the_discriminators() -> None:
    a = domain_weights(np.log([[0.6, 0.5], [0.2, 0.5]]))
    assert a[:, 0] == pytest.approx([0.75, 0.25])
    assert a[:, 1] == pytest.approx([0.5, 0.5])


def test_weights_are_shares_where_nobody_knows_the_sample() -> None:
    assert domain_weights(np.array([[-5000.0], [-5000.0 - LOG_3]]))[:, 0] == pytest.approx([0.75, 0.25])


def test_the_discriminators_loss() -> None:
    v, b = torch.tensor([LOG_3, 0.0]), torch.zeros(1)
    own, public, mix = torch.tensor([[1.0, 5.0]]), torch.tensor([[-1.0, 5.0]]), torch.tensor([[0.5]])
    # D = 3/4 for its own, 1/4 for the public one, and 1/2 between the two, with slope 1/4·‖v‖.
    expected = -math.log(0.75) - math.log(0.75) + 0.3 * (LOG_3 / 4 - 1) ** 2
    assert discriminator_loss(v, b, own, public, mix, 0.3).item() == pytest.approx(expected)


def test_the_penalty_is_on_the_slope_of_the_discriminator() -> None:
    rng = torch.Generator().manual_seed(0)
    v, own, public = torch.randn(3, generator=rng), *torch.randn(2, 4, 3, generator=rng)
    b, mix = torch.tensor([0.3]), torch.rand(4, 1, generator=rng)
    between = (mix * own + (1 - mix) * public).requires_grad_()
    (slope,) = torch.autograd.grad(torch.sigmoid(between @ v + b).sum(), between)
    expected = ((slope.norm(dim=1) - 1) ** 2).mean().item()
    with_and_without = [discriminator_loss(v, b, own, public, mix, penalty).item() for penalty in (1.0, 0.0)]
    assert with_and_without[0] - with_and_without[1] == pytest.approx(expected, rel=1e-4)


def _upload(run: Federation, logits: list[float], bias: float) -> Tensors:
    d = run.embedding_dim
    return saying(run, logits) | {WEIGHT: np.zeros(d, np.float32), BIAS: np.array([bias], np.float32)}


def test_the_target_is_the_weighted_sum_of_logits() -> None:
    run = rehearsal.federation(num_classes=2, method="dafkd", options={"steps": 0, "temperature": 2.0})
    # D = 3/4 and 1/4, so z̄ = ¾·(4, 0); weights say (1, 0) on average.
    uploads = [Held("a", 1, _upload(run, [4.0, 0.0], LOG_3)), Held("b", 3, _upload(run, [0.0, 0.0], -LOG_3))]
    record = DaFKD(run).aggregate({}, uploads, 1).record
    assert record["teacher_weights"] == pytest.approx({"a": 0.75, "b": 0.25}, rel=1e-4)
    expected = 2.0**2 * divergence(sigma(3 / 2), sigma(1 / 2))
    assert record["distillation"]["loss_before"] == pytest.approx(expected, rel=1e-4)


def test_the_network_is_trained_as_by_fedavg() -> None:
    run = rehearsal.federation(method="dafkd")
    site = rehearsal.sites(run)[0]
    ours, theirs = (method(run).local_update(site, method(run).start(), 1) for method in (DaFKD, FedAvg))
    assert ours.keys() - theirs.keys() == {WEIGHT, BIAS}
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def _discriminators(run: Federation) -> tuple[Site, Tensors, Tensors]:
    """A site of class 0 alone, and its discriminators after rounds 1 and 2."""
    h, y = rehearsal.clusters(200, run.embedding_dim, run.num_classes, 5)
    own = Labelled(h[y == 0], y[y == 0])
    site, made = Site("site", own, Labelled(h[:0], y[:0]), seed=3), DaFKD(run)
    first = made.local_update(site, made.start(), 1)
    return site, first, made.local_update(site, made.start(), 2)


def test_a_site_recognises_its_own_domain() -> None:
    run = rehearsal.federation(method="dafkd", anchors=200)
    site, _, trained = _discriminators(run)
    own, public = (h @ trained[WEIGHT] + trained[BIAS] for h in (site.train.inputs, run.public))
    assert own.min() > 0 > np.median(public)


def test_the_discriminator_goes_on_from_the_round_before() -> None:
    run = rehearsal.federation(method="dafkd", options={"penalty": 0.0})
    site, first, second = _discriminators(run)
    assert np.linalg.norm(second[WEIGHT]) > 1.2 * np.linalg.norm(first[WEIGHT])
    assert (site.memory["discriminator"][WEIGHT] == second[WEIGHT]).all()


def test_the_discriminators_stay_out_of_the_model() -> None:
    run = rehearsal.federation(method="dafkd", options={"steps": 1})
    play = Rehearsal(DaFKD(run), rehearsal.sites(run)).run(1)
    assert play.state.keys() == {"model"}
    assert play.state["model"].keys() == play.method.start()["model"].keys()


def test_a_network_that_no_training_gives_is_refused() -> None:
    run = rehearsal.federation(method="dafkd")
    upload = _upload(run, [0.0] * 4, 0.0)
    assert DaFKD(run).flaw(upload) is None
    wrong = {**upload, "layers.0.norm.running_var": -upload["layers.0.norm.running_var"]}
    assert "negative variance" in str(DaFKD(run).flaw(wrong))
