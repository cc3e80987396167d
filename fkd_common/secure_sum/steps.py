"""Which phases of a round are steps of which secure sum; names only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fkd_common.pb import types_pb2 as types


class Summed(StrEnum):
    """What is summed; also separates the keys of the sums of one round."""

    STUDENT = "student"
    MOMENTS = "moments"


class Step(StrEnum):
    """A step of a secure sum, in order."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    UNMASK = "unmask"


@dataclass(frozen=True)
class SecureStep:
    """A phase's place in a secure sum."""

    summed: Summed
    step: Step


SECURE_STEPS: Mapping[int, SecureStep] = {
    types.PHASE_STUDENT_KEYS: SecureStep(Summed.STUDENT, Step.KEYS),
    types.PHASE_STUDENT_SHARES: SecureStep(Summed.STUDENT, Step.SHARES),
    types.PHASE_STUDENT: SecureStep(Summed.STUDENT, Step.MASKED),
    types.PHASE_STUDENT_UNMASK: SecureStep(Summed.STUDENT, Step.UNMASK),
    types.PHASE_MOMENTS_KEYS: SecureStep(Summed.MOMENTS, Step.KEYS),
    types.PHASE_MOMENTS_SHARES: SecureStep(Summed.MOMENTS, Step.SHARES),
    types.PHASE_MOMENTS: SecureStep(Summed.MOMENTS, Step.MASKED),
    types.PHASE_MOMENTS_UNMASK: SecureStep(Summed.MOMENTS, Step.UNMASK),
}
"""By phase, in the order in which a round goes through them."""


def phases_of(summed: Summed) -> tuple[int, ...]:
    """The four phases of a sum, in order."""
    return tuple(phase for phase, place in SECURE_STEPS.items() if place.summed is summed)
