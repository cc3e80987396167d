"""The network that a method trains and exchanges: the run's student on frozen embeddings, or a whole ResNet18.

A network is built from named tensors and turned back into them; methods never care which of the two it is. All
randomness comes from explicit generators, so that several clients may train in threads of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fkd_client.embedding import preprocess
from fkd_client.extractor import EMBEDDING_DIM, Extractor, load_extractor
from fkd_client.student import batch_indices, divergence, steps_per_round
from fkd_client.student_network import Student
from fkd_common.errors import FkdError
from fkd_common.exchange_method import Federation, Layout, Site
from fkd_common.extractor_artifact import read_extractor_spec
from fkd_common.method.student_checks import student_flaw
from fkd_common.method.student_layout import initial_student, layout_of, student_layout
from fkd_common.tensors import Tensors

_SCORE_BATCH = {"head": 4096, "full": 256}


class FullNetwork(nn.Module):
    """ResNet18 with a linear classifier; unlike an :class:`Extractor`, all of it trains."""

    def __init__(self, extractor: Extractor, num_classes: int) -> None:
        super().__init__()
        self.trunk = extractor.trunk.requires_grad_(True)
        self.fc = nn.Linear(EMBEDDING_DIM, num_classes, device="meta")

    def forward(self, x: Tensor, dropout: torch.Generator | None = None) -> Tensor:
        """Logits (n, C) of prepared images (n, 3, s, s); there is no dropout."""
        logits: Tensor = self.fc(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """(n, 512) that the classifier sees."""
        features: Tensor = self.trunk(x)
        return features


@dataclass(frozen=True, eq=False)
class Batch:
    """One mini-batch on its way through the network being trained."""

    network: nn.Module
    x: Tensor
    """(b, d) embeddings or (b, 3, s, s) prepared images."""
    rows: Tensor
    """(b,) which rows of the inputs these are."""
    logits: Tensor
    """(b, C)"""


class Networks:
    """Builds, scores and trains the networks of one run."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.config = federation.config

    # -- tensors and modules ----------------------------------------------------------------------

    @cached_property
    def _extractor(self) -> bytes:
        return self.federation.extractor()

    def start(self) -> Tensors:
        """The network before round 1: the untrained student, or the extractor with a classifier of zeros."""
        if not self.federation.full:
            return initial_student(
                self.config.seed,
                self.federation.embedding_dim,
                self.config.hidden,
                self.federation.num_classes,
                self.config.norm,
            )
        trunk = load_extractor(self._extractor).trunk.state_dict()
        tensors = {f"trunk.{name}": value.contiguous().numpy().copy() for name, value in trunk.items()}
        tensors["fc.weight"] = np.zeros((self.federation.num_classes, EMBEDDING_DIM), np.float32)
        tensors["fc.bias"] = np.zeros(self.federation.num_classes, np.float32)
        return tensors

    @cached_property
    def layout(self) -> Layout:
        """Names, shapes and dtypes of a network's tensors."""
        if not self.federation.full:
            return student_layout(
                self.federation.embedding_dim,
                self.config.hidden,
                self.federation.num_classes,
                self.config.norm,
            )
        return layout_of(self.start())

    def flaw(self, tensors: Tensors) -> str | None:
        """What training cannot have produced in a network of the right layout; None if nothing."""
        for name, values in tensors.items():
            if name.endswith("running_var") and values.min(initial=0.0) < 0:
                return f"a negative variance in {name}"
            if name.endswith("num_batches_tracked") and not 0 <= values < 2**40:
                return f"{name} counts {values} batches"
        if self.federation.full:
            return None
        return student_flaw(tensors, self.federation.anchor_embeddings, self.config.norm)

    def load(self, tensors: Tensors, device: str = "cpu") -> nn.Module:
        """The network of these tensors, in eval mode, ready to be trained."""
        if not self.federation.full:
            student = Student(self.federation.embedding_dim, self.federation.num_classes, self.config)
            return student.load_state(tensors, device).eval()
        extractor = Extractor(read_extractor_spec(self._extractor))
        network = FullNetwork(extractor, self.federation.num_classes)
        values = {name: torch.tensor(array, device=device) for name, array in tensors.items()}
        network.load_state_dict(values, assign=True)
        return network.requires_grad_(True).to(memory_format=torch.channels_last).eval()

    def dump(self, network: nn.Module) -> Tensors:
        """A network's tensors, as arrays of their own."""
        return {
            name: value.detach().cpu().contiguous().numpy().copy()
            for name, value in network.state_dict().items()
        }

    def batch(self, inputs: NDArray[Any], device: str = "cpu") -> Tensor:
        """Inputs as the network takes them: embeddings as they are, images prepared like the extractor's."""
        if not self.federation.full:
            return torch.tensor(inputs, device=device)
        return preprocess(inputs, read_extractor_spec(self._extractor)).to(device)

    # -- scoring ----------------------------------------------------------------------------------

    def logits(self, tensors: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """(n, C) float32 scores in eval mode."""
        return self.outputs(self.load(tensors, device), inputs, device)

    def outputs(
        self,
        network: nn.Module,
        inputs: NDArray[Any],
        device: str = "cpu",
        function: Callable[[nn.Module, Tensor], Tensor] = lambda network, x: network(x),
    ) -> NDArray[np.float32]:
        """What `function`, by default the logits, gives for every row, in eval mode and without gradients."""
        network.eval()
        step = _SCORE_BATCH[self.config.model.value]
        with torch.inference_mode():
            parts = [
                function(network, self.batch(inputs[first : first + step], device)).cpu().numpy()
                for first in range(0, max(1, len(inputs)), step)  # no rows still have a shape
            ]
        return np.concatenate(parts)

    def features(self, tensors: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """(n, d) float32 that a classifier sees: embeddings as they are, or the trunk's output in eval mode."""
        if not self.federation.full:
            return np.asarray(inputs, np.float32)

        def of(network: nn.Module, x: Tensor) -> Tensor:
            assert isinstance(network, FullNetwork)
            return network.features(x)

        return self.outputs(self.load(tensors, device), inputs, device, of)

    # -- training ---------------------------------------------------------------------------------

    def train(
        self,
        site: Site,
        tensors: Tensors,
        loss: Callable[[Batch, Tensor], Tensor],
        round_number: int,
        *,
        activity: str = "training",
    ) -> Tensors:
        """One round of local training from `tensors`: the run's local steps or epochs, a fresh AdamW.

        Args:
            site: Whose training part it is.
            tensors: Where training begins; left untouched.
            loss: Of a batch and its (b,) labels; a scalar.
            round_number: Sets the shuffling.
            activity: What a person is told meanwhile.

        Raises:
            FkdError: The loss is not finite.
        """
        n = len(site.train)
        labels = torch.tensor(site.train.labels, dtype=torch.int64, device=site.device)
        return self.fit(
            tensors,
            site.train.inputs,
            batch_indices(n, self.config, [site.seed, round_number]),
            lambda batch: loss(batch, labels.index_select(0, batch.rows)),
            steps=steps_per_round(n, self.config),
            dropout_seed=[site.seed, round_number],
            device=site.device,
            frozen_norm=n == 1,
            progress=lambda fraction: site.progress(fraction, activity),
        )

    def fit(
        self,
        tensors: Tensors,
        inputs: NDArray[Any],
        batches: Iterable[NDArray[np.int64]],
        loss: Callable[[Batch], Tensor],
        *,
        steps: int,
        dropout_seed: list[int] | None = None,
        lr: float | None = None,
        device: str = "cpu",
        frozen_norm: bool = False,
        clip: float | None = None,
        annealed: bool = False,
        progress: Callable[[float], None] = lambda fraction: None,
    ) -> Tensors:
        """Minimise a loss over mini-batches of `inputs` with a fresh AdamW.

        Args:
            tensors: Where training begins; left untouched.
            inputs: Rows that batches are drawn from.
            batches: (b,) row numbers of every mini-batch, in order.
            loss: Of a batch; a scalar.
            steps: How many batches there will be.
            dropout_seed: Seed of the dropout masks; None drops nothing.
            lr: Learning rate (default: the run's).
            device: Where it runs.
            frozen_norm: Keep normalisation statistics as they are.
            clip: Largest gradient norm.
            annealed: Let the learning rate fall to 0 over `steps`, along a cosine.
            progress: Told the share of steps done.

        Raises:
            FkdError: The loss is not finite.
        """
        network = self.load(tensors, device)
        network.train(not frozen_norm)
        dropout = None
        if dropout_seed is not None:
            dropout = torch.Generator(device=device)
            dropout.manual_seed(
                int(np.random.SeedSequence(dropout_seed).generate_state(1, np.uint64)[0] >> 1)
            )
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=lr or self.config.lr, weight_decay=self.config.weight_decay, fused=True
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps)) if annealed else None
        rows_on_device = None if self.federation.full else torch.tensor(inputs, device=device)
        total = torch.zeros((), device=device)
        for step, chosen in enumerate(batches, start=1):
            rows = torch.from_numpy(chosen).to(device)
            if rows_on_device is not None:
                x = rows_on_device.index_select(0, rows)
            else:
                x = self.batch(inputs[chosen], device)
            value = loss(Batch(network, x, rows, network(x, dropout)))
            optimizer.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(network.parameters(), clip)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            total += value.detach()
            if step % 16 == 0 or step == steps:
                progress(step / max(1, steps))
        if not bool(torch.isfinite(total)):
            raise FkdError(
                f"the training loss is not finite: lower the learning rate (lr = {lr or self.config.lr})"
            )
        return self.dump(network)


def shuffled_batches(n: int, size: int, steps: int, seed: list[int]) -> Iterable[NDArray[np.int64]]:
    """`steps` mini-batches of `size` of n rows, reshuffled whenever all have been seen."""
    done = epoch = 0
    while done < steps:
        order = np.random.default_rng([*seed, epoch]).permutation(n)
        for first in range(0, n, size):
            chosen = order[first : first + size]
            if len(chosen) == 1 and n > 1:
                continue
            yield chosen
            done += 1
            if done == steps:
                return
        epoch += 1


def cross_entropy(batch: Batch, labels: Tensor) -> Tensor:
    """Of a labelled mini-batch, in nats."""
    return functional.cross_entropy(batch.logits, labels)


def kd_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T²·KL(teacher ‖ softmax(z/T)), batch mean, in nats.

    Args:
        logits: (b, C) the student's z.
        teacher: (b, C) probabilities, already at temperature T.
        temperature: T
    """
    return temperature**2 * divergence(logits, teacher, temperature)
