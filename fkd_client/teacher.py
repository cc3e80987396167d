"""The local teacher T_k, its calibration, soft targets and reliability (Eqs. 1-3); trained once a run.

With a frozen extractor neither embeddings nor labels change during a run, so neither does anything here. What a
teacher learns with is a :class:`~fkd_client.learner.Learner`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fkd_client.boosting import BinnedEmbeddings
from fkd_client.learner import Learner
from fkd_client.mlp_learner import MlpLearner
from fkd_client.progress import Progress, silent
from fkd_client.split import stratified_folds
from fkd_client.tree_learner import TreeLearner
from fkd_common.choices import KdTargets, Reliability, TeacherKind
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.calibration import Calibration, expand_to_global, fit_calibration
from fkd_common.method.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from fkd_common.method.probabilities import softmax

LEARNERS: Mapping[TeacherKind, type[Learner]] = MappingProxyType(
    {TeacherKind.TREES: TreeLearner, TeacherKind.MLP: MlpLearner}
)
"""What each kind of teacher learns with."""

_WHOLE = 0
"""Number of the learner that is fitted to everything."""
_REMEMBERED = 3
"""Training part, D_val and a test set."""


@dataclass(frozen=True)
class TeacherReport:
    """What the teacher's training showed; nan where D_val is empty."""

    val_accuracy: float
    """Accuracy of the uncalibrated teacher on D_val."""
    ece_before: float
    """Expected calibration error on D_val before calibration."""
    ece_after: float
    """The same after calibration (fitted on that split, so a little optimistic)."""
    nll_before: float
    """Negative log-likelihood on D_val before calibration, nats per sample."""
    nll_after: float
    """The same after calibration."""
    seconds: float
    """Wall time of all fits."""


