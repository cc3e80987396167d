"""pFedFDA: Gaussians, the classifier they imply, how far a site trusts its own; the trunk alone trains."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fkd_bench.methods.gaussians import EPSILON, Gaussians, cross_validated, label_prior, two_folds
from fkd_bench.methods.networks import cross_entropy
from fkd_bench.methods.pfedfda import GAUSSIANS, TRUNK, PFedFDA
from fkd_client.embedding import preprocess
from fkd_client.extractor import ExtractorSpec, dump_extractor, load_extractor
from fkd_client.pretrain import initial_trunk
from fkd_common.config import RunConfig
from fkd_common.exchange_method import Federation, Labelled, Site
from tests.methods import rehearsal
from tests.methods.rehearsal import Held, Rehearsal


def _f64(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_the_estimate_by_hand() -> None:
    z = _f64([0, 0], [2, 0], [5, 1], [5, 3])
    found = Gaussians.estimate(z, torch.tensor([0, 0, 2, 2]), missing=_f64([9, 9], [7, 8], [9, 9]))
    assert found.mu.tolist() == [[1, 0], [7, 8], [5, 2]]
    # Deviations ±1 in x for class 0 and in y for class 2: scatter diag(2, 2), over n − 1 = 3, and the ridge.
    expected = np.diag([2 / 3 + EPSILON, 2 / 3 + EPSILON])
    np.testing.assert_allclose(found.sigma.numpy(), expected, rtol=1e-12)


def test_one_sample_is_its_own_mean() -> None:
    z, y = _f64([0, 0], [2, 0], [5, 1]), torch.tensor([0, 0, 1])
    assert Gaussians.estimate(z, y, missing=_f64([9, 9], [9, 9])).mu.tolist() == [[1, 0], [5, 1]]


def test_the_classifier_is_bayes_rule() -> None:
    sigma = _f64([2, 0.5], [0.5, 1])
    gaussians, prior = Gaussians(_f64([1, 0], [0, 2]), sigma), torch.tensor([0.25, 0.75], dtype=torch.float64)
    weight, bias = gaussians.classifier(prior)
    shrunk = (1 - EPSILON) * sigma + EPSILON * 1.5 * torch.eye(2, dtype=torch.float64)
    x = _f64([0.3, -0.7])
    joint = [
        torch.distributions.MultivariateNormal(mu, shrunk).log_prob(x[0]) + prior[c].log()
        for c, mu in enumerate(gaussians.mu)
    ]
    logits = (x @ weight.T + bias)[0]
    assert (logits[0] - logits[1]).item() == pytest.approx((joint[0] - joint[1]).item())


def test_the_prior_knows_absent_classes() -> None:
    prior = label_prior(torch.tensor([0, 0, 0, 2]), 3)
    expected = np.array([0.75 + EPSILON, EPSILON, 0.25 + EPSILON]) / (1 + 3 * EPSILON)
    np.testing.assert_allclose(prior.numpy(), expected)


def test_mixing_weighs_means_and_covariance_apart() -> None:
    pooled, local = Gaussians(_f64([0.0]), _f64([4.0])), Gaussians(_f64([1.0]), _f64([8.0]))
    mixed = pooled.towards(local, torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert (mixed.mu.item(), mixed.sigma.item()) == (0.25, 7.0)


def test_folds_are_stratified_and_leave_single_samples_out() -> None:
    y = np.array([0, 1, 0, 2, 0, 2, 0])
    first, second = two_folds(y, np.random.default_rng(0))
    assert sorted(y[first]) == sorted(y[second]) == [0, 0, 2]
    assert sorted([*first, *second]) == [0, 2, 3, 4, 5, 6]


def _spread(n: int, means: np.ndarray, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = np.arange(n) % len(means)
    z = means[y] + np.random.default_rng(seed).normal(0, 1, (n, means.shape[1]))
    return torch.from_numpy(z), torch.from_numpy(y)


def test_a_site_trusts_its_own_means_where_the_global_ones_mislead() -> None:
    means = np.array([[3.0, 0], [0, 3.0]])
    z, y = _spread(200, means, 0)
    right = Gaussians(torch.from_numpy(means), torch.eye(2, dtype=torch.float64))
    wrong = Gaussians(torch.from_numpy(means[::-1].copy()), torch.eye(2, dtype=torch.float64))
    assert cross_validated(wrong, z, y, np.random.default_rng(0))[0] > 0.9
    few, few_y = z[:6], y[:6]
    assert cross_validated(right, few, few_y, np.random.default_rng(0))[0] < 0.7


def test_no_other_mixture_does_better_on_the_held_out_halves() -> None:
    z, y = _spread(14, np.array([[1.5, 0, 0], [0, 1.5, 0]]), 0)
    pooled = Gaussians(_f64([1.5, 0.5, 0.5], [0, 1, 1]), 2 * torch.eye(3, dtype=torch.float64))
    halves = two_folds(y.numpy(), np.random.default_rng(0))

    def loss(beta: torch.Tensor) -> float:
        total = 0.0
        for fit, out in ((0, 1), (1, 0)):
            local = Gaussians.estimate(z[halves[fit]], y[halves[fit]], pooled.mu)
            weight, bias = pooled.towards(local, beta).classifier(label_prior(y, 2))
            logits = z[halves[out]] @ weight.T + bias
            total += torch.nn.functional.cross_entropy(logits, y[halves[out]]).item()
        return total

    grid = np.linspace(0, 1, 21)
    others = [loss(torch.tensor([b_mu, b_sigma])) for b_mu in grid for b_sigma in grid]
    found = cross_validated(pooled, z, y, np.random.default_rng(0))
    assert 0.05 < found.min() < found.max() < 0.99  # a case with something to choose
    assert loss(found) < min(others) + 1e-3


def test_nothing_to_validate_on_means_nothing_local() -> None:
    pooled = Gaussians(torch.zeros(3, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    beta = cross_validated(pooled, _f64([1, 2], [3, 4]), torch.tensor([0, 1]), np.random.default_rng(0))
    assert beta.tolist() == [0, 0]


def test_before_the_first_round_all_classes_look_like_the_anchors() -> None:
    run = rehearsal.federation(method="pfedfda")
    state = PFedFDA(run).start()[GAUSSIANS]
    h = run.anchor_embeddings
    np.testing.assert_allclose(state["mu"], np.tile(h.mean(axis=0), (4, 1)), atol=1e-6)
    np.testing.assert_allclose(
        state["sigma"], np.cov(h.T.astype(np.float64)) + EPSILON * np.eye(12), atol=1e-5
    )


def test_the_server_averages_by_samples() -> None:
    run = rehearsal.federation(method="pfedfda", d=2, num_classes=2)
    method = PFedFDA(run)
    uploads = [
        Held(name, n_k, {"mu": np.full((2, 2), mu, np.float32), "sigma": mu * np.eye(2, dtype=np.float32)})
        for name, n_k, mu in (("a", 1, 0.0), ("b", 3, 4.0))
    ]
    result = method.aggregate(method.start(), uploads, 1)
    assert (result.groups[GAUSSIANS]["mu"] == 3).all()
    assert result.groups[GAUSSIANS]["sigma"].tolist() == [[3, 0], [0, 3]]
    assert result.record["weights"] == {"a": 0.25, "b": 0.75}


def test_it_learns() -> None:
    run = rehearsal.federation(method="pfedfda")
    play = Rehearsal(PFedFDA(run), rehearsal.sites(run)).run(5)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.9
    assert play.personal_accuracy(rehearsal.test_set(run)) > 0.6


def test_the_personal_model_knows_its_sites_prior() -> None:
    run = rehearsal.federation(method="pfedfda")
    rng = np.random.default_rng(0)
    # What an image looks like says nothing of its class: only how frequent classes are can be known.
    h = rng.normal(0, 1, (400, run.embedding_dim)).astype(np.float32)
    y = rng.choice([1, 3], 400, p=[0.9, 0.1])
    site = Site("noise", Labelled(h[:200], y[:200]), Labelled(h[:0], y[:0]), seed=0)
    play = Rehearsal(PFedFDA(run), [site]).run(3)
    method, received = play.method, play.received(4, "noise")
    personal = method.scores(method.personal_model(site, received), h[200:]).argmax(axis=1)
    everyones = method.scores(method.global_model(received), h[200:]).argmax(axis=1)
    assert (personal == 1).mean() > 0.9
    assert (everyones == 1).mean() < 0.7


@pytest.mark.parametrize("n", [1, 2, 9])
def test_a_lonely_site_of_one_class(n: int) -> None:
    run = rehearsal.federation(method="pfedfda")
    h, _ = rehearsal.clusters(n, run.embedding_dim, run.num_classes, 1)
    site = Site("one", Labelled(h, np.full(n, 2)), Labelled(h[:0], np.zeros(0, np.int64)), seed=1)
    play = Rehearsal(PFedFDA(run), [site]).run(3)
    scores = play.method.scores(play.method.personal_model(site, play.received(4, "one")), h)
    assert np.isfinite(scores).all()
    assert (scores.argmax(axis=1) == 2).all()
    assert np.isfinite(play.method.scores(play.method.global_model(play.state), h)).all()


def test_only_the_last_round_asks_everyone() -> None:
    method = PFedFDA(rehearsal.federation(method="pfedfda", rounds=3))
    assert [method.everyone(number) for number in (1, 2, 3)] == [False, False, True]


def test_what_is_no_covariance_is_refused() -> None:
    method = PFedFDA(rehearsal.federation(method="pfedfda", d=2, num_classes=2))
    mu = np.zeros((2, 2), np.float32)

    def flaw(sigma: list[list[float]], mean: float = 0.0) -> str:
        return str(method.flaw({"mu": mu + np.float32(mean), "sigma": np.array(sigma, np.float32)}))

    assert flaw([[2, 1], [1, 2]]) == "None"
    assert "not symmetric" in flaw([[2, 1], [0, 2]])
    assert "not positive definite" in flaw([[2, 3], [3, 2]])
    assert "not positive definite" in flaw([[-1, 0], [0, -1]])
    assert "not positive definite" in flaw([[0, 0], [0, 0]])
    assert "mean 1e+07" in flaw([[2, 1], [1, 2]], mean=1e7)
    assert "variance 1e+13" in flaw([[1e13, 0], [0, 1]])


def test_its_bytes_are_means_and_covariance_both_ways() -> None:
    run = rehearsal.federation(method="pfedfda", d=512, num_classes=10)
    play = Rehearsal(PFedFDA(run), rehearsal.sites(run, count=1)).run(1)
    assert play.up["site0"] == play.down["site0"] == 4 * 10 * 512 + 4 * 512**2 == 1_069_056
    assert math.isfinite(play.global_accuracy(rehearsal.test_set(run)))
    assert TRUNK not in play.state


def _whole_network() -> tuple[PFedFDA, list[Site]]:
    """A fresh ResNet18 for 32 px, two sites of eight images of noise, one local step."""
    spec = ExtractorSpec("resnet18", 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    artifact = dump_extractor(initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict(), spec)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 8, 32, 32, 3), dtype=np.uint8)
    with torch.no_grad():
        embeddings = load_extractor(artifact)(preprocess(images[0], spec)).numpy()
    config = RunConfig(method="pfedfda", model="full", rounds=2, local_steps=1, batch_size=8)
    federation = Federation(config, 10, images[0], embeddings, lambda: artifact)
    y, empty = rng.integers(0, 10, 8), Labelled(images[0, :0], np.zeros(0, np.int64))
    return PFedFDA(federation), [
        Site(name, Labelled(x, y), empty, seed)
        for seed, (name, x) in enumerate(zip("ab", images[1:], strict=True))
    ]


def test_in_full_mode_the_trunk_trains_and_the_classifier_does_not() -> None:
    method, made = _whole_network()
    play = Rehearsal(method, made).run(2)
    model = method.global_model(play.state)
    personal = method.personal_model(made[0], play.received(3, "a"))
    for tensors in (model, personal):
        assert np.isfinite(method.scores(tensors, made[0].train.inputs)).all()
    wrong = Labelled(made[0].train.inputs, (made[0].train.labels + 1) % 10)
    trained = method.networks.train(Site("c", wrong, made[0].val, 0), model, cross_entropy, 3)
    change = {
        name: np.abs(trained[name] - model[name]).max() for name in model if name.endswith(("weight", "bias"))
    }
    assert change.pop("fc.weight") == change.pop("fc.bias") == 0
    assert min(change.values()) > 1e-4
    assert sorted(play.state[TRUNK]) == sorted(name for name in model if not name.startswith("fc"))
    # θ with its BatchNorm buffers, but without a classifier, beside the means and the covariance.
    assert play.up["a"] == play.down["a"] == 2 * (44_765_128 - 4 * 10 * 513 + 1_069_056)


def test_in_full_mode_a_classifier_that_tells_nothing_trains_nothing() -> None:
    method, made = _whole_network()
    play = Rehearsal(method, made)
    before = dict(play.state[TRUNK])
    play.round(1)
    after = play.state[TRUNK]
    weights = [name for name in after if name.endswith("weight")]
    decay = 1e-3 * 3e-4
    assert all(np.abs(after[name] - (1 - decay) * before[name]).max() < 2e-6 for name in weights)
