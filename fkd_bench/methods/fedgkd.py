"""FedGKD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fkd_bench.methods.averaging import WeightAveraging, averaged
from fkd_bench.methods.networks import Batch, kd_loss
from fkd_common import exchange_method
from fkd_common.exchange_method import MODEL, Aggregate, Layout, Site, State, Upload
from fkd_common.method.aggregation import WeightedAverage
from fkd_common.method.probabilities import softmax
from fkd_common.tensors import Tensors

TEACHER = "teacher"


class FedGKD(WeightAveraging):
    """FedAvg whose clients learn from a teacher too: the average w̄_t of the last M global models.

    From round 2 on a client minimises CE(z, y) + γ·T²·KL(σ(z̄/T) ‖ σ(z/T)) on its own data, z̄ the teacher's logits.
    Its BatchNorm statistics are averaged like weights. The untrained network of round 1 is no teacher. The authors'
    code averages clients uniformly; here it is by n_k, as for the others.

    The state holds M past models beside model and teacher; a client is sent the last two, with M = 1 only the model.
    """

    title = "FedGKD"
    source = (
        "Yao et al., FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation, IEEE "
        "Transactions on Computers 73(1), 2024"
    )

    class Options(exchange_method.Options):
        """Of FedGKD."""

        gamma: float = Field(0.1, ge=0)
        """Weight γ of the distillation term."""
        temperature: float = Field(1.0, gt=0)
        """Distillation temperature T."""
        buffer: int = Field(5, ge=1)
        """M: how many past global models the teacher averages."""

    # -- server half ------------------------------------------------------------------------------

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """The model, and the teacher where it is another one; the end of the run needs none."""
        if self.options.buffer == 1 or round_number > self.config.rounds:
            return (MODEL,)
        return (MODEL, TEACHER)

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Average the clients, then the last M averages."""
        model, record = averaged(uploads)
        buffer = self.options.buffer
        if buffer == 1:
            return Aggregate({MODEL: model}, record)
        newest = f"history/{round_number % buffer}"
        teacher = WeightedAverage()
        for name in (f"history/{slot}" for slot in range(buffer)):
            if name == newest:
                teacher.add(model, 1.0)
            elif name in state:
                teacher.add(state[name], 1.0)
        return Aggregate({MODEL: model, newest: model, TEACHER: teacher.result()}, record)

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train the received network, in the teacher's sight."""
        if round_number == 1:
            return super().local_update(site, received, round_number)
        gamma, temperature = self.options.gamma, self.options.temperature
        teacher = received.get(TEACHER, received[MODEL])
        q = torch.tensor(
            softmax(self.networks.logits(teacher, site.train.inputs, site.device), temperature),
            dtype=torch.float32,
            device=site.device,
        )

        def loss(batch: Batch, labels: Tensor) -> Tensor:
            distillation = kd_loss(batch.logits, q.index_select(0, batch.rows), temperature)
            total: Tensor = functional.cross_entropy(batch.logits, labels) + gamma * distillation
            return total

        return self.networks.train(site, received[MODEL], loss, round_number)

    # -- both -------------------------------------------------------------------------------------

    def coded_networks(self) -> Mapping[str, Layout]:
        """The model, and the teacher like it."""
        return {MODEL: self.networks.layout, TEACHER: self.networks.layout}
