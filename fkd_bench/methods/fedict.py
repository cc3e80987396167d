"""FedICT."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fkd_bench.methods.networks import Batch, cross_entropy, shuffled_batches
from fkd_bench.methods.private import PRIVATE, PrivateNetworks, passes
from fkd_bench.methods.upload_checks import MAX_EMBEDDING, MAX_LOGIT, no_classes, too_large
from fkd_common import exchange_method
from fkd_common.errors import DataError
from fkd_common.exchange_method import Aggregate, Layout, Site, State, Upload, in_order
from fkd_common.method.probabilities import softmax
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

SERVER, COUNTS = "server", "counts"
"""Groups with the server's network, and with (C,) class counts by client."""


class Adjustment(StrEnum):
    """How the server adjusts to what a client knows (LKA)."""

    SIMILARITY = "similarity"
    BALANCE = "balance"


class FedICT(PrivateNetworks):
    """Clients send features, logits z_k and labels of every private sample; the server answers with its logits z_S.

    - Client, federated prior knowledge distillation: CE + α·[KD(z_S → z_k) + KD weighted class by class with
      d_{k,c}/T_FPKD], of its class frequencies d_k.
    - Server, local knowledge adjustment: α·CE + KD(z_k → z_S) + the same KD weighted with the cosine of d and d_k
      (`similarity`), or class by class with (d_c − d_{k,c})/U (`balance`); d are the frequencies over all clients so
      far.

    Every KD has temperature T. Here features are the frozen embeddings, both networks have the student's layout, and
    z_S is computed in eval mode after the server's training, whose mini-batches mix clients. The paper's result is the
    clients' networks, so the server's is not published.

    This reveals features and labels of all training samples to the server, every round anew. The server holds those of
    a round's cohort, up to three times: 4d + 8C bytes a sample.
    """

    title = "FedICT"
    source = (
        "Wu et al., FedICT: Federated Multi-Task Distillation for Multi-Access Edge Computing, "
        "IEEE TPDS 35(6), 2024"
    )

    class Options(exchange_method.Options):
        """Of FedICT."""

        alpha: float = Field(1.5, ge=0)
        """α: weight of KD at a client, and of CE at the server."""
        temperature: float = Field(3.0, gt=0)
        """T of every KD."""
        prior_temperature: float = Field(3.0, gt=0)
        """T_FPKD"""
        adjustment: Adjustment = Adjustment.SIMILARITY
        """How the server adjusts: `similarity` or `balance`."""
        balance: float = Field(7.0, gt=1)
        """U of `balance`."""
        server_epochs: int = Field(1, ge=1)
        """The server's passes over a round's samples."""

    # -- server half ------------------------------------------------------------------------------

    def start(self) -> State:
        """The server's untrained network."""
        return {SERVER: self.networks.start()}

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """z_S of the client's own samples, once there are."""
        return (logits_of(client),)

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """Of every training sample, always in the same order."""
        d, C = self.federation.embedding_dim, self.num_classes
        return {
            "features": TensorSpec((num_samples, d), "float32"),
            "logits": TensorSpec((num_samples, C), "float32"),
            "labels": TensorSpec((num_samples,), "int32"),
        }

    def flaw(self, tensors: Tensors) -> str | None:
        """Labels that are no class, or values that no network computes."""
        return (
            no_classes(tensors["labels"], self.num_classes)
            or too_large("a feature", tensors["features"], MAX_EMBEDDING)
            or too_large("a logit", tensors["logits"], MAX_LOGIT)
        )

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Train the server's network on the round's samples, and compute z_S for every client."""
        sent = {client: tensors for client, _, tensors in in_order(uploads)}
        C = self.num_classes
        counts = dict(state.get(COUNTS, {}))
        counts |= {client: np.bincount(one["labels"], minlength=C) for client, one in sent.items()}
        d = frequencies(np.sum(list(counts.values()), axis=0))
        factors = {client: self._adjusted(d, frequencies(counts[client])) for client in sent}
        server = self._distilled(state[SERVER], sent, factors, round_number)
        answers = {
            logits_of(client): {"logits": self.networks.logits(server, one["features"])}
            for client, one in sent.items()
        }
        total = sum(len(one["labels"]) for one in sent.values())
        weights = {client: len(one["labels"]) / total for client, one in sent.items()}
        return Aggregate({SERVER: server, COUNTS: counts, **answers}, {"weights": weights})

    def _distilled(
        self,
        server: Tensors,
        sent: dict[str, Tensors],
        factors: dict[str, NDArray[np.float64]],
        round_number: int,
    ) -> Tensors:
        """Minimise α·CE + KD with each sample's factors on the classes' terms."""
        features, logits, labels = (
            np.concatenate([one[name] for one in sent.values()]) for name in ("features", "logits", "labels")
        )
        T, n, size = self.options.temperature, len(labels), self.config.batch_size
        teacher = torch.tensor(softmax(logits, T), dtype=torch.float32)
        y = torch.tensor(labels, dtype=torch.int64)
        sizes = [len(one["labels"]) for one in sent.values()]
        by_sample = np.repeat(np.stack([factors[client] for client in sent]), sizes, axis=0)
        factor = torch.tensor(by_sample, dtype=torch.float32)
        steps = passes(n, size, self.options.server_epochs)
        seed = [self.config.seed, round_number]

        def loss(batch: Batch) -> Tensor:
            kd = weighted_kd(batch.logits, teacher[batch.rows], factor[batch.rows], T)
            ce: Tensor = self.options.alpha * functional.cross_entropy(batch.logits, y[batch.rows])
            return ce + kd

        return self.networks.fit(
            server,
            features,
            shuffled_batches(n, size, steps, seed),
            loss,
            steps=steps,
            dropout_seed=seed,
            frozen_norm=n == 1,
        )

    def _adjusted(self, d: NDArray[np.float64], d_k: NDArray[np.float64]) -> NDArray[np.float64]:
        """(C,) factors of a client's KD at the server: 1 of the plain one, and the adjustment."""
        if self.options.adjustment is Adjustment.SIMILARITY:
            return np.full(len(d), 1 + d @ d_k / (np.linalg.norm(d) * np.linalg.norm(d_k)))
        return np.asarray(1 + (d - d_k) / self.options.balance)

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train with z_S, and send every sample."""
        network = self._informed(site, received, round_number)
        site.memory[PRIVATE] = network
        return {
            "features": np.asarray(site.train.inputs, np.float32),
            "logits": self.networks.logits(network, site.train.inputs, site.device),
            "labels": site.train.labels.astype(np.int32),
        }

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The private network."""
        return self.private(site)

    def _informed(self, site: Site, received: State, round_number: int) -> Tensors:
        """Minimise CE + α·KD with 1 + d_{k,c}/T_FPKD on the classes' terms; without z_S it is CE."""
        network = self.private(site)
        if logits_of(site.name) not in received:
            return network
        z_S = received[logits_of(site.name)]["logits"]
        if z_S.shape != (len(site.train), self.num_classes):
            raise DataError(
                f"the coordinator's logits are of {len(z_S)} samples, this site trains on {len(site.train)}: "
                "its data may not change during a run"
            )
        T = self.options.temperature
        teacher = torch.tensor(softmax(z_S, T), dtype=torch.float32, device=site.device)
        d_k = frequencies(site.class_counts(self.num_classes))
        factor = torch.tensor(
            1 + d_k / self.options.prior_temperature, dtype=torch.float32, device=site.device
        )

        def loss(batch: Batch, labels: Tensor) -> Tensor:
            kd = weighted_kd(batch.logits, teacher.index_select(0, batch.rows), factor, T)
            scaled: Tensor = self.options.alpha * kd
            return cross_entropy(batch, labels) + scaled

        return self.networks.train(site, network, loss, round_number)


def logits_of(client: str) -> str:
    """The group with z_S of a client's samples, which only that client gets."""
    return f"logits/{client}"


def frequencies(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(C,) shares d of classes, from their counts."""
    return np.asarray(counts / counts.sum())


def weighted_kd(logits: Tensor, teacher: Tensor, factor: Tensor, temperature: float) -> Tensor:
    """T²·Σ_c w_c·q_c·(log q_c − log p_c), batch mean, in nats; p = softmax(z/T).

    Args:
        logits: (b, C) the student's z.
        teacher: (b, C) probabilities q, already at temperature T.
        factor: (C,) or (b, C) w; 1 is plain KD.
        temperature: T
    """
    log_student = functional.log_softmax(logits / temperature, dim=1)
    terms = torch.xlogy(teacher, teacher) - teacher * log_student
    return temperature**2 * (factor * terms).sum(dim=1).mean()
