"""Epsilon against closed forms, and what is counted."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import pytest

from fkd_common.config import RunConfig
from fkd_common.privacy_accounting import PrivacySpent, Releases, epsilon


def noisy(**changes: Any) -> RunConfig:
    clips = {"residual_l2_clip": 5.0, "feature_clip": 2.0, "target_clip": 3.0}
    return RunConfig(**{"noise_multiplier": 2.0, "rounds": 100, **clips, **changes})


def exact_delta(sigma: float, releases: int, eps: float) -> float:
    """δ(ε) of n Gaussian releases, exactly (Balle & Wang 2018): they are one with σ/√n."""
    mu, normal = math.sqrt(releases) / sigma, NormalDist()
    return normal.cdf(mu / 2 - eps / mu) - math.exp(eps) * normal.cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize("sigma, releases", [(1.0, 1), (1.0, 10), (4.0, 20), (10.0, 3)])
def test_epsilon_is_an_upper_bound_and_not_a_loose_one(sigma: float, releases: int) -> None:
    eps = epsilon(sigma, releases, 1e-5)
    assert exact_delta(sigma, releases, eps) <= 1e-5 < exact_delta(sigma, releases, eps / 1.15)


def test_nothing_released_costs_nothing_and_hardly_any_noise_costs_much() -> None:
    assert epsilon(1.0, 0, 1e-5) == 0.0
    assert epsilon(0.001, 5, 1e-5) > 1e5


def test_every_correction_round_is_planned_for() -> None:
    """Before round 1 moments alone."""
    assert Releases.planned(noisy()) == Releases(residuals=10, moments=11)
    assert Releases.planned(noisy(rounds=15)) == Releases(residuals=2, moments=3)
    assert Releases.planned(noisy(rounds=1, correction_at_start=False)) == Releases(residuals=1, moments=1)
    assert Releases.planned(noisy(correction="moments")) == Releases(residuals=0, moments=11)
    assert Releases.planned(noisy(correction="anchors")) == Releases(residuals=10, moments=0)


def test_a_sample_pays_for_both_kinds_and_a_site_for_residuals_alone() -> None:
    spent = PrivacySpent.of(noisy(), Releases(residuals=3, moments=2))
    assert spent is not None
    assert spent.sample_epsilon == epsilon(2.0, 5, 1e-5)
    assert spent.site_epsilon == epsilon(2.0, 3, 1e-5)
    assert "students, votes, n_k and r_k carry no noise" in spent.sentence()
    assert spent.as_json()["releases"] == {"residuals": 3, "moments": 2}


def test_moments_alone_promise_nothing_about_a_whole_site() -> None:
    spent = PrivacySpent.of(noisy(), Releases(residuals=0, moments=2))
    assert spent is not None
    assert spent.as_json()["site_epsilon"] is None
    assert "the whole site, none promised" in spent.sentence()


def test_a_run_without_noise_promises_nothing() -> None:
    assert PrivacySpent.of(RunConfig(), Releases(3, 2)) is None
