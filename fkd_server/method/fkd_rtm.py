"""The server half of FKD-RTM: what each phase's task holds, and how its uploads become artifacts.

Zhang et al., "FKD-RTM", Computers, Materials & Continua 88(2), 2026. Reads uploads one by one, in sorted
client order, so that memory does not grow with the number of clients and the result not with arrival order.
The arithmetic itself is in ``fkd_common.method``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.choices import Correction, MomentFeatures
from fkd_common.codecs.statistics import pack_statistics, unpack_statistics
from fkd_common.codecs.student import pack_model, unpack_model
from fkd_common.config import RunConfig
from fkd_common.method.moment_checks import OutputLayer
from fkd_common.method.moments import make_definite, num_moment_features, solve
from fkd_common.method.privacy import nearest_positive_semidefinite
from fkd_common.method.refinement import REFINED, padded
from fkd_common.method.residuals import Standardiser, fit_anchor_correction
from fkd_common.method.student_checks import student_flaw
from fkd_common.method.student_layout import TensorSpec, initial_student, student_layout
from fkd_common.method.vote import elected
from fkd_common.model_file import ModelHeader, ModelParts
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.tensors import Tensors, decode
from fkd_server.method.combine import (
    combine_residuals,
    combine_students,
    moment_factors,
    read_upload,
    sum_votes,
    unfit_student,
)
from fkd_server.method.federated_method import (
    BelowQuorum,
    Json,
    Participants,
    PhasePlan,
    TaskContent,
    TensorUpload,
    UploadContent,
    VoteUpload,
)
from fkd_server.method.moment_sums import MomentShape, MomentSums, sum_moments
from fkd_server.method.personal_scores import personal_scores
from fkd_server.method.refinement import AscentState, PooledMoments, Refinement
from fkd_server.method.sum_state import SumState
from fkd_server.method.unpacked import UnpackedOnce


@dataclass(frozen=True)
class GlobalState:
    """What the method knows between phases: references to artifacts, never the tensors themselves."""

    student: Artifact
    fused: Artifact | None = None
    anchor_lambda: float = 0.0
    moment_solutions: Artifact | None = None
    refined: Artifact | None = None
    """What logistic regression made of them."""
    ascent: AscentState | None = None
    """The refinement at work."""
    trained: bool = False
    """Whether the student has learnt anything: before, moments are those of the embedding alone."""
    published: str = "student"
    """The candidate the last vote chose."""
    best_moments: str = ""
    """The moment candidate with the most votes."""
    embedding_blocks: Mapping[str, Artifact] = field(default_factory=dict)
    """Per client, the packed block of its standardised embeddings, which never changes during a run."""
    retired: tuple[Artifact, ...] = ()
    """What the last average replaced: a slow client may still be reading it."""
    secure: SumState | None = None
    """The secure sum at work."""

    def parts(self) -> dict[str, Artifact]:
        """The current global model's artifacts."""
        parts = {
            "student": self.student,
            "fused_residuals": self.fused,
            "moment_correction": self.moment_solutions,
            "refined_moments": self.refined,
        }
        return {name: artifact for name, artifact in parts.items() if artifact is not None}


_STATE = TypeAdapter(GlobalState)


