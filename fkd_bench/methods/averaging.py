"""What methods that average weights share: upload the network, average by n_k, fine-tune privately at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fkd_bench.methods.networks import Batch, Networks, cross_entropy, shuffled_batches
from fkd_common.exchange_method import (
    MODEL,
    Aggregate,
    ExchangeMethod,
    Federation,
    Layout,
    NoAggregateError,
    Record,
    Site,
    State,
    Upload,
)
from fkd_common.method.aggregation import WeightedAverage
from fkd_common.method.metrics import accuracy
from fkd_common.tensors import Tensors


class WeightAveraging(ExchangeMethod):
    """W_{t+1} = Σ n_k W_k / Σ n_k over the clients that returned; subclasses say what a client minimises."""

    full_mode = True

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.networks = Networks(federation)

    # -- server half ------------------------------------------------------------------------------

    def start(self) -> State:
        """The untrained network."""
        return {MODEL: self.networks.start()}

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """The whole network."""
        return self.networks.layout

    def flaw(self, tensors: Tensors) -> str | None:
        """What no training produces."""
        return self.networks.flaw(tensors)

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """The average."""
        average, record = averaged(uploads)
        return Aggregate({MODEL: average}, record)

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train the received network."""
        return self.networks.train(site, received[MODEL], self.loss, round_number)

    def loss(self, batch: Batch, labels: Tensor) -> Tensor:
        """What a client minimises; by default cross-entropy."""
        return cross_entropy(batch, labels)

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The global network fine-tuned by cross-entropy, the epoch that D_val likes best, epoch 0 included."""
        return fine_tuned(self.networks, site, received[MODEL])

    # -- both -------------------------------------------------------------------------------------

    def coded_networks(self) -> Mapping[str, Layout]:
        """The model, which sites train."""
        return {MODEL: self.networks.layout}

    @property
    def model_is_student(self) -> bool:
        """In head mode the network is the run's student."""
        return not self.federation.full

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """Logits in eval mode."""
        return self.networks.logits(model, inputs, device)


def averaged(uploads: Sequence[Upload]) -> tuple[Tensors, Record]:
    """Σ n_k W_k / Σ n_k in float64 and sorted client order; integer tensors take the maximum.

    Returns:
        The average, and "weights" for the record.
    """
    total = sum(upload.num_samples for upload in uploads)
    if total == 0:
        raise NoAggregateError("no upload of this round counts: every n_k is 0")
    average = WeightedAverage()
    for upload in uploads:  # without a name, which would hold one while the next is read
        average.add(upload.tensors(), upload.num_samples)
    return average.result(), {"weights": {u.client: u.num_samples / total for u in uploads}}


def fine_tuned(networks: Networks, site: Site, tensors: Tensors) -> Tensors:
    """A network fine-tuned on a site's data (Eq. 9 of FKD-RTM for the exchanged network).

    `finetune_epochs` epochs of cross-entropy at `finetune_lr_head`, normalisation statistics frozen; kept is the
    epoch with the best accuracy on D_val, the received network included. Without D_val nothing is tuned.
    """
    if len(site.val) == 0:
        return tensors
    config, n, best, current = networks.config, len(site.train), tensors, tensors
    best_accuracy = accuracy(networks.logits(tensors, site.val.inputs, site.device), site.val.labels)
    labels = torch.tensor(site.train.labels, dtype=torch.int64, device=site.device)
    for epoch in range(config.finetune_epochs):
        steps = -(-n // config.batch_size)
        current = networks.fit(
            current,
            site.train.inputs,
            shuffled_batches(n, config.batch_size, steps, [site.seed, 0, epoch]),
            lambda batch: functional.cross_entropy(batch.logits, labels.index_select(0, batch.rows)),
            steps=steps,
            dropout_seed=[site.seed, 0, epoch],
            lr=config.finetune_lr_head,
            device=site.device,
            frozen_norm=True,
            progress=lambda fraction: site.progress(fraction, "fine-tuning"),
        )
        reached = accuracy(networks.logits(current, site.val.inputs, site.device), site.val.labels)
        if reached > best_accuracy:
            best, best_accuracy = current, reached
    return best
