"""FKD-RTM with secure sums: students and moments arrive added up, and are finished as in the plain method.

Differs from :class:`FkdRtm` in how Eq. 14's numerator and denominator, Σ w_k W_k and Σ w_k, and the sums of moments
reach the coordinator; residuals, votes and everything after the sums are the plain method's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from fkd_common.method.moments import unpack_symmetric
from fkd_common.method.student_layout import TensorSpec
from fkd_common.secure_sum.sharing import ThresholdRule
from fkd_common.secure_sum.steps import SECURE_STEPS, SecureStep, Step, Summed, phases_of
from fkd_common.tensors import Tensors
from fkd_server.method.federated_method import (
    Json,
    Participants,
    PhasePlan,
    SecureUpload,
    TaskContent,
    UploadContent,
)
from fkd_server.method.fkd_rtm import FkdRtm
from fkd_server.method.secure_sum import SecureSums


class SecureFkdRtm(FkdRtm):
    """FKD-RTM whose coordinator sees students and moments as sums only."""

    @cached_property
    def _sums(self) -> SecureSums:
        rule = ThresholdRule(self.config.secure_threshold, self.config.min_cohort)
        return SecureSums(rule, self._blobs, self._uploads)

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        """The plain method's phases, with those that sum taken apart into the steps of a secure sum."""
        return tuple(step for plan in super().phases(round_number) for step in _steps_of(plan))

    def chosen(self, phase: int) -> tuple[str, ...]:
        """Who can do a step of a secure sum: those who did the one before."""
        return self._sums.chosen(self.state.secure, SECURE_STEPS[phase])

    def needed(self, phase: int) -> int:
        """The threshold of the secure sum at work."""
        place = SECURE_STEPS.get(phase)
        return 0 if place is None else self._sums.needed(self.state.secure, place)

    def task(self, phase: int, client: str) -> TaskContent:
        """A task's inputs; in a step of a secure sum those of the step, and the student to be trained or measured."""
        place = SECURE_STEPS.get(phase)
        if place is None:
            return super().task(phase, client)
        content = self._sums.task(self.state.secure, place, client)
        if place.step is Step.MASKED:
            started = {"student": self.state.student} if place.summed is Summed.STUDENT else self._student()
            return replace(content, inputs={**started, **content.inputs})
        return content

    def secure_schema(self, phase: int, client: str) -> Mapping[str, TensorSpec] | None:
        """Names, shapes and dtypes of a client's answer to a step of a secure sum; None if the phase is none."""
        place = SECURE_STEPS.get(phase)
        if place is None:
            return None
        return self._sums.schema(self.state.secure, place, client, self._summand(place.summed))

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        """Take a secure sum one step further, or fold uploads as in the plain method."""
        place = SECURE_STEPS.get(phase)
        if place is None:
            return super().close(phase, uploads)
        answers = {name: upload for name, upload in uploads.items() if isinstance(upload, SecureUpload)}
        if place.step is not Step.UNMASK:
            begun = self._sums.close(self.state.secure, place, answers)
            self.state = replace(self.state, secure=begun)
            refused = sorted(set(answers) - set(begun.members))
            return {"unusable_keys": refused} if refused else {}
        state = self.state.secure
        total = self._sums.total(state, answers)
        assert state is not None
        self.state = replace(self.state, secure=None)
        record = (
            self._finish_student(total) if place.summed is Summed.STUDENT else self._finish_moments(total)
        )
        gone = sorted(set(state.members) - set(state.delivered))
        return {"summed": list(state.delivered), "dropped_out": gone, **record}

    def _finish_student(self, total: Tensors) -> dict[str, Json]:
        """Eq. 14 from its numerator and denominator; integer tensors, the step counters, stay what they were."""
        weight = float(total["weight"])
        if not weight > 0:
            raise ValueError("the clients' weights add up to 0: every reliability is below drop_below")
        average = dict(self.student())
        with np.errstate(over="ignore"):  # infinity is a flaw
            for name, spec in self._summand(Summed.STUDENT).items():
                if name != "weight":
                    average[name] = (total[name] / weight).astype(average[name].dtype).reshape(spec.shape)
        flaw = self.flaw_of_average(average)
        if flaw is not None:
            raise ValueError(f"somebody sent no student: of the average {flaw}")
        self.replace_student(average)
        return {"total_weight": weight, "student": self.state.student.sha256}

    def _finish_moments(self, total: Tensors) -> dict[str, Json]:
        """The pooled moments, solved; of what is asked of single moments only what fixed point keeps is checked."""
        A, B = unpack_symmetric(total["A"], self.num_moment_features, None), total["B"]
        pooled = round(A[-1, -1])  # the constant feature's sum of squares
        noisy = self.config.noise_multiplier > 0
        if pooled < 1 or not (noisy or A.diagonal().min() >= 0):
            raise ValueError("the summed moments are those of no samples: somebody sent no moments")
        self.solve_pooled(A, B)
        return {"pooled_samples": pooled, "features": self.num_moment_features}

    def _summand(self, summed: Summed) -> dict[str, TensorSpec]:
        """What a client adds: its weighted student without step counters and its weight, or its complete moments."""
        if summed is Summed.STUDENT:
            layout = {n: spec for n, spec in self.layout.items() if not spec.dtype.startswith("int")}
            return {**layout, "weight": TensorSpec((), "float64")}
        p = self.num_moment_features
        return {
            "A": TensorSpec((p * (p + 1) // 2,), "float64"),
            "B": TensorSpec((p, self.num_classes), "float64"),
        }


def _steps_of(plan: PhasePlan) -> list[PhasePlan]:
    """A phase as it is, or the four steps of its secure sum; after the first, those who did the one before."""
    place = SECURE_STEPS.get(plan.phase)
    if place is None:
        return [plan]
    return [
        replace(plan, phase=phase, participants=_participants(plan, SECURE_STEPS[phase]))
        for phase in phases_of(place.summed)
    ]


def _participants(plan: PhasePlan, place: SecureStep) -> Participants:
    return plan.participants if place.step is Step.KEYS else Participants.CHOSEN
