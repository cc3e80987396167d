"""pFedFDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fkd_bench.methods.averaging import averaged
from fkd_bench.methods.gaussians import EPSILON, Gaussians, cross_validated, label_prior
from fkd_bench.methods.networks import FullNetwork, Networks, cross_entropy
from fkd_common.exchange_method import Aggregate, ExchangeMethod, Federation, Layout, Site, State, Upload
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

GAUSSIANS, TRUNK = "gaussians", "trunk"
"""Groups of the state: μ and Σ, and in full mode θ."""
_MAX_FEATURE = 1e6
"""Largest magnitude of a feature that is accepted."""
T = TypeVar("T")


class PFedFDA(ExchangeMethod):
    """Features are taken for Gaussian, N(μ_c, Σ) in class c; everybody's classifier is the one that follows (LDA).

    A client sets its classifier from the global (μ, Σ) and its own label prior, freezes it and trains the extractor
    θ by cross-entropy. Then it estimates (μ_k, Σ_k) from its features and uploads them mixed with the global ones,
    μ' = β_μ μ_k + (1−β_μ) μ and Σ' = β_Σ Σ_k + (1−β_Σ) Σ, with θ. The server averages all of it by n_k. Its own
    model mixes anew, with the last θ, μ and Σ. The last round is everyone's.

    In head mode the extractor is frozen, and μ and Σ alone travel (4Cd + 4d² bytes).

    Unlike the authors' code: before round 1, μ_c is the anchors' mean for every c and Σ their covariance, not
    random; (μ_k, Σ_k) are of the trained θ in eval mode, not of θ as it moves; ε·I is added to Σ_k, not ε + I.
    The global model has a uniform prior.
    """

    title = "pFedFDA"
    source = (
        "McLaughlin and Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024"
    )
    full_mode = True
    trained_group = TRUNK

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.networks = _FixedClassifier(federation)

    # -- server half ------------------------------------------------------------------------------

    def start(self) -> State:
        """The anchors' features, and in full mode the run's extractor."""
        z = torch.from_numpy(self.federation.anchor_embeddings).double()
        mean = z.mean(dim=0, keepdim=True)
        one_class = torch.zeros(len(z), dtype=torch.int64)
        sigma = Gaussians.estimate(z, one_class, mean).sigma
        state = {GAUSSIANS: Gaussians(mean.repeat(self.num_classes, 1), sigma).tensors()}
        if self.federation.full:
            state[TRUNK] = _trunk(self.networks.start())
        return state

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """All there is."""
        return GAUSSIANS, TRUNK

    def everyone(self, round_number: int) -> bool:
        """The last round leaves nobody out."""
        return round_number == self.config.rounds

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """μ', Σ' and in full mode θ."""
        d = self.federation.embedding_dim
        layout = {
            "mu": TensorSpec((self.num_classes, d), "float32"),
            "sigma": TensorSpec((d, d), "float32"),
        }
        return {**layout, **_trunk(self.networks.layout)} if self.federation.full else layout

    def flaw(self, tensors: Tensors) -> str | None:
        """Features that are too large, or a Σ that is no covariance."""
        mu, sigma = tensors["mu"], tensors["sigma"].astype(np.float64)
        largest, variance = float(np.abs(mu).max()), float(sigma.diagonal().max())
        if largest > _MAX_FEATURE or variance > _MAX_FEATURE**2:
            return f"features of mean {largest:.3g} and variance {variance:.3g}"
        if not np.allclose(sigma, sigma.T, rtol=0, atol=1e-5 * max(variance, 0)):
            return "a covariance that is not symmetric"
        ridge = EPSILON * max(variance, 0) * np.eye(len(sigma))
        try:
            np.linalg.cholesky(sigma + ridge)
        except np.linalg.LinAlgError:
            return "a covariance that is not positive definite"
        return self.networks.flaw(_trunk(tensors)) if self.federation.full else None

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Averages by n_k, of μ', Σ' and θ alike."""
        average, record = averaged(uploads)
        groups = {GAUSSIANS: {name: average[name] for name in ("mu", "sigma")}}
        if self.federation.full:
            groups[TRUNK] = _trunk(average)
        return Aggregate(groups, record)

    def global_model(self, state: State) -> Tensors:
        """θ with the classifier that the global (μ, Σ) imply for equally frequent classes."""
        uniform = torch.full((self.num_classes,), 1 / self.num_classes, dtype=torch.float64)
        return _network(state.get(TRUNK, {}), Gaussians.of(state[GAUSSIANS]), uniform)

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train θ under the fixed classifier, then adapt the Gaussians to its features."""
        pooled = Gaussians.of(received[GAUSSIANS])
        network = _network(received.get(TRUNK, {}), pooled, self._prior(site))
        if self.federation.full:
            network = self.networks.train(site, network, cross_entropy, round_number)
        return {**self._adapted(site, network, pooled).tensors(), **_trunk(network)}

    def personal_model(self, site: Site, received: State) -> Tensors:
        """θ with the classifier of the adapted Gaussians and the site's label prior."""
        pooled, prior = Gaussians.of(received[GAUSSIANS]), self._prior(site)
        network = _network(received.get(TRUNK, {}), pooled, prior)
        return _network(_trunk(network), self._adapted(site, network, pooled), prior)

    def _adapted(self, site: Site, network: Tensors, pooled: Gaussians) -> Gaussians:
        """(μ', Σ') from a site's features, which are a network's in eval mode."""
        site.progress(0.0, "adapting the feature distribution")
        y = torch.from_numpy(site.train.labels)
        z = torch.from_numpy(self.networks.features(network, site.train.inputs, site.device)).double()
        beta = cross_validated(pooled, z, y, site.rng())
        return pooled.towards(Gaussians.estimate(z, y, pooled.mu), beta)

    def _prior(self, site: Site) -> Tensor:
        return label_prior(torch.from_numpy(site.train.labels), self.num_classes)

    # -- both -------------------------------------------------------------------------------------

    def coded_networks(self) -> Mapping[str, Layout]:
        """θ; μ and Σ, which would not stay positive definite, travel as they are."""
        return {TRUNK: _trunk(self.networks.layout)} if self.federation.full else {}

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """Logits W z + b of the features z."""
        if self.federation.full:
            return self.networks.logits(model, inputs, device)
        return np.asarray(inputs @ model["fc.weight"].T + model["fc.bias"], np.float32)


class _FixedClassifier(Networks):
    """Networks of which everything trains but the classifier."""

    def load(self, tensors: Tensors, device: str = "cpu") -> nn.Module:
        network = super().load(tensors, device)
        assert isinstance(network, FullNetwork)
        network.fc.requires_grad_(False)
        return network


def _network(theta: Tensors, gaussians: Gaussians, prior: Tensor) -> Tensors:
    """A network's tensors; without θ those of a linear classifier."""
    weight, bias = gaussians.classifier(prior)
    return {**theta, "fc.weight": weight.float().numpy(), "fc.bias": bias.float().numpy()}


def _trunk(named: Mapping[str, T]) -> dict[str, T]:
    """What of named tensors is θ."""
    return {name: value for name, value in named.items() if name.startswith("trunk.")}
