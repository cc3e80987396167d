"""DaFKD-F: DaFKD over features and a real public set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fkd_bench.methods.averaging import averaged
from fkd_bench.methods.distillation import Distillation, ServerDistillation
from fkd_bench.methods.networks import kd_loss
from fkd_client.student import batch_indices
from fkd_common.exchange_method import MODEL, Aggregate, Layout, Site, State, Upload, in_order
from fkd_common.method.probabilities import softmax
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

WEIGHT, BIAS = "discriminator.weight", "discriminator.bias"


class DaFKD(ServerDistillation):
    """FedAvg whose server distils the clients' networks into the average, each where the sample is of its domain.

    Every client trains a domain discriminator D_k(x) = σ(v_k·f(x) + b_k), which tells its own samples from public ones
    and travels with its network. The server weights teachers by a_k(x) = D_k(x) / Σ_j D_j(x), and the student
    minimises T²·KL(σ(z̄/T) ‖ σ(z/T)) with z̄(x) = Σ_k a_k(x)·z_k(x).

    "-F" for features: f(x) are the frozen embeddings, or in full mode the features of the client's trained trunk, and
    the public set takes the place of the paper's generated images, as the discriminator's negatives and for distilling.
    The GAN is left out: there is a public set, a generator of embeddings would draw what is at hand already, and one of
    images costs 4.3 MB each way. The discriminator is trained after the network and does not move the trunk.
    """

    title = "DaFKD-F"
    source = "Wang et al., DaFKD: Domain-aware Federated Knowledge Distillation, CVPR 2023; features, no GAN"

    class Options(Distillation):
        """Of DaFKD-F."""

        temperature: float = Field(10.0, gt=0)
        """Distillation temperature T."""
        penalty: float = Field(0.3, ge=0)
        """Weight λ of the discriminator's gradient penalty."""

    # -- server half ------------------------------------------------------------------------------

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """The network, and the client's discriminator."""
        d = self.federation.embedding_dim
        return {
            **self.networks.layout,
            WEIGHT: TensorSpec((d,), "float32"),
            BIAS: TensorSpec((1,), "float32"),
        }

    def flaw(self, tensors: Tensors) -> str | None:
        """What no training produces in the network."""
        return super().flaw(_network(tensors))

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Average, then distil the teachers into it, weighted by domain."""
        average, record = averaged(uploads)
        z, log_d = [], []
        for _, _, tensors in in_order(uploads):
            w_k = _network(tensors)
            z.append(self.networks.logits(w_k, self.federation.public, self.server_device))
            f = self.networks.features(w_k, self.federation.public, self.server_device)
            log_d.append(-np.logaddexp(0.0, -(f.astype(np.float64) @ tensors[WEIGHT] + tensors[BIAS])))
        a = domain_weights(np.stack(log_d))
        q = softmax(np.einsum("km,kmc->mc", a, np.stack(z)), self.options.temperature)
        student, losses = self.distilled(
            _network(average), q, lambda logits, q: kd_loss(logits, q, self.options.temperature), round_number
        )
        shares = {upload.client: float(a_k.mean()) for upload, a_k in zip(uploads, a, strict=True)}
        return Aggregate({MODEL: student}, record | losses | {"teacher_weights": shares})

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train the received network, then the site's own discriminator further."""
        network = super().local_update(site, received, round_number)
        site.memory["discriminator"] = self.discriminator(site, network, round_number)
        return network | site.memory["discriminator"]

    def discriminator(self, site: Site, network: Tensors, round_number: int) -> Tensors:
        """v_k and b_k after as many steps as the network's training had, from where the site left them."""
        own = torch.tensor(self.networks.features(network, site.train.inputs, site.device))
        public = torch.tensor(self.networks.features(network, self.federation.public, site.device))
        zeros = {WEIGHT: np.zeros(own.shape[1], np.float32), BIAS: np.zeros(1, np.float32)}
        start = site.memory.get("discriminator", zeros)
        v = torch.tensor(start[WEIGHT], requires_grad=True)
        b = torch.tensor(start[BIAS], requires_grad=True)
        optimizer = torch.optim.AdamW([v, b], lr=self.config.lr, weight_decay=self.config.weight_decay)
        rng = site.rng(round_number, 1)
        for rows in batch_indices(len(own), self.config, [site.seed, round_number]):
            negatives = torch.from_numpy(rng.integers(0, len(public), len(rows)))
            mix = torch.from_numpy(rng.random((len(rows), 1), np.float32))
            loss = discriminator_loss(
                v, b, own[torch.from_numpy(rows)], public[negatives], mix, self.options.penalty
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {WEIGHT: v.detach().numpy(), BIAS: b.detach().numpy()}


def discriminator_loss(
    v: Tensor, b: Tensor, own: Tensor, public: Tensor, mix: Tensor, penalty: float
) -> Tensor:
    """BCE(D(own), 1) + BCE(D(public), 0) + λ·(‖∇D(x̂)‖₂ − 1)², means over the batch; x̂ lies between own and public.

    Args:
        v: (d,) weights of D = σ(v·f + b).
        b: (1,) its bias.
        own: (n, d) features of the client's samples.
        public: (n, d) features of public samples.
        mix: (n, 1) x̂ = mix·own + (1 − mix)·public.
        penalty: λ

    Returns:
        A scalar, in nats; the gradient with respect to the features is ∇D = D·(1 − D)·v.
    """
    classified = -functional.logsigmoid(own @ v + b).mean() - functional.logsigmoid(-(public @ v + b)).mean()
    d = torch.sigmoid((mix * own + (1 - mix) * public) @ v + b)
    slope = d * (1 - d) * torch.linalg.vector_norm(v)
    loss: Tensor = classified + penalty * ((slope - 1) ** 2).mean()
    return loss


def domain_weights(log_d: NDArray[np.float64]) -> NDArray[np.float64]:
    """a_k(x) = D_k(x) / Σ_j D_j(x), also where every D_j(x) is too small for a float.

    Args:
        log_d: (K, m) log D_k(x).

    Returns:
        (K, m) float64; sums to 1 for every sample.
    """
    return softmax(log_d.T).T


def _network(tensors: Tensors) -> Tensors:
    return {name: values for name, values in tensors.items() if name not in (WEIGHT, BIAS)}
