"""FedDF."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fkd_bench.methods.averaging import averaged
from fkd_bench.methods.distillation import ServerDistillation
from fkd_client.student import divergence
from fkd_common.exchange_method import MODEL, Aggregate, State, Upload
from fkd_common.method.probabilities import softmax


class FedDF(ServerDistillation):
    """FedAvg whose server distils the clients' mean logits into the average.

    q(x) = σ(1/K · Σ_k z_k(x) / T), and the student minimises KL(q ‖ σ(z/T)), without the usual factor T².
    The paper stops early by labelled validation data at the server; here the number of steps is fixed.
    """

    title = "FedDF"
    source = "Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020"

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Average, then distil the ensemble into it."""
        average, record = averaged(uploads)
        q = softmax(self.teacher_logits(uploads).mean(axis=0), self.options.temperature)
        student, losses = self.distilled(average, q, self.divergence, round_number)
        return Aggregate({MODEL: student}, record | losses)

    def divergence(self, logits: Tensor, q: Tensor) -> Tensor:
        """KL(q ‖ σ(z/T)), batch mean."""
        return divergence(logits, q, self.options.temperature)
