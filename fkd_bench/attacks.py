"""What hostile clients do in `fkd-bench hostile`: to their labels before training, to their uploads after it.

Lives in the bench alone; a client of the project has no such switch.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.config import RunConfig
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.tensors import Tensors

SCALE = 10.0
"""Factor of scaled updates, and of the samples a one-class liar claims."""

LEAST_VARIANCE = 0.1
"""Scaled updates leave at least this share of every running variance."""


class Attack(StrEnum):
    """One kind of hostile client."""

    LABEL_FLIP = "label_flip"
    """Every label c is C - 1 - c: teacher, student, residuals, moments and votes follow from it."""
    SIGN_FLIP = "sign_flip"
    """Students are W_t - (W_k - W_t)."""
    SCALED_UPDATE = "scaled_update"
    """Students are W_t + 10·(W_k - W_t)."""
    RANDOM_UPDATE = "random_update"
    """Students are W_t plus Gaussian noise, in every tensor as long as W_k - W_t."""
    CONSTANT_RESIDUAL = "constant_residual"
    """Residuals say "class 0" of every anchor, as loudly as validation lets them."""
    ONE_CLASS = "one_class"
    """Every label is 0, r_k is claimed to be 1 and n_k ten times what it is; the moments are made to match."""


@dataclass(frozen=True)
class Claim:
    """What a client submits in a phase."""

    tensors: Tensors
    num_samples: int
    reliability: float


def poisoned_labels(attack: Attack, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.int64] | None:
    """The labels a hostile client trains on; None where the attack leaves them alone."""
    if attack is Attack.LABEL_FLIP:
        return num_classes - 1 - labels
    if attack is Attack.ONE_CLASS:
        return np.zeros_like(labels)
    return None


def tampered(attack: Attack, phase: int, honest: Claim, received: Tensors, config: RunConfig) -> Claim:
    """What a hostile client submits instead of what it computed.

    Args:
        attack: the kind.
        phase: the task's phase.
        honest: what it computed.
        received: W_t.
        config: the run configuration, which the client knows.
    """
    if phase == types.PHASE_STUDENT and attack in (Attack.SIGN_FLIP, Attack.SCALED_UPDATE):
        factor = -1.0 if attack is Attack.SIGN_FLIP else SCALE
        moved = {name: _moved(name, array, received[name], factor) for name, array in honest.tensors.items()}
        return Claim(moved, honest.num_samples, honest.reliability)
    if phase == types.PHASE_STUDENT and attack is Attack.RANDOM_UPDATE:
        noisy = _with_noise(honest.tensors, received)
        return Claim(noisy, honest.num_samples, honest.reliability)
    if phase == types.PHASE_RESIDUALS and attack is Attack.CONSTANT_RESIDUAL:
        loud = np.full_like(honest.tensors["residuals"], -config.residual_clip / config.residual_temperature)
        loud[:, 0] *= -1.0
        return Claim({"residuals": loud}, honest.num_samples, honest.reliability)
    if attack is Attack.ONE_CLASS:
        tensors = honest.tensors
        if phase in (types.PHASE_MOMENTS, *REFINE_PHASES):  # as if every sample were there ten times
            tensors = {name: array * np.float32(SCALE) for name, array in tensors.items()}
        return Claim(tensors, int(SCALE) * honest.num_samples, 1.0)
    return honest


def _with_noise(trained: Tensors, received: Tensors) -> Tensors:
    """Noise in the update's place; the same whenever the same student is trained."""
    rng = np.random.default_rng(zlib.crc32(b"".join(array.tobytes() for array in trained.values())))
    found = {}
    for name, array in trained.items():
        noise = rng.standard_normal(array.shape)
        length = float(np.linalg.norm(array.astype(np.float64) - received[name]))
        length /= max(float(np.linalg.norm(noise)), 1e-12)
        random = (received[name] + length * noise).astype(array.dtype)
        found[name] = _moved(name, random, received[name], 1.0) if array.dtype == np.float32 else array
    return found


def _moved(name: str, array: NDArray[Any], start: NDArray[Any], factor: float) -> NDArray[Any]:
    """W_t + factor·(W_k - W_t) as far as validation lets it pass: counters stay as they are, variances positive.

    A variance of 0 would make a student's answers for the anchors millions, and the student refused.
    """
    if np.issubdtype(array.dtype, np.integer):
        return array
    moved = start.astype(np.float64) + factor * (array.astype(np.float64) - start)
    if name.endswith("running_var"):
        moved = np.maximum(moved, LEAST_VARIANCE * start)
    return np.asarray(moved, dtype=array.dtype)
