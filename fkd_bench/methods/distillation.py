"""What methods share whose server distils the clients' networks into their average, over the public set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fkd_bench.methods.averaging import WeightAveraging
from fkd_bench.methods.networks import shuffled_batches
from fkd_common import exchange_method
from fkd_common.exchange_method import Record, Upload, in_order
from fkd_common.method.probabilities import softmax
from fkd_common.tensors import Tensors


class Distillation(exchange_method.Options):
    """Of the distillation at the server."""

    steps: int = Field(200, ge=0)
    """Mini-batches of public samples per round; the round ends when they are done."""
    lr: float = Field(1e-3, gt=0)
    """AdamW's learning rate at the first of them; it falls to 0 along a cosine."""
    batch_size: int = Field(128, ge=2)
    """Public samples per mini-batch."""
    temperature: float = Field(1.0, gt=0)
    """Distillation temperature T."""
    clip: float = Field(5.0, gt=0)
    """Largest norm of a gradient."""
    gpu: bool = False
    """Distil on the coordinator's GPU, where it has one."""


class ServerDistillation(WeightAveraging):
    """FedAvg whose server goes on to train the average on what the clients' networks say of the public set.

    Teachers and student use their BatchNorm statistics as they came: public images are not the sites'. The public
    set has no labels, so nothing chooses a checkpoint and the last one counts. The optimiser is FedDF's for all:
    methods differ in their targets.

    The server holds one client's network at a time beside the average, and everybody's (m, C) logits.
    """

    Options: ClassVar[type[exchange_method.Options]] = Distillation

    @property
    def server_device(self) -> str:
        """Where teachers and student run."""
        return "cuda" if self.options.gpu and torch.cuda.is_available() else "cpu"

    def teacher_logits(self, uploads: Sequence[Upload]) -> NDArray[np.float32]:
        """(K, m, C) z_k(x): every client's logits on the public set."""
        public = self.federation.public
        return np.stack(
            [self.networks.logits(w_k, public, self.server_device) for _, _, w_k in in_order(uploads)]
        )

    def distilled(
        self,
        average: Tensors,
        targets: NDArray[Any],
        loss: Callable[[Tensor, Tensor], Tensor],
        round_number: int,
    ) -> tuple[Tensors, Record]:
        """The average, trained towards targets on the public set.

        Args:
            average: Where training begins; left untouched.
            targets: (m, C) probabilities q(x).
            loss: Of (b, C) logits z(x) and (b, C) targets; a scalar.
            round_number: Sets the shuffling.

        Returns:
            The student, and for the record its mean loss on the public set before and after.

        Raises:
            FkdError: The loss is not finite.
        """
        options, public, device = self.options, self.federation.public, self.server_device
        q = torch.tensor(targets, dtype=torch.float32)
        q_on_device = q.to(device)
        student = self.networks.fit(
            average,
            public,
            shuffled_batches(
                len(public), options.batch_size, options.steps, [self.config.seed, round_number]
            ),
            lambda batch: loss(batch.logits, q_on_device.index_select(0, batch.rows)),
            steps=options.steps,
            lr=options.lr,
            device=device,
            frozen_norm=True,
            clip=options.clip,
            annealed=True,
        )
        before, after = (
            float(loss(torch.from_numpy(self.networks.logits(network, public, device)), q))
            for network in (average, student)
        )
        return student, {"distillation": {"loss_before": before, "loss_after": after}}


def probabilities(logits: NDArray[Any], temperature: float = 1.0) -> NDArray[np.float64]:
    """(K, m, C) σ(z_k(x)/T) of (K, m, C) logits."""
    return np.stack([softmax(z_k, temperature) for z_k in logits])