@dataclass(frozen=True, eq=False)
class TeacherModel:
    """What predicts: learner and calibration."""

    learner: Learner | None
    """Scores the present classes; None for a one-class client, whose probability is constant."""
    present: NDArray[np.int64]
    """(C_loc,) global ids of the classes trained on, ascending."""
    num_classes: int
    """C."""
    n_val: int
    """Samples in D_val."""
    calibration: Calibration
    """C_k, fitted on D_val."""
    threads: int
    """Threads used to predict."""
    _latest: dict[bytes, NDArray[np.float64]] = field(default_factory=dict, repr=False)

    def probabilities(self, h: NDArray[np.float32]) -> NDArray[np.float64]:
        """Uncalibrated (n, C_loc) probabilities over the present classes (Eq. 2); the latest are remembered.

        A test set is asked about several times, and predicting costs far more than reading the embeddings.
        """
        key = hashlib.blake2b(np.ascontiguousarray(h).data, digest_size=16).digest()
        found = self._latest.get(key)
        if found is None:
            found = _probabilities(self.learner, h, len(self.present), self.threads)
            found.flags.writeable = False
            self._latest[key] = found
            if len(self._latest) > _REMEMBERED:
                del self._latest[next(iter(self._latest))]
        return found

    def calibrated(self, h: NDArray[np.float32]) -> NDArray[np.float32]:
        """Calibrated p̂ of (n, d) embeddings over all classes in global order, (n, C) float32, positive."""
        return self.calibrate(self.probabilities(h))

    def calibrate(self, p: NDArray[np.float64]) -> NDArray[np.float32]:
        """p̂ (n, C) of uncalibrated (n, C_loc) probabilities."""
        own = self.calibration.apply(p)
        return expand_to_global(own, self.present, self.num_classes, self.n_val).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained teacher and everything a run needs of it."""

    model: TeacherModel
    """Predicts on embeddings it has not seen."""
    soft_source: NDArray[np.float32]
    """(n_train, C) p̂ the student learns from: out-of-fold or in-sample, as configured."""
    oof: NDArray[np.float32] | None
    """(n_train, C) calibrated out-of-fold p̂; None unless soft or moment targets need it."""
    reliability: float
    """r_k in [0, 1]."""
    report: TeacherReport
    """How good and how well calibrated it is."""

    @property
    def present(self) -> NDArray[np.int64]:
        """(C_loc,) global ids of the classes trained on, ascending."""
        return self.model.present

    def calibrated(self, h: NDArray[np.float32]) -> NDArray[np.float32]:
        """Calibrated p̂ of (n, d) embeddings over all classes in global order, (n, C) float32, positive."""
        return self.model.calibrated(h)


TeacherTrainer: TypeAlias = Callable[..., "Teacher"]
"""Trains a teacher; takes what :func:`train_teacher` takes."""


def train_teacher(
    h_train: NDArray[np.float32],
    y_train: NDArray[np.int64],
    h_val: NDArray[np.float32],
    y_val: NDArray[np.int64],
    num_classes: int,
    config: RunConfig,
    *,
    threads: int,
    seed: int,
    binned: BinnedEmbeddings | None = None,
    progress: Progress = silent,
) -> Teacher:
    """Train, calibrate and assess a client's teacher.

    Args:
        h_train: (n, d) embeddings.
        y_train: (n,) classes in 0 … C−1.
        h_val: (v, d) embeddings of D_val; v may be 0.
        y_val: (v,) classes of D_val.
        num_classes: C.
        config: the run configuration.
        threads: threads of all fits together.
        seed: seed of the fits and folds.
        binned: `h_train` in bins, where that is needed for more than the teacher.
        progress: told after every boosting round or epoch.

    Returns:
        The teacher with soft targets, reliability and report. Nothing but seconds depends on `threads`.

    Raises:
        DataError: there is no training sample, or nothing to learn from those that there are.
    """
    if len(y_train) == 0:
        raise DataError("the teacher needs at least 1 training sample, the shard has none")
    start = time.perf_counter()
    present, local = np.unique(y_train, return_inverse=True)
    in_sample = config.kd_targets is KdTargets.IN_SAMPLE
    wants_oof = not in_sample or config.beta > 0
    folds = stratified_folds(local, config.kd_folds, seed) if wants_oof and len(present) > 1 else None
    parts = _parts(local, folds, config.kd_folds)
    learners: Mapping[int, Learner] = {}
    if parts:
        learners = LEARNERS[config.teacher].fit(
            h_train, local, parts, config, threads=threads, seed=seed, binned=binned, progress=progress
        )
    learner = learners.get(_WHOLE)

    p_val = _probabilities(learner, h_val, len(present), threads)
    known = np.isin(y_val, present)  # a class met only in D_val has no column to calibrate
    calibration = fit_calibration(
        p_val[known], np.searchsorted(present, y_val[known]), config.calibrator, config.min_val
    )
    model = TeacherModel(learner, present.astype(np.int64), num_classes, len(y_val), calibration, threads)

    oof: NDArray[np.float32] | None = None
    if wants_oof:
        p_oof = _out_of_fold(h_train, local, folds, learners, threads)
        oof = model.calibrate(p_oof)
    raw_val = expand_to_global(p_val, model.present, num_classes, len(y_val))
    calibrated_val = model.calibrate(p_val)
    report = TeacherReport(
        val_accuracy=accuracy(raw_val, y_val),
        ece_before=expected_calibration_error(raw_val, y_val),
        ece_after=expected_calibration_error(calibrated_val, y_val),
        nll_before=negative_log_likelihood(raw_val, y_val),
        nll_after=negative_log_likelihood(calibrated_val, y_val),
        seconds=time.perf_counter() - start,
    )
    return Teacher(
        model=model,
        soft_source=model.calibrated(h_train) if in_sample or oof is None else oof,
        oof=oof,
        reliability=reliability(report.val_accuracy, y_val, config.reliability),
        report=report,
    )


def reliability(val_accuracy: float, y_val: NDArray[np.int64], kind: Reliability) -> float:
    """r_k of Eq. 15 before its floor.

    Args:
        val_accuracy: accuracy of T_k on D_val.
        y_val: (v,) classes of D_val.
        kind: `accuracy`; `skill` = (accuracy − majority)/(1 − majority), 0 where a constant guess is as
            good; `none` = 1.

    Returns:
        Value in [0, 1]; 0 when D_val is empty, so that the floor applies.
    """
    if kind is Reliability.NONE:
        return 1.0
    if len(y_val) == 0:
        return 0.0
    if kind is Reliability.ACCURACY:
        return val_accuracy
    majority = float(np.bincount(y_val).max() / len(y_val))
    return max(0.0, (val_accuracy - majority) / (1.0 - majority)) if majority < 1.0 else 0.0


def _parts(
    local: NDArray[np.int64], folds: NDArray[np.int64] | None, num_folds: int
) -> dict[int, NDArray[np.int64]]:
    """What learners are fitted to: all rows as number 0, those left over by fold f as f + 1; no part of one class."""
    parts = {_WHOLE: np.arange(len(local))}
    if folds is not None:
        left = {fold + 1: np.flatnonzero(folds != fold) for fold in range(num_folds)}
        parts |= {number: rows for number, rows in left.items() if len(rows) < len(local)}
    return {number: rows for number, rows in parts.items() if len(np.unique(local[rows])) > 1}


def _probabilities(
    learner: Learner | None, h: NDArray[np.float32], num_local: int, threads: int
) -> NDArray[np.float64]:
    """Our own softmax over raw margins (Eq. 2)."""
    if learner is None or len(h) == 0:
        return np.full((len(h), num_local), 1.0 / num_local)
    return softmax(learner.margins(h, threads))


def _out_of_fold(
    h: NDArray[np.float32],
    local: NDArray[np.int64],
    folds: NDArray[np.int64] | None,
    learners: Mapping[int, Learner],
    threads: int,
) -> NDArray[np.float64]:
    """(n, C_loc) probabilities of teachers that did not see the sample.

    A class missing from a fold's training part is treated like any class unseen in n samples: 1/(n + 2).
    """
    num_local = int(local.max()) + 1
    out = np.full((len(h), num_local), 1.0 / num_local)
    for fold in () if folds is None else np.unique(folds).tolist():
        held_out, rest = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        seen = np.unique(local[rest]).astype(np.int64)
        if fold + 1 in learners:
            p_seen = softmax(learners[fold + 1].margins(h[held_out], threads)[:, seen])
        else:
            p_seen = np.ones((len(held_out), 1))
        out[held_out] = expand_to_global(p_seen, seen, num_local, len(rest))
    return out
