"""The personal model: candidates built on the published global model, D_val picks one; nothing is uploaded.

The global model itself is always a candidate: where D_val says clearly that personalising costs accuracy, it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fkd_client.finetune import FinetuneData, FinetunedModel, finetune
from fkd_client.global_model import GlobalModel
from fkd_client.progress import Progress, part_of, silent
from fkd_client.teacher import Teacher, TeacherModel
from fkd_common.choices import FinetuneScope, PersonalKind
from fkd_common.config import RunConfig
from fkd_common.errors import UsageError
from fkd_common.method.metrics import correct, share
from fkd_common.method.moments import Moments, accumulate, apply_moments, centre, moment_targets
from fkd_common.method.personal import blend, clearly_best, closed_form, log_prior

_T = TypeVar("_T")
_CHUNK = 8192
"""Training samples whose moments are summed at a time, to bound memory."""

GLOBAL = "global"
CANDIDATES = (GLOBAL, "prior", "closed_form", "blend", "finetune")
"""Names of the candidates, simplest first."""
_PREFERRED = ("blend", "prior", "closed_form", "finetune", GLOBAL)
"""The first is kept unless another is clearly better on D_val: those that know the site's label shares come before the
one that does not, because a small D_val, or one of a single class, cannot tell them apart and future images can."""


@dataclass(frozen=True, eq=False)
class PersonalData:
    """One part of a client's shard, or a test set to score."""

    h: NDArray[np.float32]
    """(n, d) embeddings."""
    labels: NDArray[np.int64]
    """(n,) classes."""
    block_inputs: NDArray[np.float32] | None = None
    """Activations entering the unfrozen part (``block_inputs_cached``); needed for ``finetune`` beyond the head."""


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """A client's own model: the global one and what was fitted on top."""

    base: GlobalModel
    """The published global model."""
    config: RunConfig
    """The run configuration."""
    chosen: str
    """The candidate that is kept; see :func:`~fkd_common.method.personal.clearly_best`."""
    val_accuracy: dict[str, float]
    """Accuracy on D_val by candidate, in the order of :data:`CANDIDATES`; nan without validation samples."""
    log_prior: NDArray[np.float64]
    """(C,) log-shares of the training labels."""
    V: NDArray[np.float64] | None
    """(p, C) V_k of ``closed_form``."""
    personal_lambda: float
    """λ_k of ``closed_form``; nan where it was not tried."""
    teacher: TeacherModel | None
    """The local teacher of ``blend``."""
    gamma: float
    """γ of ``blend``; nan where it was not tried."""
    finetuned: FinetunedModel | None
    """The model of ``finetune``."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """The candidates this model can score."""
        return tuple(self.val_accuracy)

    def scores(
        self,
        candidate: str,
        h: NDArray[np.float32],
        block_inputs: NDArray[np.float32] | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> NDArray[np.float32]:
        """Scores of any candidate on new data.

        Args:
            candidate: one of :attr:`candidates`; :attr:`chosen` is the personal model.
            h: (n, d) embeddings.
            block_inputs: activations entering the unfrozen part, needed by ``finetune`` beyond the head.
            device: where a fine-tuned model runs.

        Returns:
            (n, C) float32.

        Raises:
            UsageError: the candidate was not built, or block inputs are missing.
        """
        student = self.base.outputs(h)
        logits = self.base.scores(h, student, self.base.published)
        if candidate == GLOBAL:
            return logits
        if candidate == PersonalKind.PRIOR:
            return np.asarray(logits + self.log_prior, np.float32)
        if candidate == PersonalKind.BLEND and self.teacher is not None:
            return np.asarray(
                blend(logits, self.log_prior, self.teacher.calibrated(h), self.gamma), np.float32
            )
        if candidate == PersonalKind.CLOSED_FORM and self.V is not None and self.base.moments is not None:
            delta = apply_moments(self.base.moments.vector(student.hidden, h), self.V)
            return np.asarray(centre(student.logits) + self.base.config.lambda_res * delta, np.float32)
        if candidate == PersonalKind.FINETUNE and self.finetuned is not None:
            inputs = _finetune_inputs(h, block_inputs, self.finetuned.scope)
            correction = self.base.correction(h, student, self.base.published)
            return self.finetuned.scores(inputs, correction, self.config, device=device)
        raise UsageError(
            f"this personal model has no candidate {candidate!r}: it has {', '.join(self.candidates)}"
        )


def personalise(
    base: GlobalModel,
    train: PersonalData,
    val: PersonalData,
    teacher: Teacher,
    config: RunConfig,
    *,
    tail: nn.Module | None = None,
    seed: int,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> PersonalModel:
    """Build every configured candidate, let D_val choose among them and the global model (:func:`clearly_best`).

    Strengths λ_k and γ are also chosen on D_val; of equals the larger λ_k and the smaller γ stay, being
    closer to the global model. ``closed_form`` needs a moment correction, ``finetune`` validation samples:
    without them they are not tried.

    Equal inputs and seeds give equal bits at an equal number of BLAS threads. That number belongs to the
    process: whoever runs several clients in threads must fix it at 1 for good, because the solvers lower it
    and overlapping calls do not put it back.

    Args:
        base: the published global model; left untouched.
        train: the client's training part.
        val: the client's D_val; may be empty, then the global model is kept.
        teacher: the client's teacher, with the out-of-fold probabilities moment targets need if beta > 0.
        config: the run configuration.
        tail: ``Extractor.tail(config.finetune_scope)``; needed for ``finetune`` beyond the head.
        seed: the client's seed.
        device: where fine-tuning runs.
        progress: told between candidates.

    Returns:
        The personal model with all its candidates.

    Raises:
        UsageError: ``finetune`` is configured and `tail` or block inputs are missing.
    """
    num_classes = base.state["output.weight"].shape[0]
    prior = log_prior(np.bincount(train.labels, minlength=num_classes))
    student = base.outputs(val.h)
    logits = base.scores(val.h, student, base.published)
    right = {GLOBAL: correct(logits, val.labels)}
    V: NDArray[np.float64] | None = None
    best_lambda = best_gamma = float("nan")
    finetuned: FinetunedModel | None = None
    progress(0.0, "personalising")
    if PersonalKind.PRIOR in config.personal:
        right["prior"] = correct(logits + prior, val.labels)
    if PersonalKind.CLOSED_FORM in config.personal and base.moments is not None:
        V, best_lambda, right["closed_form"] = _closed_form(base, train, val, teacher, config)
    progress(0.3, "personalising")
    if PersonalKind.BLEND in config.personal and config.blend_gamma_grid:
        p_val = teacher.calibrated(val.h)
        tried = [
            (correct(blend(logits, prior, p_val, gamma), val.labels), gamma)
            for gamma in sorted(config.blend_gamma_grid)
        ]
        right["blend"], best_gamma = _first_best(tried)
    progress(0.4, "personalising")
    if PersonalKind.FINETUNE in config.personal and len(val.labels):
        finetuned = _finetuned(base, train, val, tail, config, seed, device, progress)
        inputs = _finetune_inputs(val.h, val.block_inputs, config.finetune_scope)
        scores = finetuned.scores(
            inputs, base.correction(val.h, student, base.published), config, device=device
        )
        right["finetune"] = correct(scores, val.labels)
    progress(1.0, "personalising")
    ordered = {name: share(right[name]) for name in CANDIDATES if name in right}
    preferred = {name: right[name] for name in _PREFERRED if name in right}
    chosen = clearly_best(preferred) if len(val.labels) else GLOBAL
    return PersonalModel(
        base=base,
        config=config,
        chosen=chosen,
        val_accuracy=ordered,
        log_prior=prior,
        V=V,
        personal_lambda=best_lambda,
        teacher=teacher.model if "blend" in ordered else None,
        gamma=best_gamma,
        finetuned=finetuned,
    )


def _closed_form(
    base: GlobalModel, train: PersonalData, val: PersonalData, teacher: Teacher, config: RunConfig
) -> tuple[NDArray[np.float64], float, NDArray[np.bool_]]:
    """V_k, its λ_k and which samples of D_val it gets right."""
    assert base.moments is not None
    num_classes = base.state["output.weight"].shape[0]
    targets = moment_targets(train.labels, teacher.oof, num_classes, config.kappa, config.beta)
    sums: Moments | None = None
    for first in range(0, len(train.labels), _CHUNK):
        rows = slice(first, first + _CHUNK)
        student = base.outputs(train.h[rows])
        z = base.moments.vector(student.hidden, train.h[rows])
        part = accumulate(z, targets[rows] - centre(student.logits))
        sums = part if sums is None else sums + part
    assert sums is not None
    student = base.outputs(val.h)
    z_val, centred = base.moments.vector(student.hidden, val.h), centre(student.logits)
    tried = []
    for strength in sorted(config.personal_lambda_grid, reverse=True):
        V = closed_form(sums.A, sums.B, base.moments.V, strength)
        scores = centred + base.config.lambda_res * apply_moments(z_val, V)
        tried.append((correct(scores, val.labels), (V, strength)))
    right, (V, strength) = _first_best(tried)
    return V, strength, right


def _finetuned(
    base: GlobalModel,
    train: PersonalData,
    val: PersonalData,
    tail: nn.Module | None,
    config: RunConfig,
    seed: int,
    device: torch.device | str,
    progress: Progress,
) -> FinetunedModel:
    scope = config.finetune_scope
    if tail is None and scope is not FinetuneScope.HEAD:
        raise UsageError(f"fine-tuning with scope {scope} needs the extractor's tail")

    def data(part: PersonalData) -> FinetuneData:
        correction = base.correction(part.h, base.outputs(part.h), base.published)
        return FinetuneData(_finetune_inputs(part.h, part.block_inputs, scope), part.labels, correction)

    return finetune(
        base.state,
        nn.Identity() if tail is None else tail,
        data(train),
        data(val),
        config,
        seed=seed,
        device=device,
        progress=part_of(progress, 0.4, 1.0),
    )


def _finetune_inputs(
    h: NDArray[np.float32], block_inputs: NDArray[np.float32] | None, scope: FinetuneScope
) -> NDArray[np.float32]:
    if scope is FinetuneScope.HEAD:
        return h
    if block_inputs is None:
        raise UsageError(f"fine-tuning with scope {scope} needs the activations entering the unfrozen part")
    return block_inputs


def _first_best(tried: list[tuple[NDArray[np.bool_], _T]]) -> tuple[NDArray[np.bool_], _T]:
    """The first entry with the most right answers."""
    return max(tried, key=lambda entry: np.count_nonzero(entry[0]))
