"""What an upload must satisfy before it may count; raises, never repairs, never stores."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from fkd_common.config import Fusion, RunConfig
from fkd_common.errors import InvalidUploadError, TooLargeError
from fkd_common.method.student_layout import TensorSpec, student_layout
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, check_schema, max_blob_bytes
from fkd_server.fkd_rtm import FkdRtm

MAX_SAMPLES = 10**9
MAX_WEIGHT = 1e6
"""Largest magnitude of a student's weight or statistic: far above any trained one."""


@dataclass(frozen=True)
class UploadRules:
    """The schemas of a run's uploads."""

    config: RunConfig
    num_classes: int
    num_anchors: int
    embedding_dim: int
    num_moment_features: int

    @classmethod
    def of(cls, method: FkdRtm) -> UploadRules:
        """Rules that follow from a run's configuration, classes and anchors."""
        return cls(
            method.config,
            method.num_classes,
            int(method.anchor_embeddings.shape[0]),
            method.embedding_dim,
            method.num_moment_features,
        )

    def schema(self, phase: int, *, block_known: bool) -> Mapping[str, TensorSpec]:
        """Names, shapes and dtypes an upload of this phase must have."""
        C, p, block = self.num_classes, self.num_moment_features, self.embedding_dim + 1
        if phase == types.PHASE_STUDENT:
            return student_layout(self.embedding_dim, self.config.hidden, C, self.config.norm)
        if phase == types.PHASE_RESIDUALS:
            return {"residuals": TensorSpec((self.num_anchors, C), "float32")}
        if phase == types.PHASE_MOMENTS:
            length = p * (p + 1) // 2 - (block * (block + 1) // 2 if block_known else 0)
            return {"A": TensorSpec((length,), "float32"), "B": TensorSpec((p, C), "float32")}
        raise InvalidUploadError("this phase takes no tensors", reason="WRONG_PHASE")

    def max_bytes(self, phase: int) -> int:
        """Largest blob a client may send in this phase.

        Raises:
            InvalidUploadError: The phase takes no blob.
        """
        return max_blob_bytes(self.schema(phase, block_known=False))

    def check_size(self, phase: int, size: int) -> None:
        """Refuse a blob before any of it is held."""
        limit = self.max_bytes(phase)
        if not 0 < size <= limit:
            raise TooLargeError(f"upload of {size} bytes; this phase takes at most {limit}")

    def check_tensors(self, phase: int, tensors: Tensors, *, block_known: bool) -> None:
        """Names, shapes, dtypes, finiteness, and what the phase's values must satisfy."""
        check_schema(tensors, self.schema(phase, block_known=block_known))
        if phase == types.PHASE_STUDENT:
            self._check_student(tensors)
        if phase == types.PHASE_RESIDUALS:
            limit = self.config.residual_clip / self.config.residual_temperature * 1.5
            largest = float(np.abs(tensors["residuals"]).max(initial=0.0))
            if largest > limit:
                raise InvalidUploadError(
                    f"residual of magnitude {largest:.3g}; clipping allows at most {limit:.3g}",
                    reason="OUT_OF_RANGE",
                )

    def _check_student(self, tensors: Tensors) -> None:
        """Values no training produces: they would turn everybody's outputs into NaN."""
        for name, array in tensors.items():
            largest = float(np.abs(array).max(initial=0))
            if largest > MAX_WEIGHT and not name.endswith("num_batches_tracked"):
                raise InvalidUploadError(
                    f"tensor {name!r} has a value of magnitude {largest:.3g}; at most {MAX_WEIGHT:.0e} is accepted",
                    reason="OUT_OF_RANGE",
                )
            if name.endswith(("running_var", "num_batches_tracked")) and array.min(initial=0) < 0:
                raise InvalidUploadError(f"tensor {name!r} has a negative value", reason="OUT_OF_RANGE")

    def check_counts(
        self, num_samples: int, reliability: float, class_counts: Collection[int], phase: int
    ) -> None:
        """n_k, r_k and n_{k,c} in range."""
        if not 0 < num_samples <= MAX_SAMPLES:
            raise InvalidUploadError(
                f"n_k = {num_samples}; expected 1 to {MAX_SAMPLES}", reason="OUT_OF_RANGE"
            )
        if not (math.isfinite(reliability) and 0.0 <= reliability <= 1.0):
            raise InvalidUploadError(f"r_k = {reliability}; expected 0 to 1", reason="OUT_OF_RANGE")
        by_class = phase == types.PHASE_RESIDUALS and self.config.fusion is Fusion.CLASS_AWARE
        if len(class_counts) != (self.num_classes if by_class else 0):
            raise InvalidUploadError(
                f"{len(class_counts)} class counts; expected {self.num_classes if by_class else 'none'}",
                reason="WRONG_SHAPE",
            )
        if by_class and (sum(class_counts) != num_samples):
            raise InvalidUploadError(
                f"class counts add up to {sum(class_counts)}, n_k is {num_samples}", reason="OUT_OF_RANGE"
            )

    def check_votes(self, correct: Mapping[str, int], num_validation: int, candidates: list[str]) -> None:
        """One count per candidate, none above the number of validation samples."""
        if sorted(correct) != sorted(candidates):
            raise InvalidUploadError(
                f"votes for {sorted(correct)}; expected {candidates}", reason="WRONG_NAMES"
            )
        if num_validation > MAX_SAMPLES or any(count > num_validation for count in correct.values()):
            raise InvalidUploadError(
                f"{max(correct.values())} correct of {num_validation} validation samples",
                reason="OUT_OF_RANGE",
            )
