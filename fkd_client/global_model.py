"""The published global model: averaged student with its corrections, as scores; it is never trained here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fkd_client.student import StudentOutputs, outputs
from fkd_common.choices import MomentFeatures
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.moments import apply_moments, centre, moment_vector
from fkd_common.method.residuals import AnchorCorrection, Standardiser
from fkd_common.model_file import ModelParts


class Published(StrEnum):
    """Which candidate the vote made the run's global model."""

    STUDENT = "student"
    ANCHORS = "anchors"
    MOMENTS = "moments"


@dataclass(frozen=True, eq=False)
class MomentCorrection:
    """ΔS(h) = zᵀV of the pooled moments."""

    V: NDArray[np.float64]
    """(p, C)"""
    standardiser: Standardiser
    """Of the anchor embeddings."""
    features: MomentFeatures
    """Which hidden layers are part of z."""

    def vector(self, hidden: tuple[NDArray[np.float32], ...], h: NDArray[np.float32]) -> NDArray[np.float32]:
        """z = [φ(h); h̄; 1], (n, p) float32."""
        return moment_vector(hidden, self.standardiser.apply(h), self.features)


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """What the server published, ready to score embeddings."""

    state: Mapping[str, NDArray[Any]]
    """The averaged student."""
    config: RunConfig
    """The run configuration; only `hidden`, `norm` and `lambda_res` decide a score."""
    anchors: AnchorCorrection | None = None
    """ΔS of Eq. 13, where it was computed."""
    moments: MomentCorrection | None = None
    """ΔS of the pooled moments, where it was computed."""
    published: Published = Published.STUDENT
    """Which of the candidates is the global model."""

    def __post_init__(self) -> None:
        if self.published not in self.candidates:
            raise ValueError(f"the published candidate {self.published} has no correction in this model")

    @classmethod
    def of(cls, parts: ModelParts) -> Self:
        """The model of a published model file.

        Raises:
            DataError: a correction it claims to publish is not in it.
        """
        header = parts.header
        published = Published(header.published)
        absent = {Published.ANCHORS: parts.anchor_correction, Published.MOMENTS: parts.moment_solution}
        if published in absent and absent[published] is None:
            raise DataError(f"the model file publishes its {published} correction and does not contain it")
        moments = None
        if parts.moment_solution is not None:
            V = np.asarray(parts.moment_solution, np.float64)
            moments = MomentCorrection(V, parts.standardiser, header.config.moment_features)
        return cls(parts.student, header.config, parts.anchor_correction, moments, published)

    @property
    def candidates(self) -> tuple[Published, ...]:
        """The candidates this model can score, simplest first."""
        corrections = {Published.ANCHORS: self.anchors, Published.MOMENTS: self.moments}
        return (Published.STUDENT, *(name for name, value in corrections.items() if value is not None))

    def outputs(self, h: NDArray[np.float32]) -> StudentOutputs:
        """Logits and hidden activations of the student for (n, d) embeddings."""
        return outputs(self.state, h, self.config)

    def correction(
        self, h: NDArray[np.float32], student: StudentOutputs, name: Published
    ) -> NDArray[np.float32]:
        """λ_res·ΔS of a candidate, (n, C) float32; zero for the student alone.

        Args:
            h: (n, d) embeddings.
            student: the student's outputs on them.
            name: the candidate.
        """
        if name is Published.ANCHORS and self.anchors is not None:
            delta = self.anchors.apply(h)
        elif name is Published.MOMENTS and self.moments is not None:
            delta = apply_moments(self.moments.vector(student.hidden, h), self.moments.V)
        else:
            return np.zeros_like(student.logits)
        return np.asarray(self.config.lambda_res * delta, np.float32)

    def scores(self, h: NDArray[np.float32], student: StudentOutputs, name: Published) -> NDArray[np.float32]:
        """Corrected scores S̃ of a candidate: S + λ_res·ΔS, for moments centre(S) + λ_res·ΔS; (n, C) float32."""
        base = centre(student.logits) if name is Published.MOMENTS else student.logits
        return np.asarray(base + self.correction(h, student, name), np.float32)

    def logits(self, h: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores of the published candidate for (n, d) embeddings, (n, C) float32."""
        return self.scores(h, self.outputs(h), self.published)

    def candidate_logits(self, h: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Scores of every candidate by name; the student runs once.

        Args:
            h: (n, d) embeddings.

        Returns:
            (n, C) float32 for ``student`` and, where computed, ``anchors`` and ``moments``.
        """
        student = self.outputs(h)
        return {name.value: self.scores(h, student, name) for name in self.candidates}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the model by name: ``student.*``, ``anchors.*`` and ``moments.*``."""
        arrays: dict[str, NDArray[Any]] = {f"student.{name}": array for name, array in self.state.items()}
        if self.anchors is not None:
            arrays["anchors.coefficients"] = self.anchors.coefficients
            arrays["anchors.intercept"] = self.anchors.intercept
            arrays["anchors.mean"] = self.anchors.standardiser.mean
            arrays["anchors.std"] = self.anchors.standardiser.std
        if self.moments is not None:
            arrays["moments.V"] = self.moments.V
            arrays["moments.mean"] = self.moments.standardiser.mean
            arrays["moments.std"] = self.moments.standardiser.std
        return arrays

    def sha256(self) -> str:
        """Hex hash of everything that decides a score."""
        features = self.moments.features if self.moments is not None else ""
        digest = hashlib.sha256(f"{self.published} {self.config.lambda_res} {features}".encode())
        for name, array in sorted(self.tensors().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