class FkdRtm:
    """Turns uploads into the global model; all it remembers is a :class:`GlobalState`."""

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
        self._blobs = blobs
        self._uploads = uploads
        self._unpacked = UnpackedOnce(blobs, self._as_received)
        self._packed: tuple[Tensors, Mapping[str, NDArray[Any]]] = ({}, {})
        self._refinement = Refinement(config, blobs)
        start = initial_student(config.seed, self.embedding_dim, config.hidden, self.num_classes, config.norm)
        self.layout = student_layout(self.embedding_dim, config.hidden, self.num_classes, config.norm)
        self.state = GlobalState(blobs.put_tensors(pack_model(start, config.model_codec)))

    @property
    def moment_features(self) -> MomentFeatures:
        """Features of the moments now."""
        return self.config.moment_features_in(int(self.state.trained))

    @property
    def num_moment_features(self) -> int:
        """p now."""
        return num_moment_features(self.config.hidden, self.embedding_dim, self.moment_features)

    # -- what a round consists of -----------------------------------------------------------------

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        """Stage 1, then in correction rounds stage 2 and the vote, then personalisation when due."""
        plans: list[PhasePlan] = []
        if round_number > 0:
            plans.append(PhasePlan(types.PHASE_STUDENT, Participants.COHORT, BelowQuorum.FOLLOW_POLICY))
        if self.config.is_correction_round(round_number):
            if Correction.ANCHORS in self.config.correction and round_number > 0:
                plans.append(PhasePlan(types.PHASE_RESIDUALS, Participants.COHORT, BelowQuorum.SKIP))
            if Correction.MOMENTS in self.config.correction:
                # Everyone, not the cohort: a class held by an unsampled client would be missing from the sums.
                plans.append(PhasePlan(types.PHASE_MOMENTS, Participants.EVERYONE, BelowQuorum.SKIP))
                plans += [
                    PhasePlan(phase, Participants.CHOSEN, BelowQuorum.SKIP)
                    for phase in REFINE_PHASES[: self.config.refinements]
                ]
            plans.append(PhasePlan(types.PHASE_VOTES, Participants.EVERYONE, BelowQuorum.SKIP))
        if self.config.is_personal_round(round_number):
            plans.append(
                PhasePlan(types.PHASE_PERSONAL, Participants.EVERYONE, BelowQuorum.SKIP, needs_quorum=False)
            )
        return tuple(plans)

    def candidates(self) -> list[str]:
        """Global models the vote compares, simplest first: ties go to the simpler one."""
        names = ["student"]
        if self.state.fused is not None:
            names.append("anchors")
        if self.state.moment_solutions is not None:
            names += [f"moments.{i}" for i in range(len(self.config.lambda_grid))]
        if self.state.refined is not None:
            names.append(REFINED)
        return names

    def chosen(self, phase: int) -> tuple[str, ...]:
        """See :meth:`FederatedMethod.chosen`: gradients are asked of those whose moments are pooled."""
        if phase in REFINE_PHASES and self.state.ascent is not None:
            return self.state.ascent.pooled.members
        return ()

    def needed(self, phase: int) -> int:
        """See :meth:`FederatedMethod.needed`: without secure sums the quorum alone decides."""
        return 0

    def secure_schema(self, phase: int, client: str) -> Mapping[str, TensorSpec] | None:
        """Names, shapes and dtypes of a client's answer to a step of a secure sum; None if the phase is none."""
        return None

    def task(self, phase: int, client: str) -> TaskContent:
        """A task's inputs: the student, and from the vote on the corrections too."""
        if phase in (types.PHASE_STUDENT, types.PHASE_RESIDUALS):
            return TaskContent({"student": self.state.student})
        if phase == types.PHASE_MOMENTS:
            known = client in self.state.embedding_blocks
            return TaskContent(self._student(), embedding_block_known=known)
        if phase in REFINE_PHASES and self.state.ascent is not None:
            return TaskContent({**self._student(), "solution": self.state.ascent.asked})
        parts = {name: part for name, part in self.artifacts().items() if name != "student"}
        return TaskContent(
            {**self._student(), **parts},
            self.state.anchor_lambda,
            self.config.lambda_grid,
            published=self.state.published,
            best_moments=self.state.best_moments,
        )

    def _student(self) -> dict[str, Artifact]:
        """The student as a task's input: while it is untrained, everybody can make it from the seed."""
        return {"student": self.state.student} if self.state.trained else {}

    def artifacts(self) -> dict[str, Artifact]:
        """The current global model's parts."""
        return self.state.parts()

    def embedding_block(self, client: str) -> NDArray[np.float32] | None:
        """The packed block of standardised embeddings that the client sent with its first moments; None before."""
        known = self.state.embedding_blocks.get(client)
        return None if known is None else decode(self._blobs.read(known.sha256))["block"]

    def output_layer(self) -> OutputLayer | None:
        """The current student's last layer, where moments contain what it reads: uploads are held against it."""
        if self.moment_features is MomentFeatures.EMBEDDING:
            return None
        student = self.student()
        return OutputLayer(student["output.weight"], student["output.bias"])

    def student(self) -> Tensors:
        """The current student, as clients unpack it; not to be changed, since every coded upload needs it."""
        return self._unpacked.of(self.state.student)

    def _as_received(self, packed: Tensors) -> Tensors:
        """A student as clients unpack it."""
        return unpack_model(packed, self.layout, self.config.model_codec)

    # -- closing phases ---------------------------------------------------------------------------

    def can_count(self, phase: int, upload: UploadContent) -> bool:
        """See :meth:`FederatedMethod.can_count`."""
        if isinstance(upload, VoteUpload):
            return upload.num_validation > 0
        if not isinstance(upload, TensorUpload):
            return True
        if phase == types.PHASE_STUDENT:
            return unfit_student(upload, self.config) is None
        return upload.num_samples > 0

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        """Fold a phase's uploads into the global model."""
        tensors = {name: upload for name, upload in uploads.items() if isinstance(upload, TensorUpload)}
        if phase == types.PHASE_STUDENT:
            return self._average_students(tensors)
        if phase == types.PHASE_RESIDUALS:
            return self._fuse_residuals(tensors)
        if phase == types.PHASE_MOMENTS:
            return self._solve_moments(tensors)
        if phase in REFINE_PHASES:
            return self._refine(tensors)
        if phase == types.PHASE_VOTES:
            return self._count_votes({n: u for n, u in uploads.items() if isinstance(u, VoteUpload)})
        return personal_scores({n: u for n, u in uploads.items() if isinstance(u, VoteUpload)})

    def sent_by_a_site(self) -> str:
        """See :meth:`FederatedMethod.sent_by_a_site`."""
        votes = ", predictions on the anchors, moments and votes" if self.config.correction else ""
        return f"its student's weights{votes}"

    def publishes(self, phases: Collection[str]) -> bool:
        """See :meth:`FederatedMethod.publishes`: what a vote has decided."""
        return "votes" in phases

    def snapshot(self) -> dict[str, Json]:
        """See :meth:`FederatedMethod.snapshot`."""
        values: dict[str, Json] = _STATE.dump_python(self.state, mode="json")
        return values

    def restore(self, snapshot: Mapping[str, Json]) -> None:
        """See :meth:`FederatedMethod.restore`."""
        state = _STATE.validate_python(snapshot)
        # Artifacts that were on their way out may be gone when an older snapshot is restored.
        retired = tuple(artifact for artifact in state.retired if self._blobs.has(artifact.sha256))
        self.state = replace(state, retired=retired)

    def in_use(self) -> set[str]:
        """See :meth:`FederatedMethod.in_use`."""
        state = self.state
        secure = state.secure.artifacts() if state.secure is not None else []
        ascent = state.ascent.artifacts() if state.ascent is not None else ()
        used = (*state.parts().values(), *state.embedding_blocks.values(), *state.retired, *secure, *ascent)
        return {artifact.sha256 for artifact in used}

    def _average_students(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Eqs. 14-15, or the robust rule of the run."""
        combined = combine_students(uploads, self.student(), self.config, self._uploads, self.flaw_of_average)
        self.replace_student(combined.tensors)
        return {
            **combined.record(),
            "reliability": {name: upload.reliability for name, upload in uploads.items()},
            "samples": {name: upload.num_samples for name, upload in uploads.items()},
            "student": self.state.student.sha256,
        }

    def flaw_of_average(self, tensors: Tensors) -> str | None:
        """What would keep others from computing with an average, as they will unpack it, or None."""
        received = self._as_received(dict(self._as_sent(tensors)))
        return student_flaw(received, self.anchor_embeddings, self.config.norm)

    def replace_student(self, tensors: Tensors) -> None:
        """W_{t+1}: corrections belong to the student they were computed for, and go with it."""
        self.state = GlobalState(
            self._blobs.put_tensors(self._as_sent(tensors)),
            embedding_blocks=self.state.embedding_blocks,
            retired=tuple(self.state.parts().values()),
            trained=True,
        )
        self._packed = ({}, {})

    def _as_sent(self, tensors: Tensors) -> Mapping[str, NDArray[Any]]:
        """An average, packed: once, though it is checked first and kept then."""
        if self._packed[0] is not tensors:
            self._packed = tensors, pack_model(tensors, self.config.model_codec)
        return self._packed[1]

    def _fuse_residuals(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Eq. 12 or the robust rule of the run, and the ridge strength of Eq. 13 by leave-one-out on the anchors."""
        combined = combine_residuals(uploads, self.config, self._uploads)
        fused = combined.tensors["fused_residuals"]
        fit = fit_anchor_correction(self.anchor_embeddings, fused, self.config.anchor_lambda_grid)
        artifact = self._put_statistics({"fused_residuals": fused})
        self.state = replace(self.state, fused=artifact, anchor_lambda=fit.strength)
        return {**combined.record(), "anchor_lambda": fit.strength, "loo_r2": fit.loo_r2}

    def _solve_moments(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Sum the clients' moments and solve the pooled ridge problem for every strength."""
        sums = self.sum_moments(uploads, self.config)
        self.state = replace(self.state, embedding_blocks=sums.blocks)
        A, B, record = sums.matrix(), sums.B, sums.record(uploads)
        pooled = self._refinement.pooled(A, sums.factors) if self.config.refinements else None
        del sums
        self.solve_pooled(A, B)
        if pooled is not None:
            self._begin_ascent(pooled)
        return record

    def sum_moments(self, uploads: Mapping[str, TensorUpload], config: RunConfig) -> MomentSums:
        """Σ A_k and Σ B_k of the uploads that may count; see :func:`sum_moments`."""
        shape = MomentShape(self.num_moment_features, self.embedding_dim + 1, self.num_classes)
        stores, output = (self._blobs, self._uploads), self._output_that_shows_labels()
        return sum_moments(uploads, shape, self.state.embedding_blocks, stores, config, output)

    def _output_that_shows_labels(self) -> OutputLayer | None:
        """The student's last layer, if a client's moments tell how many samples of each class it has."""
        config = self.config
        hidden = (
            config.noise_multiplier > 0 or config.feature_clip is not None or config.target_clip is not None
        )
        return None if hidden else self.output_layer()

    def solve_pooled(self, A: NDArray[np.float64], B: NDArray[np.float64]) -> None:
        """The pooled ridge problem, solved for every strength.

        Args:
            A: (p, p) Σ A_k; writeable.
            B: (p, C) Σ B_k.

        Raises:
            ValueError: They have no finite solution.
        """
        if self.config.noise_multiplier > 0:
            A = nearest_positive_semidefinite(A)
        else:
            make_definite(A, min(self.config.lambda_grid))
        solutions = {
            f"V.{i}": solve(A, B, lam).astype(np.float32) for i, lam in enumerate(self.config.lambda_grid)
        }
        if not all(np.isfinite(solution).all() for solution in solutions.values()):
            raise ValueError("the pooled moments have no finite solution")
        artifact = self._put_statistics(solutions)
        self.state = replace(self.state, moment_solutions=artifact, best_moments="moments.0")

    def _begin_ascent(self, pooled: PooledMoments) -> None:
        """Start from the ridge solution whose strength is nearest to the penalty of the refinement."""
        assert self.state.moment_solutions is not None
        nearest = self._refinement.nearest(self.config.lambda_grid)
        start = self._solutions(self.state.moment_solutions)[f"V.{nearest}"]
        self.state = replace(self.state, ascent=self._refinement.begin(pooled, start))

    def gradient_bound(self) -> NDArray[np.float64] | None:
        """(p,) what no member's Σ z² exceeds while the pooled moments are refined: gradients are held against it."""
        ascent = self.state.ascent
        return None if ascent is None else self._refinement.bound(ascent)

    def _refine(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """One step of the refinement."""
        ascent = self.state.ascent
        assert ascent is not None
        G, samples, record = self.sum_gradients(uploads, self.config)
        moved, refined, change = self._refinement.step(ascent, G, samples)
        self.state = replace(self.state, ascent=moved, refined=refined)
        return {**record, "change": change}

    def sum_gradients(
        self, uploads: Mapping[str, TensorUpload], config: RunConfig
    ) -> tuple[NDArray[np.float64], float, dict[str, Json]]:
        """(p, C) Σ G_k of the uploads that may count, Σ n_k of those, and what the record says of them."""
        factors = moment_factors(uploads, config)
        G, samples = np.zeros((self.num_moment_features, self.num_classes)), 0.0
        for client, factor in factors.items():
            G += factor * read_upload(self._uploads, uploads[client])["G"].astype(np.float64)
            samples += factor * uploads[client].num_samples
        dropped = sorted(set(uploads) - set(factors))
        return G, samples, {"gradient_samples": round(samples), "dropped": dropped}

    def _count_votes(self, uploads: Mapping[str, VoteUpload]) -> dict[str, Json]:
        """Publish what the votes elect; the refined moments, which the likelihood chose, need not have the most."""
        counts, record = sum_votes(uploads, self.candidates(), self.config)
        samples = sum(upload.num_validation for upload in uploads.values())
        published = elected(counts, samples, REFINED)
        moments = {name: count for name, count in counts.items() if name.startswith("moments.")}
        best = elected(moments, samples, REFINED) if moments else ""
        # What the steps needed is not needed any more.
        self.state = replace(self.state, published=published, best_moments=best, ascent=None)
        return {**record, "published": published}

    # -- the result -------------------------------------------------------------------------------

    def model(self) -> ModelParts:
        """The current global model, with the moment correction the vote likes best."""
        anchors, solution, strength = None, None, 0.0
        state = self.state
        if state.fused is not None:
            fused = self._statistics(state.fused, {"fused_residuals": len(self.anchor_embeddings)})
            anchors = fit_anchor_correction(
                self.anchor_embeddings, fused["fused_residuals"], state.anchor_lambda
            )
        if state.moment_solutions is not None:
            solution, strength = self._best_solution(state.moment_solutions)
        header = ModelHeader(
            classes=self.classes,
            published=state.published.split(".")[0],
            config=self.config,
            moment_lambda=strength,
            anchor_lambda=state.anchor_lambda if anchors is not None else 0.0,
            anchor_loo_r2=anchors.loo_r2 if anchors is not None else 0.0,
            extractor_sha256=self.extractor_sha256,
        )
        return ModelParts(header, self.student(), Standardiser.of(self.anchor_embeddings), anchors, solution)

    def _best_solution(self, solutions: Artifact) -> tuple[NDArray[np.float32], float]:
        """V of the moment correction the vote likes best, on all of z, and its strength λ or μ."""
        state, config = self.state, self.config
        p = num_moment_features(config.hidden, self.embedding_dim, config.moment_features)
        if state.best_moments == REFINED and state.refined is not None:
            refined = self._statistics(state.refined, {"V": self.num_moment_features})
            V, strength = refined["V"], config.refine_l2
        else:
            index = int((state.best_moments or "moments.0").removeprefix("moments."))
            V, strength = self._solutions(solutions)[f"V.{index}"], config.lambda_grid[index]
        return padded(V, p), strength

    def _put_statistics(self, tensors: Tensors) -> Artifact:
        return self._blobs.put_tensors(pack_statistics(tensors, self.config.statistics_in_force))

    def _statistics(self, artifact: Artifact, rows: Mapping[str, int]) -> Tensors:
        """Matrices of so many rows and C columns, as clients unpack them."""
        layout = {name: TensorSpec((count, self.num_classes), "float32") for name, count in rows.items()}
        packed = decode(self._blobs.read(artifact.sha256))
        return unpack_statistics(packed, layout, self.config.statistics_in_force)

    def _solutions(self, artifact: Artifact) -> Tensors:
        """ "V.0", "V.1", ... each (p, C)."""
        p = self.num_moment_features
        return self._statistics(artifact, {f"V.{i}": p for i in range(len(self.config.lambda_grid))})


def method_for(config: RunConfig) -> type[FkdRtm]:
    """The server half that a configuration asks for."""
    if not config.secure_aggregation:
        return FkdRtm
    from fkd_server.method.secure_fkd_rtm import SecureFkdRtm  # its cryptography costs megabytes

    return SecureFkdRtm
