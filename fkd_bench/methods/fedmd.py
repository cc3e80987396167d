"""FedMD."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.nn import functional

from fkd_bench.methods.networks import shuffled_batches
from fkd_bench.methods.private import PRIVATE, PrivateNetworks, passes
from fkd_bench.methods.upload_checks import MAX_LOGIT, too_large
from fkd_common import exchange_method
from fkd_common.exchange_method import Aggregate, Layout, Site, State, Upload, in_order
from fkd_common.method.aggregation import WeightedAverage
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

CONSENSUS = "consensus"
"""The group with the latest z̄."""


class FedMD(PrivateNetworks):
    """Clients communicate logits z_k on the public set, digest their plain mean z̄, and revisit their private data.

    A round at a client begins with digesting and revisiting what the round before communicated and ends with its new
    logits; the personal model digests and revisits the last z̄. A client that was away digests the latest z̄ when it
    comes back; one that is new first trains on its private data alone.

    The paper pre-trains on the labels of the public set: here it has none, so that step is left out. Its alignment
    subset, drawn anew every round, is here the whole public set.
    """

    title = "FedMD"
    source = (
        "Li and Wang, FedMD: Heterogenous Federated Learning via Model Distillation, arXiv 1910.03581, 2019"
    )

    class Options(exchange_method.Options):
        """Of FedMD."""

        digest_epochs: int = Field(1, ge=1)
        """Passes over the public set in which a client approaches z̄; the paper's is of 5000 samples."""
        digest_batch: int = Field(128, ge=2)
        """Mini-batch size of these passes."""

    # -- server half ------------------------------------------------------------------------------

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """z̄, once there is one."""
        return (CONSENSUS,)

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """z_k: (m, C), before softmax."""
        return {"logits": TensorSpec((len(self.federation.public), self.num_classes), "float32")}

    def flaw(self, tensors: Tensors) -> str | None:
        """Logits that no network of ours computes."""
        return too_large("a logit", tensors["logits"], MAX_LOGIT)

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """z̄ = Σ z_k / |S|, whatever their n_k."""
        mean = WeightedAverage()
        for _, _, tensors in in_order(uploads):
            mean.add(tensors, 1.0)
        return Aggregate(
            {CONSENSUS: mean.result()}, {"weights": {u.client: 1 / len(uploads) for u in uploads}}
        )

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Digest, revisit, and communicate logits."""
        private = self._advanced(site, received, round_number)
        site.memory[PRIVATE] = private
        return {"logits": self.networks.logits(private, self.federation.public, site.device)}

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The private network after the last z̄."""
        return self._advanced(site, received, self.config.rounds + 1)

    def _advanced(self, site: Site, received: State, round_number: int) -> Tensors:
        private = self.private(site)
        if CONSENSUS not in received:
            return private
        digested = self._digested(site, private, received[CONSENSUS]["logits"], round_number)
        return self.trained(site, digested, round_number)

    def _digested(
        self, site: Site, network: Tensors, consensus: NDArray[np.float32], round_number: int
    ) -> Tensors:
        """Minimise mean |z − z̄| over the public set."""
        public, options = self.federation.public, self.options
        target = torch.tensor(consensus, device=site.device)
        steps = passes(len(public), options.digest_batch, options.digest_epochs)
        seed = [site.seed, round_number, 1]
        return self.networks.fit(
            network,
            public,
            shuffled_batches(len(public), options.digest_batch, steps, seed),
            lambda batch: functional.l1_loss(batch.logits, target.index_select(0, batch.rows)),
            steps=steps,
            dropout_seed=seed,
            device=site.device,
            frozen_norm=len(public) == 1,
            progress=lambda fraction: site.progress(fraction, "digesting the consensus"),
        )
