"""FedTKD-style: what is known of FedTKD, completed where it is not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fkd_bench.methods.networks import Batch, kd_loss, shuffled_batches
from fkd_bench.methods.private import PRIVATE, PrivateNetworks, passes
from fkd_common import exchange_method
from fkd_common.exchange_method import Aggregate, Layout, Site, State, Upload, in_order
from fkd_common.method.probabilities import softmax
from fkd_common.method.soft_targets import smooth
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

FUSED = "fused"
"""The group with the latest G."""
_SMALLEST_DEVIATION = 0.01
"""Nats; clients nearer than that to each other are not told apart, however alike the others are."""


class FedTKD(PrivateNetworks):
    """Clients send probabilities P_k on the public set; the server leaves out outliers and fuses the rest into G.

    Of the paper only its three parts are public: untrustworthy clients are recognised by features of their outputs,
    the others are fused selectively, and clients distil adaptively. The equations here are ours, hence "-style":

    - Recognition: mean entropy of P_k, and mean Jensen-Shannon divergence to the other clients; a client whose robust
      z-score in either is beyond 3 is left out, the furthest first, at most ⌊(|S| − 1)/2⌋ of them. Where clients hold
      few classes each, honest ones look like outliers too: the record says who was left out and why.
    - Fusion: per sample, of the clients whose top class is that of the confidence-weighted majority or whose
      confidence reaches the median.
    - Distillation: (1 − λ_k)·CE + λ_k·T²·KL(G ‖ p_k), λ_k = λ_max·clip(1 − JS(P_k, G)/log 2, 0, 1)·q with q the mean
      of G's largest probabilities, since the public set has no labels.

    A round at a client: digest the G of the round before, train on private data, send P_k. The personal model has
    digested the last G. The server holds all P_k of a round at once: 4mC bytes each.
    """

    title = "FedTKD-style"
    source = (
        "after Chen et al., FedTKD: A Trustworthy Heterogeneous Federated Learning Based on Adaptive Knowledge "
        "Distillation, Entropy 26(1), 2024"
    )

    class Options(exchange_method.Options):
        """Of FedTKD-style; T is the run's `temperature`."""

        lambda_max: float = Field(0.5, ge=0, le=1)
        """Largest weight of the distillation term."""
        outlier_z: float = Field(3.0, gt=0)
        """Robust z-score beyond which a client is left out."""
        digest_epochs: int = Field(1, ge=1)
        """Passes over the public set in which a client distils G."""

    # -- server half ------------------------------------------------------------------------------

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """G, once there is one."""
        return (FUSED,)

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """P_k: (m, C)."""
        return {"probabilities": TensorSpec((len(self.federation.public), self.num_classes), "float32")}

    def flaw(self, tensors: Tensors) -> str | None:
        """Rows that are no probabilities."""
        p = tensors["probabilities"]
        if p.min() < 0 or np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() > 1e-3:
            return "probabilities below 0 or that do not sum to 1"
        return None

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """G of the trustworthy clients."""
        sent = {client: tensors["probabilities"] for client, _, tensors in in_order(uploads)}
        features = {
            "entropy": {client: mean_entropy(p) for client, p in sent.items()},
            "divergence": dict(zip(sent, mean_divergences(list(sent.values())), strict=True)),
        }
        excluded = outliers(features, self.options.outlier_z)
        trusted = [client for client in sent if client not in excluded]
        fused, shares = selective_fusion(np.stack([sent[client] for client in trusted]))
        record = {
            "weights": dict(zip(trusted, shares.tolist(), strict=True)),
            "excluded": excluded,
            **features,
        }
        return Aggregate({FUSED: {"probabilities": fused}}, record)

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Digest G, train, and send P_k."""
        private = self.private(site)
        if FUSED in received:
            digested = self._digested(site, private, received[FUSED]["probabilities"], round_number)
            private = self.trained(site, digested, round_number)
        site.memory[PRIVATE] = private
        return {"probabilities": self._on_public(site, private).astype(np.float32)}

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The private network after digesting the last G."""
        private = self.private(site)
        if FUSED not in received:
            return private
        return self._digested(site, private, received[FUSED]["probabilities"], self.config.rounds + 1)

    def _on_public(self, site: Site, network: Tensors) -> NDArray[np.float64]:
        return softmax(self.networks.logits(network, self.federation.public, site.device))

    def _digested(
        self, site: Site, network: Tensors, fused: NDArray[np.float32], round_number: int
    ) -> Tensors:
        """Minimise (1 − λ_k)·CE + λ_k·T²·KL(G ‖ p_k) over pairs of a private and a public mini-batch.

        Both go through the network as one batch: private rows first, then public ones.
        """
        T, lam = self.config.temperature, self._weight(site, network, fused)
        private, public = site.train, self.federation.public
        n, size = len(private), self.config.batch_size
        steps, seed = passes(len(public), size, self.options.digest_epochs), [site.seed, round_number, 1]
        labels = torch.tensor(private.labels, device=site.device)
        teacher = torch.tensor(smooth(fused, T), dtype=torch.float32, device=site.device)

        def pairs() -> Iterator[NDArray[np.int64]]:
            own = shuffled_batches(n, size, steps, [*seed, 0])
            others = shuffled_batches(len(public), size, steps, [*seed, 1])
            for ours, theirs in zip(own, others, strict=True):
                yield np.concatenate([ours, n + theirs])

        def loss(batch: Batch) -> Tensor:
            ours = int((batch.rows < n).sum())
            ce = functional.cross_entropy(batch.logits[:ours], labels.index_select(0, batch.rows[:ours]))
            kd = kd_loss(batch.logits[ours:], teacher.index_select(0, batch.rows[ours:] - n), T)
            return (1 - lam) * ce + lam * kd

        return self.networks.fit(
            network,
            np.concatenate([private.inputs, public]),
            pairs(),
            loss,
            steps=steps,
            dropout_seed=seed,
            device=site.device,
            frozen_norm=n == 1,
            progress=lambda fraction: site.progress(fraction, "digesting the fused predictions"),
        )

    def _weight(self, site: Site, network: Tensors, fused: NDArray[np.float32]) -> float:
        """λ_k"""
        return adaptive_weight(self._on_public(site, network), fused, self.options.lambda_max)


