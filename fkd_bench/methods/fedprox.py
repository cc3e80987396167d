"""FedProx."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fkd_bench.methods.averaging import WeightAveraging
from fkd_bench.methods.networks import Batch
from fkd_common import exchange_method
from fkd_common.exchange_method import MODEL, Site, State
from fkd_common.tensors import Tensors


class FedProx(WeightAveraging):
    """FedAvg whose clients minimise F_k(w) + (μ/2)·‖w − w_t‖².

    The proximal term is part of the loss, so AdamW rescales its gradient; the paper used plain SGD.
    """

    title = "FedProx"
    source = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    class Options(exchange_method.Options):
        """Of FedProx."""

        mu: float = Field(0.01, ge=0)
        """Strength of the proximal term."""

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train close to the received network."""
        anchor = [p.detach() for p in self.networks.load(received[MODEL], site.device).parameters()]

        def loss(batch: Batch, labels: Tensor) -> Tensor:
            pairs = zip(batch.network.parameters(), anchor, strict=True)
            distance = torch.stack([((w - w_t) ** 2).sum() for w, w_t in pairs]).sum()
            proximal: Tensor = self.options.mu / 2 * distance
            return functional.cross_entropy(batch.logits, labels) + proximal

        return self.networks.train(site, received[MODEL], loss, round_number)
