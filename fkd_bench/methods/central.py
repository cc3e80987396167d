"""Central training: a bound, not federated learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fkd_bench.methods.averaging import fine_tuned
from fkd_bench.methods.networks import Batch, Networks, shuffled_batches
from fkd_bench.methods.upload_checks import MAX_EMBEDDING, no_classes, too_large
from fkd_client.student import steps_per_round
from fkd_common import exchange_method
from fkd_common.exchange_method import (
    MODEL,
    Aggregate,
    ExchangeMethod,
    Federation,
    Layout,
    NoAggregateError,
    Site,
    State,
    Upload,
    in_order,
)
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors


class Central(ExchangeMethod):
    """The same head trained on everybody's embeddings and labels: what federated methods are measured against.

    This is not federated learning: in round 1 every site uploads its training data, and the server trains on the pool,
    holding it up to three times, 4d + 4 bytes a sample. It makes as many steps as clients would make in all rounds of
    a federation, rounds × cohort × local steps, with one AdamW and in one go, so that round 1 takes as long as a whole
    run. Later rounds do nothing: `rounds` only sets the number of steps. A site that comes later is not in the pool.
    """

    title = "Central"
    source = "a bound: the same network trained on the data of all sites"

    class Options(exchange_method.Options):
        """Of central training."""

        steps: int | None = Field(None, ge=1)
        """Mini-batches in all; by default as many as a federation's clients make."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.networks = Networks(federation)

    # -- server half ------------------------------------------------------------------------------

    def start(self) -> State:
        """The untrained network."""
        return {MODEL: self.networks.start()}

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """The model, once it is trained."""
        return () if round_number == 1 else (MODEL,)

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """All training data, once."""
        if round_number > 1:
            return {}
        return {
            "embeddings": TensorSpec((num_samples, self.federation.embedding_dim), "float32"),
            "labels": TensorSpec((num_samples,), "int32"),
        }

    def flaw(self, tensors: Tensors) -> str | None:
        """Labels that are no class, or embeddings that no extractor computes."""
        if not tensors:
            return None
        return no_classes(tensors["labels"], self.num_classes) or too_large(
            "an embedding", tensors["embeddings"], MAX_EMBEDDING
        )

    def everyone(self, round_number: int) -> bool:
        """All sites hand over their data."""
        return round_number == 1

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Minimise cross-entropy over the pool."""
        if round_number > 1:
            return Aggregate({})
        parts = [tensors for _, _, tensors in in_order(uploads)]
        embeddings = np.concatenate([part["embeddings"] for part in parts])
        labels = np.concatenate([part["labels"] for part in parts])
        n, seed = len(labels), [self.config.seed, round_number]
        if n == 0:
            raise NoAggregateError("no upload of this round counts: every n_k is 0")
        steps = self.options.steps or self.federated_steps([len(part["labels"]) for part in parts])
        y = torch.tensor(labels, dtype=torch.int64)

        def loss(batch: Batch) -> Tensor:
            return functional.cross_entropy(batch.logits, y.index_select(0, batch.rows))

        model = self.networks.fit(
            state[MODEL],
            embeddings,
            shuffled_batches(n, self.config.batch_size, steps, seed),
            loss,
            steps=steps,
            dropout_seed=seed,
            frozen_norm=n == 1,
        )
        weights = {
            upload.client: len(part["labels"]) / n for upload, part in zip(uploads, parts, strict=True)
        }
        return Aggregate({MODEL: model}, {"weights": weights, "steps": steps})

    def federated_steps(self, samples: Sequence[int]) -> int:
        """Mini-batches that clients of n_k = `samples` would make in all rounds, cohorts being of average size."""
        config, N = self.config, len(samples)
        cohort = min(N, max(config.min_cohort, round(config.clients_per_round * N)))
        made = sum(steps_per_round(n, config) for n in samples)
        return round(config.rounds * cohort / N * made)

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Hand over the data in round 1."""
        if round_number > 1:
            return {}
        return {
            "embeddings": np.asarray(site.train.inputs, np.float32),
            "labels": site.train.labels.astype(np.int32),
        }

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The central model fine-tuned on the site's data."""
        return fine_tuned(self.networks, site, received[MODEL])

    # -- both -------------------------------------------------------------------------------------

    @property
    def model_is_student(self) -> bool:
        """It is the run's student."""
        return True

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """Logits in eval mode."""
        return self.networks.logits(model, inputs, device)
