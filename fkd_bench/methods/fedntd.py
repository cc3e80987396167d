"""FedNTD."""

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


class FedNTD(WeightAveraging):
    """FedAvg whose clients minimise L_CE + β·L_NTD: what the received network says of the wrong classes is kept.

    L_NTD = KL(q̃^g ‖ q̃^l), q̃ = softmax(z/τ) over all classes but the true one, g the received network in eval mode,
    l the one being trained. Unlike most distillation it has no factor τ².
    """

    title = "FedNTD"
    source = "Lee et al., Preservation of the Global Knowledge by Not-True Distillation in FL, NeurIPS 2022"

    class Options(exchange_method.Options):
        """Of FedNTD."""

        beta: float = Field(1.0, ge=0)
        """Weight β of the not-true distillation."""
        tau: float = Field(1.0, gt=0)
        """Temperature τ of both networks in it."""

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train the received network, with itself as it came as the teacher."""
        teacher = self.networks.load(received[MODEL], site.device).requires_grad_(False)

        def loss(batch: Batch, labels: Tensor) -> Tensor:
            distillation = not_true_loss(batch.logits, teacher(batch.x), labels, self.options.tau)
            weighted: Tensor = self.options.beta * distillation
            return functional.cross_entropy(batch.logits, labels) + weighted

        return self.networks.train(site, received[MODEL], loss, round_number)


def not_true_loss(local: Tensor, received: Tensor, labels: Tensor, tau: float) -> Tensor:
    """L_NTD, batch mean, in nats.

    Args:
        local: (b, C) logits z^l.
        received: (b, C) logits z^g.
        labels: (b,) true classes.
        tau: τ
    """
    q_local = functional.log_softmax(not_true(local, labels) / tau, dim=1)
    q_received = functional.log_softmax(not_true(received, labels) / tau, dim=1)
    return functional.kl_div(q_local, q_received, reduction="batchmean", log_target=True)


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """(b, C-1) the logits without those of the true classes."""
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels[:, None], False)
    return logits[others].view(len(logits), -1)
