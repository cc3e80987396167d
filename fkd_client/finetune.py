"""Personalisation by gradient (Eq. 9): the end of the extractor and the student's copy; never the global model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fkd_client.extractor import blank_tail
from fkd_client.progress import Progress, silent
from fkd_client.student import State, student_of
from fkd_common.choices import FinetuneScope
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError

_SCORE_BATCH = 1024


@dataclass(frozen=True, eq=False)
class FinetuneData:
    """Samples as fine-tuning sees them."""

    block_inputs: NDArray[np.float32]
    """(n, c, a, a) activations entering the unfrozen part; (n, d) embeddings for scope ``head``. May be a memmap."""
    labels: NDArray[np.int64]
    """(n,) classes."""
    correction: NDArray[np.float32]
    """(n, C) λ_res·ΔS of the global model on these samples: frozen."""


@dataclass(frozen=True, eq=False)
class FinetunedModel:
    """The tail of the extractor and the head after fine-tuning."""

    scope: FinetuneScope
    """What was unfrozen."""
    tail: State
    """State of the extractor's tail; empty for scope ``head``."""
    head: State
    """State of the student."""
    epoch: int
    """The epoch D_val liked best; 0 is the global model."""

    def scores(
        self,
        block_inputs: NDArray[np.float32],
        correction: NDArray[np.float32],
        config: RunConfig,
        *,
        device: torch.device | str = "cpu",
    ) -> NDArray[np.float32]:
        """S + λ_res·ΔS of samples given as in :class:`FinetuneData`, (n, C) float32."""
        tail = blank_tail(self.scope)
        tail.load_state_dict({name: torch.tensor(array) for name, array in self.tail.items()})
        head = student_of(self.head, config, device)
        return _scores(tail.to(device).eval(), head, block_inputs, correction, device)


def finetune(
    state: Mapping[str, NDArray[Any]],
    tail: nn.Module,
    train: FinetuneData,
    val: FinetuneData,
    config: RunConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> FinetunedModel:
    """Minimise the mean cross-entropy of S + λ_res·ΔS over the tail and the head, with ΔS frozen (Eq. 9).

    BatchNorm stays in eval mode everywhere; dropout acts in the head as it does in training.

    Args:
        state: the global student; left untouched.
        tail: a copy of the unfrozen part of the extractor (``Extractor.tail``); left untouched.
        train: what is trained on.
        val: D_val, at least one sample; picks the epoch, the earlier of equals, epoch 0 included.
        config: the run configuration.
        seed: the client's seed.
        device: where training runs.
        progress: told after every epoch.

    Returns:
        The best epoch's model.

    Raises:
        FkdError: the loss is not finite.
    """
    tail = copy.deepcopy(tail).to(device).eval()
    if torch.device(device).type == "cpu":  # a fifth less at 2×2 pixels a map, no more at 7×7
        tail = tail.to(memory_format=torch.contiguous_format)
    head = student_of(state, config, device)
    groups = [{"params": list(head.parameters()), "lr": config.finetune_lr_head}]
    if unfrozen := list(tail.parameters()):
        groups.append({"params": unfrozen, "lr": config.finetune_lr_extractor})
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)
    dropout = torch.Generator(device=device)
    dropout.manual_seed(int(np.random.SeedSequence([seed, 9]).generate_state(1, np.uint64)[0] >> 1))

    def snapshot(epoch: int) -> FinetunedModel:
        kept = {name: tensor.detach().cpu().numpy().copy() for name, tensor in tail.state_dict().items()}
        return FinetunedModel(config.finetune_scope, kept, head.dump_state(), epoch)

    def hits() -> int:
        predicted = _scores(tail, head, val.block_inputs, val.correction, device).argmax(axis=1)
        return int((predicted == val.labels).sum())

    best, most = snapshot(0), hits()
    for epoch in range(1, config.finetune_epochs + 1):
        order = np.random.default_rng([seed, 9, epoch]).permutation(len(train.labels))
        loss_sum = torch.zeros((), device=device)
        for first in range(0, len(order), config.batch_size):
            batch = np.sort(order[first : first + config.batch_size])  # sorted rows read a memmap in order
            inputs, labels, correction = (
                torch.tensor(np.asarray(array[batch]), device=device)
                for array in (train.block_inputs, train.labels, train.correction)
            )
            loss = functional.cross_entropy(head(tail(inputs), dropout) + correction, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += loss.detach()  # a number only once an epoch: a GPU would be waited for
        if not bool(torch.isfinite(loss_sum)):
            raise FkdError(
                f"fine-tuning diverged in epoch {epoch}: lower finetune_lr_head ({config.finetune_lr_head}) "
                f"or finetune_lr_extractor ({config.finetune_lr_extractor})"
            )
        now = hits()
        if now > most:
            best, most = snapshot(epoch), now
        progress(epoch / config.finetune_epochs, "fine-tuning the personal model")
    return best


def _scores(
    tail: nn.Module,
    head: nn.Module,
    block_inputs: NDArray[np.float32],
    correction: NDArray[np.float32],
    device: torch.device | str,
) -> NDArray[np.float32]:
    scores = np.array(correction, np.float32)
    with torch.inference_mode():
        for first in range(0, len(scores), _SCORE_BATCH):
            rows = slice(first, first + _SCORE_BATCH)
            inputs: Tensor = torch.tensor(np.asarray(block_inputs[rows]), device=device)
            scores[rows] += head(tail(inputs)).cpu().numpy()
    return scores
