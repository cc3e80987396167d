"""The server half of FKD-RTM: what each phase's task holds, and how its uploads become artifacts.

Zhang et al., "FKD-RTM", Computers, Materials & Continua 88(2), 2026. Reads uploads one by one, in sorted
client order, so that memory does not grow with the number of clients and the result not with arrival order.
The arithmetic itself is in ``fkd_common.method``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.config import Correction, Fusion, RunConfig
from fkd_common.method.aggregation import ResidualFusion, WeightedAverage, client_weights, drop_unreliable
from fkd_common.method.moments import num_moment_features, solve, unpack_symmetric
from fkd_common.method.residuals import Standardiser, fit_anchor_correction
from fkd_common.method.student_layout import initial_student
from fkd_common.model_file import ModelHeader, ModelParts
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, decode, encode
from fkd_server.federated_method import (
    BelowQuorum,
    Json,
    NoUpload,
    Participants,
    PhasePlan,
    TaskContent,
    TensorUpload,
    UploadContent,
    VoteUpload,
)


class FkdRtm:
    """State of the method between phases: references to artifacts, never the tensors themselves."""

    def __init__(
        self,
        config: RunConfig,
        classes: tuple[str, ...],
        anchor_embeddings: NDArray[np.float32],
        extractor_sha256: str,
        blobs: BlobStore,
        uploads: BlobStore,
    ) -> None:
        """Start from the untrained student.

        Args:
            config: The run configuration.
            classes: Class names in global order.
            anchor_embeddings: (m, d) embeddings of the anchors.
            extractor_sha256: Hash of the extractor they come from.
            blobs: Where artifacts are kept and served from.
            uploads: Where validated uploads wait; a store of its own, because an upload may equal an artifact
                byte for byte, and uploads are removed when they have been folded.
        """
        self.config = config
        self.classes = classes
        self.num_classes = len(classes)
        self.extractor_sha256 = extractor_sha256
        self.anchor_embeddings = anchor_embeddings
        self.embedding_dim = int(anchor_embeddings.shape[1])
        self.num_moment_features = num_moment_features(
            config.hidden, self.embedding_dim, config.moment_features
        )
        self.published = "student"
        self.best_moments = ""
        self._blobs = blobs
        self._uploads = uploads
        start = initial_student(config.seed, self.embedding_dim, config.hidden, self.num_classes, config.norm)
        self.student: Artifact = blobs.put(encode(start))
        self.fused: Artifact | None = None
        self.anchor_lambda = 0.0
        self.moment_solutions: Artifact | None = None
        self._retired: set[str] = set()
        # Per client, the packed block of its standardised embeddings, which never changes during a run.
        self._embedding_blocks: dict[str, str] = {}

    # -- what a round consists of -----------------------------------------------------------------

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        """Stage 1, then in correction rounds stage 2 and the vote, then personalisation when due."""
        plans: list[PhasePlan] = []
        if round_number > 0:
            plans.append(PhasePlan(types.PHASE_STUDENT, Participants.COHORT, BelowQuorum.FOLLOW_POLICY))
        if self.config.is_correction_round(round_number):
            if Correction.ANCHORS in self.config.correction:
                plans.append(PhasePlan(types.PHASE_RESIDUALS, Participants.COHORT, BelowQuorum.SKIP))
            if Correction.MOMENTS in self.config.correction:
                # Everyone, not the cohort: a class held by an unsampled client would be missing from the sums.
                plans.append(PhasePlan(types.PHASE_MOMENTS, Participants.EVERYONE, BelowQuorum.SKIP))
            plans.append(PhasePlan(types.PHASE_VOTES, Participants.EVERYONE, BelowQuorum.SKIP))
        if self.config.is_personal_round(round_number):
            plans.append(
                PhasePlan(types.PHASE_PERSONAL, Participants.EVERYONE, BelowQuorum.SKIP, needs_quorum=False)
            )
        return tuple(plans)

    def candidates(self) -> list[str]:
        """Global models the vote compares, simplest first: ties go to the simpler one."""
        names = ["student"]
        if self.fused is not None:
            names.append("anchors")
        if self.moment_solutions is not None:
            names += [f"moments.{i}" for i in range(len(self.config.lambda_grid))]
        return names

    def task(self, phase: int, client: str) -> TaskContent:
        """A task's inputs: the student, and from the vote on the corrections too."""
        if phase in (types.PHASE_STUDENT, types.PHASE_RESIDUALS):
            return TaskContent({"student": self.student})
        if phase == types.PHASE_MOMENTS:
            return TaskContent(
                {"student": self.student}, embedding_block_known=client in self._embedding_blocks
            )
        return TaskContent(
            self.artifacts(),
            self.anchor_lambda,
            self.config.lambda_grid,
            published=self.published,
            best_moments=self.best_moments,
        )

    def artifacts(self) -> dict[str, Artifact]:
        """The current global model's parts."""
        parts = {
            "student": self.student,
            "fused_residuals": self.fused,
            "moment_correction": self.moment_solutions,
        }
        return {name: artifact for name, artifact in parts.items() if artifact is not None}

    # -- closing phases ---------------------------------------------------------------------------

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        """Fold a phase's uploads into the global model."""
        tensors = {name: upload for name, upload in uploads.items() if isinstance(upload, TensorUpload)}
        if phase == types.PHASE_STUDENT:
            record = self._average_students(tensors)
        elif phase == types.PHASE_RESIDUALS:
            record = self._fuse_residuals(tensors)
        elif phase == types.PHASE_MOMENTS:
            record = self._solve_moments(tensors)
        elif phase == types.PHASE_VOTES:
            record = self._count_votes({n: u for n, u in uploads.items() if isinstance(u, VoteUpload)})
        else:
            assert all(isinstance(upload, NoUpload) for upload in uploads.values())
            return {}
        self.discard(uploads)
        return record

    def discard(self, uploads: Mapping[str, UploadContent]) -> None:
        """Remove the blobs of uploads that are done with."""
        for upload in uploads.values():
            if isinstance(upload, TensorUpload):
                self._uploads.remove(upload.artifact.sha256)

    def _average_students(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Eqs. 14-15."""
        sizes = np.array([upload.num_samples for upload in uploads.values()], dtype=np.float64)
        reliabilities = np.array([upload.reliability for upload in uploads.values()])
        kept = drop_unreliable(reliabilities, self.config.drop_below)
        names = [name for name, keep in zip(uploads, kept, strict=True) if keep]
        weights = client_weights(sizes[kept], reliabilities[kept], self.config.tau_r)
        average = WeightedAverage()
        for name, weight in zip(names, weights, strict=True):
            average.add(self._read(uploads[name]), float(weight))
        replaced = {artifact.sha256 for artifact in self.artifacts().values()}
        self.student = self._blobs.put(encode(average.result()))
        # Corrections belong to the student they were computed for.
        self.fused = self.moment_solutions = None
        self.published, self.best_moments = "student", ""
        self._retire(replaced)
        return {
            "weights": dict(zip(names, weights.tolist(), strict=True)),
            "reliability": {name: upload.reliability for name, upload in uploads.items()},
            "samples": {name: upload.num_samples for name, upload in uploads.items()},
            "dropped": sorted(set(uploads) - set(names)),
            "student": self.student.sha256,
        }

    def _fuse_residuals(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Eq. 12, and the ridge strength of Eq. 13 by leave-one-out on the anchors."""
        fusion = ResidualFusion()
        for upload in uploads.values():
            by_class = self.config.fusion is Fusion.CLASS_AWARE
            weight = (
                np.array(upload.class_counts, dtype=np.float64) if by_class else float(upload.num_samples)
            )
            fusion.add(self._read(upload)["residuals"], weight)
        fused = fusion.result()
        fit = fit_anchor_correction(self.anchor_embeddings, fused, self.config.anchor_lambda_grid)
        self.fused, self.anchor_lambda = self._blobs.put(encode({"fused_residuals": fused})), fit.strength
        return {"anchor_lambda": fit.strength, "loo_r2": fit.loo_r2}

    def _solve_moments(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Sum the clients' moments and solve the pooled ridge problem for every strength."""
        p, block_size = self.num_moment_features, self.embedding_dim + 1
        block_length = block_size * (block_size + 1) // 2
        rest = np.zeros(p * (p + 1) // 2 - block_length)
        block, B = np.zeros(block_length), np.zeros((p, self.num_classes))
        for client, upload in uploads.items():
            tensors = self._read(upload)
            rest += tensors["A"][: rest.size]
            block += self._embedding_block(client, tensors["A"][rest.size :])
            B += tensors["B"]
        A = unpack_symmetric(rest, p, unpack_symmetric(block, block_size, None))
        del rest, block
        solutions = {
            f"V.{i}": solve(A, B, lam).astype(np.float32) for i, lam in enumerate(self.config.lambda_grid)
        }
        self.moment_solutions = self._blobs.put(encode(solutions))
        self.best_moments = "moments.0"
        return {"pooled_samples": sum(upload.num_samples for upload in uploads.values()), "features": p}

    def _embedding_block(self, client: str, sent: NDArray[np.float32]) -> NDArray[np.float32]:
        """The packed block of standardised embeddings: sent once, kept for the run."""
        if client not in self._embedding_blocks:
            self._embedding_blocks[client] = self._blobs.put(encode({"block": sent})).sha256
        return decode(self._blobs.read(self._embedding_blocks[client]))["block"]

    def _count_votes(self, uploads: Mapping[str, VoteUpload]) -> dict[str, Json]:
        """Counts add up to the exact pooled validation accuracy of every candidate."""
        total = sum(upload.num_validation for upload in uploads.values())
        counts = {
            name: sum(upload.correct[name] for upload in uploads.values()) for name in self.candidates()
        }
        self.published = max(counts, key=counts.__getitem__)
        moments = [name for name in counts if name.startswith("moments.")]
        self.best_moments = max(moments, key=counts.__getitem__, default="")
        return {
            "validation_samples": total,
            "validation_accuracy": {name: count / total if total else 0.0 for name, count in counts.items()},
            "published": self.published,
        }

    # -- the result -------------------------------------------------------------------------------

    def model(self) -> ModelParts:
        """The current global model, with the moment correction the vote likes best."""
        anchors, solution, index = None, None, 0
        if self.fused is not None:
            fused = decode(self._blobs.read(self.fused.sha256))["fused_residuals"]
            anchors = fit_anchor_correction(self.anchor_embeddings, fused, self.anchor_lambda)
        if self.moment_solutions is not None:
            index = int((self.best_moments or "moments.0").removeprefix("moments."))
            solution = decode(self._blobs.read(self.moment_solutions.sha256))[f"V.{index}"]
        header = ModelHeader(
            classes=self.classes,
            published=self.published.split(".")[0],
            config=self.config,
            moment_lambda=self.config.lambda_grid[index] if solution is not None else 0.0,
            anchor_lambda=self.anchor_lambda if anchors is not None else 0.0,
            anchor_loo_r2=anchors.loo_r2 if anchors is not None else 0.0,
            extractor_sha256=self.extractor_sha256,
        )
        student = decode(self._blobs.read(self.student.sha256))
        return ModelParts(header, student, Standardiser.of(self.anchor_embeddings), anchors, solution)

    def _read(self, upload: TensorUpload) -> Tensors:
        return decode(self._uploads.read(upload.artifact.sha256))

    def _retire(self, replaced: set[str]) -> None:
        """Drop artifacts two generations old: a slow client may still be reading the last one."""
        in_use = {artifact.sha256 for artifact in self.artifacts().values()}
        for sha256 in self._retired - replaced - in_use:
            self._blobs.remove(sha256)
        self._retired = replaced
