"""Class-conditional Gaussians with one covariance: their estimate, the classifier they imply, mixing two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fkd_common.tensors import Tensors

EPSILON = 1e-4
"""ε of pFedFDA: in the prior, in the covariance of an estimate, and in its shrinkage."""
_LBFGS_STEPS = 10


@dataclass(frozen=True, eq=False)
class Gaussians:
    """N(μ_c, Σ) for every class c; float64."""

    mu: Tensor
    """(C, d)"""
    sigma: Tensor
    """(d, d)"""

    @classmethod
    def of(cls, tensors: Tensors) -> Self:
        """From named tensors "mu" and "sigma"."""
        return cls(torch.tensor(tensors["mu"]).double(), torch.tensor(tensors["sigma"]).double())

    def tensors(self) -> Tensors:
        """As "mu" and "sigma", float32."""
        return {"mu": self.mu.float().numpy(), "sigma": self.sigma.float().numpy()}

    @classmethod
    def estimate(cls, z: Tensor, y: Tensor, missing: Tensor) -> Self:
        """Maximum likelihood from samples, the pooled covariance with ε·I, which makes it positive definite.

        Args:
            z: (n, d) features, float64, n at least 1.
            y: (n,) classes.
            missing: (C, d) means of classes without samples.
        """
        counts = torch.bincount(y, minlength=len(missing))
        sums = torch.zeros_like(missing).index_add_(0, y, z)
        mu = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], missing)
        centred = z - mu[y]
        sigma = centred.T @ centred / max(1, len(y) - 1)
        return cls(mu, sigma + EPSILON * torch.eye(z.shape[1], dtype=z.dtype))

    def towards(self, local: Gaussians, beta: Tensor) -> Gaussians:
        """β·local + (1−β)·self, with (2,) β for the means and for the covariance."""
        return Gaussians(
            beta[0] * local.mu + (1 - beta[0]) * self.mu,
            beta[1] * local.sigma + (1 - beta[1]) * self.sigma,
        )

    def classifier(self, prior: Tensor) -> tuple[Tensor, Tensor]:
        """The linear classifier that Bayes' rule gives, its Σ shrunk towards a multiple of I.

        It is W_c = Σ⁻¹μ_c and b_c = log π_c − ½ μ_cᵀΣ⁻¹μ_c less what all classes share, which softmax does not see and
        float32 has no digits for: W_c = Σ⁻¹(μ_c − μ̄) and b_c = log π_c − ½ (μ_c + μ̄)ᵀW_c, μ̄ the mean of all μ_c.

        Args:
            prior: (C,) π.

        Returns:
            (C, d) W and (C,) b.
        """
        d = len(self.sigma)
        scale = EPSILON * self.sigma.trace() / d
        shrunk = (1 - EPSILON) * self.sigma + scale * torch.eye(d, dtype=self.sigma.dtype)
        centre = self.mu.mean(dim=0)
        weight = torch.linalg.solve(shrunk, (self.mu - centre).T).T
        return weight, prior.log() - ((self.mu + centre) * weight).sum(dim=1) / 2


def label_prior(y: Tensor, num_classes: int) -> Tensor:
    """(C,) float64 shares π_c of the labels plus ε, renormalised."""
    shares = torch.bincount(y, minlength=num_classes).double() / max(1, len(y)) + EPSILON
    return shares / shares.sum()


def cross_validated(pooled: Gaussians, z: Tensor, y: Tensor, rng: np.random.Generator) -> Tensor:
    """(2,) β in [0, 1] for means and covariance: least 2-fold cross-validated cross-entropy, by L-BFGS from ½.

    Classes with a single sample are left out; where nothing is left β is 0, and nothing local is trusted.

    Args:
        pooled: The global Gaussians.
        z: (n, d) features, float64.
        y: (n,) classes.
        rng: Draws the folds, stratified by class.
    """
    prior = label_prior(y, len(pooled.mu))
    halves = [torch.from_numpy(rows) for rows in two_folds(y.numpy(), rng)]
    if len(halves[0]) == 0:
        return torch.zeros(2, dtype=torch.float64)
    folds = [
        (Gaussians.estimate(z[fit], y[fit], pooled.mu), z[held_out], y[held_out])
        for fit, held_out in (halves, halves[::-1])
    ]
    beta = torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [beta], max_iter=_LBFGS_STEPS, tolerance_grad=1e-3, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for local, z_out, y_out in folds:
            weight, bias = pooled.towards(local, beta.clamp(0, 1)).classifier(prior)
            total = total + functional.cross_entropy(z_out @ weight.T + bias, y_out)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return beta.detach().clamp(0, 1)


def two_folds(y: NDArray[np.int64], rng: np.random.Generator) -> Sequence[NDArray[np.int64]]:
    """Two halves of the rows, every class of two or more samples in both; those of one sample are in neither."""
    halves: tuple[list[NDArray[np.int64]], ...] = ([], [])
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        if len(rows) >= 2:
            halves[0].append(rows[0::2])
            halves[1].append(rows[1::2])
    return [np.sort(np.concatenate([np.empty(0, np.int64), *half])) for half in halves]
