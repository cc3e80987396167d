"""The MLP student S_φ: network, local distillation (Eqs. 3-6, 8), outputs; states in and out, nothing kept.

A state is a dict of numpy arrays named and ordered as ``fkd_common.method.student_layout`` says. All
randomness comes from explicit generators: several clients may train in threads of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fkd_client.progress import Progress, silent
from fkd_client.student_network import State, Student, student_of
from fkd_common.choices import AbsentClasses, Norm
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.method.probabilities import softmax
from fkd_common.method.soft_targets import alpha_at, complete_absent, smooth

__all__ = [
    "State",
    "Student",
    "StudentOutputs",
    "distillation_loss",
    "outputs",
    "soft_targets",
    "student_of",
    "train_student",
]

_OUTPUT_BATCH = 4096


@dataclass(frozen=True, eq=False)
class StudentOutputs:
    """What the student says about a set of embeddings in eval mode."""

    logits: NDArray[np.float32]
    """(n, C) scores S(h)."""
    hidden: tuple[NDArray[np.float32], ...]
    """Per hidden layer (n, w) activations φ(h) after GELU."""


def outputs(
    state: Mapping[str, NDArray[Any]],
    h: NDArray[np.float32],
    config: RunConfig,
    *,
    device: torch.device | str = "cpu",
) -> StudentOutputs:
    """Logits and hidden activations of a student in eval mode.

    Args:
        state: the student's tensors.
        h: (n, d) embeddings.
        config: the run configuration.
        device: where the forward pass runs.

    Returns:
        Float32 arrays on the CPU.
    """
    student = student_of(state, config, device)
    logits = np.empty((len(h), student.output.out_features), np.float32)
    hidden = tuple(np.empty((len(h), width), np.float32) for width in config.hidden)
    with torch.inference_mode():
        for first in range(0, len(h), _OUTPUT_BATCH):
            rows = slice(first, first + _OUTPUT_BATCH)
            activations = student.hidden(torch.tensor(h[rows], device=device))
            logits[rows] = student.output(activations[-1]).cpu().numpy()
            for array, layer in zip(hidden, activations, strict=True):
                array[rows] = layer.cpu().numpy()
    return StudentOutputs(logits, hidden)


def divergence(logits: Tensor, soft: Tensor, temperature: float) -> Tensor:
    """KL(p̃ ‖ softmax(S/T)), batch mean, in nats (Eq. 5 without its factor T²).

    Args:
        logits: (n, C) scores S.
        soft: (n, C) targets p̃ at the same temperature.
        temperature: T.
    """
    log_student = functional.log_softmax(logits / temperature, dim=1)
    return (torch.xlogy(soft, soft) - soft * log_student).sum(dim=1).mean()


def distillation_loss(
    logits: Tensor, soft: Tensor, labels: Tensor, temperature: float, alpha: float
) -> Tensor:
    """(1−α)·CE(S, y) + α·T²·KL(p̃ ‖ softmax(S/T)), mean over the batch (Eqs. 4-6).

    Args:
        logits: (n, C) scores S.
        soft: (n, C) targets p̃ at the same temperature.
        labels: (n,) int64 classes.
        temperature: T.
        alpha: α in [0, 1].

    Returns:
        Scalar, in nats.
    """
    cross_entropy = functional.cross_entropy(logits, labels)
    kl = divergence(logits, soft, temperature)
    return (1.0 - alpha) * cross_entropy + alpha * temperature**2 * kl


def soft_targets(
    state: Mapping[str, NDArray[Any]],
    h: NDArray[np.float32],
    soft_source: NDArray[Any],
    present: NDArray[np.int64],
    config: RunConfig,
    *,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """The targets p̃ of one round (Eq. 3), absent classes completed by the received student if so configured.

    Args:
        state: the received global student.
        h: (n, d) embeddings.
        soft_source: (n, C) p̂ of the teacher.
        present: global ids of the classes present locally.
        config: the run configuration.
        device: where the student runs.

    Returns:
        (n, C) float64 at the configured temperature.
    """
    soft = smooth(soft_source, config.temperature)
    if config.absent_classes is AbsentClasses.LITERAL or len(present) == soft.shape[1]:
        return soft
    received = softmax(outputs(state, h, config, device=device).logits, config.temperature)
    return complete_absent(soft, received, present)


def batch_indices(n: int, config: RunConfig, seed_parts: list[int]) -> Iterator[NDArray[np.int64]]:
    """Mini-batches of one round: reshuffled every epoch, `local_steps` of them or `local_epochs` passes.

    A batch of a single sample is skipped where BatchNorm could not normalise it, unless it is all there is.
    """
    steps = epoch = 0
    while True:
        order = np.random.default_rng([*seed_parts, epoch]).permutation(n)
        for first in range(0, n, config.batch_size):
            batch = order[first : first + config.batch_size]
            if len(batch) == 1 and n > 1 and config.norm is Norm.BATCH:
                continue
            yield batch
            steps += 1
            if steps == config.local_steps:
                return
        epoch += 1
        if config.local_steps is None and epoch == config.local_epochs:
            return


def steps_per_round(n: int, config: RunConfig) -> int:
    """How many mini-batches :func:`batch_indices` gives."""
    if config.local_steps is not None:
        return config.local_steps
    full, rest = divmod(n, config.batch_size)
    skipped = rest == 1 and n > 1 and config.norm is Norm.BATCH
    return config.local_epochs * (full + (rest > 0 and not skipped))


def train_student(
    state: Mapping[str, NDArray[Any]],
    h: NDArray[np.float32],
    y: NDArray[np.int64],
    soft_source: NDArray[Any],
    present: NDArray[np.int64],
    config: RunConfig,
    *,
    round_number: int,
    seed: int,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> State:
    """Distil the teacher into the received student for one round (Eqs. 3-6, 8), with a fresh AdamW.

    Args:
        state: the received global student; left untouched.
        h: (n, d) embeddings.
        y: (n,) classes.
        soft_source: (n, C) p̂ of the teacher.
        present: global ids of the classes present locally.
        config: the run configuration.
        round_number: 1-based round; sets α and the shuffling.
        seed: the client's seed.
        device: where training runs.
        progress: told now and then.

    Returns:
        The trained state. Equal inputs, thread counts and seeds give equal bits.

    Raises:
        FkdError: the loss is not finite.
    """
    targets = soft_targets(state, h, soft_source, present, config, device=device)
    student = student_of(state, config, device).train()
    if len(h) == 1:
        student.eval()  # one sample has no batch statistics; dropout stays, it has its own generator
    features = torch.tensor(h, device=device)
    labels = torch.tensor(y, dtype=torch.int64, device=device)
    soft = torch.tensor(targets, dtype=torch.float32, device=device)
    alpha = alpha_at(round_number, config.rounds, config.alpha_start, config.alpha_end)
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    dropout = torch.Generator(device=device)
    dropout.manual_seed(
        int(np.random.SeedSequence([seed, round_number]).generate_state(1, np.uint64)[0] >> 1)
    )
    total = steps_per_round(len(h), config)
    loss_sum = torch.zeros((), device=device)
    for step, batch in enumerate(batch_indices(len(h), config, [seed, round_number]), start=1):
        chosen = torch.from_numpy(batch).to(device)
        logits = student(features.index_select(0, chosen), dropout)
        loss = distillation_loss(
            logits, soft.index_select(0, chosen), labels.index_select(0, chosen), config.temperature, alpha
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss_sum += loss.detach()
        if step % 16 == 0 or step == total:
            progress(step / total, "distilling the teacher into the student")
    if not bool(torch.isfinite(loss_sum)):
        raise FkdError(
            f"the student's loss is not finite in round {round_number}: lower the learning rate (lr = {config.lr}), "
            "or look for values that are not finite in the shard's embeddings"
        )
    return student.dump_state()