def outliers(features: Mapping[str, Mapping[str, float]], limit: float) -> dict[str, str]:
    """Clients that are left out, and why.

    Args:
        features: Values in nats by the feature's name and by client.
        limit: Largest magnitude of (x − median)/(1.4826·MAD) that is trusted.

    Returns:
        Reasons by client: of those beyond the limit in any feature the furthest, fewer than half of all.
    """
    scores: dict[str, tuple[float, str]] = {}
    for name, by_client in features.items():
        x = np.array(list(by_client.values()))
        away = x - np.median(x)
        z = away / max(1.4826 * float(np.median(np.abs(away))), _SMALLEST_DEVIATION)
        for client, score in zip(by_client, z.tolist(), strict=True):
            found = (abs(score), f"{name} {by_client[client]:.3g} nats, robust z-score {score:.3g}")
            scores[client] = max(scores.get(client, (0.0, "")), found)
    furthest = sorted((client for client in scores if scores[client][0] > limit), key=lambda c: -scores[c][0])
    return {client: scores[client][1] for client in sorted(furthest[: (len(scores) - 1) // 2])}


def selective_fusion(p: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """G, and each client's share in it.

    Args:
        p: (K, m, C) probabilities P_k.

    Returns:
        (m, C) float32: per sample the mean over clients whose top class has most confidence behind it, or whose
        confidence is at least the median; and (K,) mean weights, which sum to 1.
    """
    confidence, top = p.max(axis=2), p.argmax(axis=2)
    votes = np.zeros(p.shape[1:])
    for k in range(len(p)):
        votes[np.arange(p.shape[1]), top[k]] += confidence[k]
    chosen = (top == votes.argmax(axis=1)) | (confidence >= np.median(confidence, axis=0))
    weights = chosen / chosen.sum(axis=0)
    fused = np.einsum("km,kmc->mc", weights, p, dtype=np.float64)
    return fused.astype(np.float32), weights.mean(axis=1)


def adaptive_weight(p: NDArray[Any], fused: NDArray[Any], largest: float) -> float:
    """λ_k = λ_max·clip(1 − JS(P_k, G)/log 2, 0, 1)·q, q the mean of G's largest probabilities.

    Args:
        p: (m, C) P_k.
        fused: (m, C) G.
        largest: λ_max
    """
    agreement = min(1.0, max(0.0, 1.0 - divergence(p, fused) / math.log(2)))
    return float(largest * agreement * np.asarray(fused, np.float64).max(axis=1).mean())


def divergence(p: NDArray[Any], q: NDArray[Any]) -> float:
    """Jensen-Shannon divergence of (m, C) probabilities, the samples' mean, in nats: 0 ... log 2."""
    middle = (np.asarray(p, np.float64) + q) / 2
    return mean_entropy(middle) - (mean_entropy(p) + mean_entropy(q)) / 2


def mean_entropy(p: NDArray[Any]) -> float:
    """Entropy of (m, C) probabilities, the samples' mean, in nats."""
    values = np.asarray(p, np.float64)
    return float(-(values * np.log(np.where(values > 0, values, 1.0))).sum(axis=1).mean())


def mean_divergences(sent: Sequence[NDArray[Any]]) -> list[float]:
    """Divergence of each (m, C) to the others, their mean in nats; 0 where there are none."""
    between = np.zeros((len(sent), len(sent)))
    for i, p in enumerate(sent):
        for j in range(i):
            between[i, j] = between[j, i] = divergence(p, sent[j])
    return [float(row.sum()) / max(1, len(sent) - 1) for row in between]
