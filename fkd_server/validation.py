"""What an upload must satisfy before it may count; raises, never repairs, never stores."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import Fusion, UpdateCodec
from fkd_common.codecs.statistics import unpack_moments, unpack_statistics
from fkd_common.codecs.student import unpack_update
from fkd_common.config import RunConfig
from fkd_common.errors import InvalidUploadError, TooLargeError
from fkd_common.method.moment_checks import OutputLayer, moment_flaw
from fkd_common.method.moments import num_moment_features, unpack_symmetric
from fkd_common.method.privacy import NoiseScale
from fkd_common.method.refinement import gradient_flaw
from fkd_common.method.student_checks import UPLOAD_ANCHORS, UPLOAD_ROOM, student_flaw
from fkd_common.method.student_layout import TensorSpec, student_layout
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.tensors import Tensors, check_schema, max_blob_bytes
from fkd_server.method.federated_method import FederatedMethod
from fkd_server.method.fkd_rtm import FkdRtm


@dataclass(frozen=True, eq=False)
class Background:
    """What the coordinator knows already and holds a client's tensors against."""

    round: int = 1
    num_samples: int = 0
    """n_k, as claimed with the upload."""
    embedding_block: NDArray[np.float32] | None = None
    """Packed block of standardised embeddings from the client's first moments; None before."""
    output: OutputLayer | None = None
    """Last layer of the student that the moments belong to, where z holds the last hidden layer."""
    diagonal: NDArray[np.float64] | None = None
    """(p,) what the client's Σ z² cannot exceed, while gradients refine the pooled moments."""
    anchors: NDArray[np.float32] | None = None
    """(a, d) embeddings that a student has to answer for; without them it answers for one zero."""
    sites: int = 1
    """Most sites that the upload is a sum over: each may have added noise."""
    start: Tensors | None = None
    """W_t, from which the client's student was trained, where its difference travels."""

    @classmethod
    def of(
        cls,
        method: FederatedMethod,
        round_number: int,
        phase: int,
        client: str,
        num_samples: int,
        *,
        relay: bool = False,
    ) -> Background:
        """What a method knows of a client while a phase is open."""
        if phase == types.PHASE_STUDENT:
            start = None
            if isinstance(method, FkdRtm) and method.config.update_codec is not UpdateCodec.FP32:
                start = method.student()
            anchors = method.anchor_embeddings[:UPLOAD_ANCHORS]
            return cls(round_number, num_samples, anchors=anchors, start=start)
        if isinstance(method, FkdRtm) and phase in REFINE_PHASES:
            return cls(round_number, num_samples, diagonal=method.gradient_bound())
        if phase != types.PHASE_MOMENTS or not isinstance(method, FkdRtm):
            return cls(round_number, num_samples)
        block, sites = method.embedding_block(client), max(1, num_samples) if relay else 1
        return cls(round_number, num_samples, block, method.output_layer(), sites=sites)


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
            num_moment_features(method.config.hidden, method.embedding_dim, method.config.moment_features),
        )

    def schema(
        self, phase: int, *, block_known: bool, round_number: int | None = None
    ) -> Mapping[str, TensorSpec]:
        """Names, shapes and dtypes an upload of this phase must have; without a round, of the largest one."""
        C, p, block = self.num_classes, self._num_features(round_number), self.embedding_dim + 1
        if phase == types.PHASE_STUDENT:
            return student_layout(self.embedding_dim, self.config.hidden, C, self.config.norm)
        if phase == types.PHASE_RESIDUALS:
            return {"residuals": TensorSpec((self.num_anchors, C), "float32")}
        if phase == types.PHASE_MOMENTS:
            length = p * (p + 1) // 2 - (block * (block + 1) // 2 if block_known else 0)
            return {"A": TensorSpec((length,), "float32"), "B": TensorSpec((p, C), "float32")}
        if phase in REFINE_PHASES:
            return {"G": TensorSpec((p, C), "float32")}
        raise InvalidUploadError("this phase takes no tensors", reason="WRONG_PHASE")

    def _num_features(self, round_number: int | None) -> int:
        """p: before the first round the embedding and the constant alone."""
        return self.embedding_dim + 1 if round_number == 0 else self.num_moment_features

    def check_size(self, phase: int, size: int) -> None:
        """Refuse a blob before any of it is held.

        Raises:
            InvalidUploadError: The phase takes no blob.
            TooLargeError: It is larger than any that the phase takes.
        """
        check_blob_size(size, self.schema(phase, block_known=False))

    def unpacked(self, phase: int, packed: Tensors, known: Background) -> Tensors:
        """What a client sent, as it was before the run's codecs; see :meth:`check_tensors` for its values.

        Raises:
            InvalidUploadError: It was packed otherwise.
        """
        block = self.embedding_dim + 1 if known.embedding_block is not None else 0
        codec = self.config.statistics_in_force
        if phase == types.PHASE_MOMENTS:
            return unpack_moments(packed, self._num_features(known.round), self.num_classes, block, codec)
        schema = self.schema(phase, block_known=bool(block), round_number=known.round)
        if phase == types.PHASE_STUDENT:
            return unpack_update(packed, known.start or {}, schema, self.config.update_codec)
        return unpack_statistics(packed, schema, codec)

    def check_tensors(self, phase: int, tensors: Tensors, known: Background) -> None:
        """Names, shapes, dtypes, finiteness, and what the phase's values must satisfy."""
        block_known = known.embedding_block is not None
        check_schema(tensors, self.schema(phase, block_known=block_known, round_number=known.round))
        if phase == types.PHASE_STUDENT:
            self._check_student(tensors, known)
        if phase == types.PHASE_RESIDUALS:
            self._check_residuals(tensors["residuals"])
        if phase == types.PHASE_MOMENTS:
            self._check_moments(tensors, known)
        if phase in REFINE_PHASES and known.diagonal is not None:
            flaw = gradient_flaw(tensors["G"], known.num_samples, known.diagonal)
            if flaw is not None:
                raise InvalidUploadError(
                    f"no {known.num_samples} samples have this: {flaw}", reason="IMPLAUSIBLE"
                )

    def _check_residuals(self, residuals: NDArray[np.float32]) -> None:
        """Trees extrapolate a little beyond their clipped targets; noise goes further."""
        limit = self.config.residual_clip / self.config.residual_temperature * 1.5
        limit += 10.0 * NoiseScale.of(self.config).residuals
        largest = float(np.abs(residuals).max(initial=0.0))
        if largest > limit:
            raise InvalidUploadError(
                f"residual of magnitude {largest:.3g}; clipping allows at most {limit:.3g}",
                reason="OUT_OF_RANGE",
            )
        clip = self.config.residual_l2_clip
        norm = float(np.linalg.norm(residuals.astype(np.float64)))
        if clip is not None and self.config.noise_multiplier == 0 and norm > clip * 1.001:
            raise InvalidUploadError(
                f"residuals of norm {norm:.3g}; residual_l2_clip allows at most {clip:.3g}",
                reason="OUT_OF_RANGE",
            )

    def _check_moments(self, tensors: Tensors, known: Background) -> None:
        block_size, block, values = self.embedding_dim + 1, None, tensors["A"]
        if known.embedding_block is not None:
            block = unpack_symmetric(known.embedding_block, block_size, None)
        A = unpack_symmetric(values, self._num_features(known.round), block)
        flaw = moment_flaw(
            A, tensors["B"], known.num_samples, self.embedding_dim, self.config, known.output, known.sites
        )
        if flaw is not None:
            raise InvalidUploadError(
                f"moments no {known.num_samples} samples have: {flaw}", reason="IMPLAUSIBLE"
            )

    def _max_batches(self, round_number: int) -> int:
        """Most mini-batches a student can have seen: without a limit one liar's counter would overflow everybody's."""
        config = self.config
        epoch = math.ceil(config.max_samples / config.batch_size)
        return max(1, round_number) * (config.local_steps or config.local_epochs * epoch)

    def _check_student(self, tensors: Tensors, known: Background) -> None:
        """Values no training produces, and students whose outputs would turn everybody's into NaN."""
        most = self._max_batches(known.round)
        for name, array in tensors.items():
            if name.endswith("num_batches_tracked") and not 0 <= array <= most:
                raise InvalidUploadError(
                    f"tensor {name!r} counts {array} batches; round {known.round} allows 0 to {most}",
                    reason="OUT_OF_RANGE",
                )
        anchors = np.zeros((1, self.embedding_dim), np.float32) if known.anchors is None else known.anchors
        flaw = student_flaw(tensors, anchors, self.config.norm, UPLOAD_ROOM)
        if flaw is not None:
            raise InvalidUploadError(f"no training produces this student: {flaw}", reason="OUT_OF_RANGE")

    def check_counts(
        self, num_samples: int, reliability: float, class_counts: Collection[int], phase: int
    ) -> None:
        """n_k, r_k and n_{k,c} in range; n_k = 0 is in range, and counts for nothing."""
        if not 0 <= num_samples <= self.config.max_samples:
            raise InvalidUploadError(
                f"n_k = {num_samples}; expected 0 to {self.config.max_samples} (max_samples)",
                reason="OUT_OF_RANGE",
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

    def check_votes(
        self, correct: Mapping[str, int], num_validation: int, candidates: list[str], num_samples: int | None
    ) -> None:
        """One count per candidate, none above the number of validation samples, and no more of those than fit n_k.

        The split holds out f = `val_fraction` of each class, rounded, at least one: with n_k left for training, no
        more than f·n_k/(1-f) and one of each class. `num_samples` is n_k as far as the client has said it.
        """
        if sorted(correct) != sorted(candidates):
            raise InvalidUploadError(
                f"votes for {sorted(correct)}; expected {candidates}", reason="WRONG_NAMES"
            )
        if any(count > num_validation for count in correct.values()):
            raise InvalidUploadError(
                f"{max(correct.values())} correct of {num_validation} validation samples",
                reason="OUT_OF_RANGE",
            )
        held_out = self.config.val_fraction / (1.0 - self.config.val_fraction)
        largest = self.config.max_samples if num_samples is None else num_samples
        if num_validation > held_out * largest + self.num_classes:
            raise InvalidUploadError(
                f"{num_validation} validation samples; n_k = {largest} and val_fraction = {self.config.val_fraction} "
                f"allow {int(held_out * largest) + self.num_classes}",
                reason="OUT_OF_RANGE",
            )


def check_blob_size(size: int, schema: Mapping[str, TensorSpec]) -> None:
    """Refuse a blob that is larger than its schema allows, or empty.

    Raises:
        TooLargeError: It is.
    """
    limit = max_blob_bytes(schema)
    if not 0 < size <= limit:
        raise TooLargeError(f"upload of {size} bytes; this phase takes at most {limit}")
