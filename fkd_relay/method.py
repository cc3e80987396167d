"""FKD-RTM at a relay: tasks come from the upstream coordinator, and what a phase gathers goes there as one sum.

Everything the upstream coordinator makes of uploads is an average weighted by n_k·max(r_k, τ_r) or n_k, or a sum
(Eqs. 12, 14 and 15, the pooled moments, gradients and votes). Averages of averages with the sums of the weights, and
sums of sums, are what it would have made of the single uploads, up to the rounding of float32 and of the run's codecs.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fkd_common.artifacts import Artifact
from fkd_common.choices import Fusion
from fkd_common.codecs.statistics import pack_moments, pack_statistics
from fkd_common.codecs.student import pack_update, rounding
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, InvalidUploadError
from fkd_common.method.student_checks import UPLOAD_ANCHORS, UPLOAD_ROOM, student_flaw
from fkd_common.model_file import ModelParts
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.tensors import Tensors, check_schema, decode
from fkd_relay.answer import Answer
from fkd_server.method.combine import (
    Combined,
    combine_residuals,
    combine_students,
    sum_votes,
)
from fkd_server.method.federated_method import (
    BelowQuorum,
    Json,
    PhasePlan,
    TaskContent,
    TensorUpload,
    UploadContent,
    VoteUpload,
)
from fkd_server.method.fkd_rtm import FkdRtm, GlobalState
from fkd_server.method.personal_scores import PERSONAL_CANDIDATE, personal_scores
from fkd_server.run_state import PhaseKey

CORRECTIONS = {
    "fused_residuals": "fused",
    "moment_correction": "moment_solutions",
    "refined_moments": "refined",
}
"""Inputs of a task that are parts of the global model, and where the state keeps them."""


@dataclass(frozen=True)
class RelayState:
    """What a relay knows besides the global model."""

    key: PhaseKey | None = None
    """The upstream coordinator's last task."""
    solution: Artifact | None = None
    """Where that task asks for gradients."""
    answer: Answer | None = None
    """To the last task that has one."""
    members: tuple[str, ...] = ()
    """Whose moments are in the last sum: gradients are asked of them."""
    squares: Artifact | None = None
    """"squares", (p,) Σ z² of that sum: no member's exceeds it."""
    chosen: bool = False
    """Whether the upstream coordinator has said which candidate it publishes."""

    def artifacts(self) -> list[Artifact]:
        """What it refers to."""
        blob = self.answer.blob if self.answer is not None else None
        return [artifact for artifact in (self.solution, self.squares, blob) if artifact is not None]


_STATE = TypeAdapter(RelayState)


class RelayFkdRtm(FkdRtm):
    """Folds a relay's clients; the global model in its state is the upstream coordinator's."""

    own: RunConfig
    """The run's configuration with the relay's own min_cohort, and no cap on shares of a sum that is a part."""
    name: str
    """The relay's, in the upstream run: seeds the rounding of its uploads."""
    relay: RelayState = RelayState()

    def to_fold_as(self, name: str, min_cohort: int) -> RelayFkdRtm:
        """Say how this relay folds; returns itself.

        Args:
            name: The relay's, in the upstream run.
            min_cohort: Fewest clients that anything sent upstream is made of.
        """
        changes = {"min_cohort": min_cohort, "min_clients": max(min_cohort, self.config.min_clients)}
        self.own = RunConfig(**{**self.config.model_dump(), **changes, "max_weight_share": 1.0})
        self.name = name
        return self

    # -- the upstream coordinator's task ----------------------------------------------------------

    def take(self, task: pb.Task, blobs: Mapping[str, bytes]) -> None:
        """Make a task of the upstream coordinator's this relay's own.

        Args:
            task: It.
            blobs: Its inputs, verified.

        Raises:
            DataError: They do not fit the run; nothing has changed.
        """
        key = PhaseKey(task.key.round, task.key.phase)
        before, relay = self.state, self.relay
        try:
            inputs = {name: self._blobs.put(blob) for name, blob in blobs.items()}
            self._take_student(key, inputs.get("student"))
            if key.phase in (types.PHASE_VOTES, types.PHASE_PERSONAL):
                self._take_corrections(task, inputs)
            chosen = key.phase == types.PHASE_PERSONAL or (
                relay.chosen and before.student == self.state.student
            )
            self.relay = replace(relay, key=key, solution=inputs.get("solution"), chosen=chosen)
        except (DataError, InvalidUploadError) as error:
            self.state = before
            raise DataError(f"the upstream coordinator's task cannot be used: {error}") from error
        except OSError:
            self.state = before
            raise

    def _take_student(self, key: PhaseKey, student: Artifact | None) -> None:
        if student is None:
            return
        known = self.state
        if student != known.student:
            # Corrections belong to the student they were computed for, and go with it.
            self.state = GlobalState(
                student,
                embedding_blocks=known.embedding_blocks,
                retired=tuple(known.parts().values()),
                trained=True,
            )
            check_schema(self.student(), self.layout)
        elif key.phase != types.PHASE_STUDENT:
            self.state = replace(known, trained=True)

    def _take_corrections(self, task: pb.Task, inputs: Mapping[str, Artifact]) -> None:
        parts: dict[str, Any] = {place: inputs.get(name) for name, place in CORRECTIONS.items()}
        self.state = replace(
            self.state,
            **parts,
            anchor_lambda=task.anchor_lambda,
            published=task.published or "student",
            best_moments=task.best_moments,
        )
        named = {self.state.published, *([task.best_moments] if task.best_moments else [])}
        if task.key.phase == types.PHASE_PERSONAL and not named <= set(self.candidates()):
            raise DataError(f"it publishes {sorted(named)}; the candidates are {self.candidates()}")

    def end(self) -> None:
        """There will be no task any more: a relay that was away for the last ones does not know the result."""
        key = self.relay.key
        if key is None or key.round < self.config.rounds:
            self.relay = replace(self.relay, chosen=False)

    def answer_for(self, key: PhaseKey) -> Answer | None:
        """What this relay's clients have answered to a task; None before, and where there is no result."""
        answer = self.relay.answer
        return answer if answer is not None and answer.key == key else None

    # -- for this relay's clients -----------------------------------------------------------------

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        """See :meth:`FederatedMethod.phases`: a phase without a result here is the upstream coordinator's to judge."""
        return tuple(replace(plan, below_quorum=BelowQuorum.SKIP) for plan in super().phases(round_number))

    def chosen(self, phase: int) -> tuple[str, ...]:
        """See :meth:`FederatedMethod.chosen`."""
        return self.relay.members if phase in REFINE_PHASES else ()

    def task(self, phase: int, client: str) -> TaskContent:
        """See :meth:`FederatedMethod.task`."""
        if phase in REFINE_PHASES and self.relay.solution is not None:
            return TaskContent({**self._student(), "solution": self.relay.solution})
        return super().task(phase, client)

    def gradient_bound(self) -> NDArray[np.float64] | None:
        """(p,) what no member's Σ z² exceeds."""
        if self.relay.squares is None:
            return None
        squares: NDArray[np.float64] = decode(self._blobs.read(self.relay.squares.sha256))["squares"]
        return squares

    # -- folding ----------------------------------------------------------------------------------

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        """Fold a phase's uploads into the answer to the upstream coordinator's task."""
        tensors = {name: upload for name, upload in uploads.items() if isinstance(upload, TensorUpload)}
        votes = {name: upload for name, upload in uploads.items() if isinstance(upload, VoteUpload)}
        if phase == types.PHASE_STUDENT:
            return self._students(tensors)
        if phase == types.PHASE_RESIDUALS:
            return self._residuals(tensors)
        if phase == types.PHASE_MOMENTS:
            return self._moments(tensors)
        if phase in REFINE_PHASES:
            return self._gradients(tensors)
        if phase == types.PHASE_VOTES:
            return self._votes(votes)
        return self._personal(votes)

    def _answer(self, **fields: Any) -> None:
        assert self.relay.key is not None
        self.relay = replace(self.relay, answer=Answer(self.relay.key, **fields))

    def _rounding(self) -> np.random.Generator:
        key = self.relay.key
        assert key is not None
        return rounding([self.config.seed, zlib.crc32(self.name.encode())], key.round, key.phase)

    def _students(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Eq. 14 here; with Σ n_k and the mean of max(r_k, τ_r), the weight upstream is the sum of these weights."""
        combined = combine_students(uploads, self.student(), self.own, self._uploads, self._flaw)
        counted = [uploads[name] for name in combined.weights]
        floors = np.array([max(upload.reliability, self.config.tau_r) for upload in counted])
        sizes = np.array([upload.num_samples for upload in counted], dtype=np.float64)
        # Rounding must not bring a mean below what every one of its parts is at least.
        reliability = np.clip(sizes @ floors / sizes.sum(), floors.min(), floors.max())
        packed = pack_update(combined.tensors, self.student(), self.config.update_codec, self._rounding())
        self._answer(
            blob=self._blobs.put_tensors(packed),
            num_samples=int(sizes.sum()),
            reliability=float(reliability),
        )
        return {
            **combined.record(),
            "reliability": {name: upload.reliability for name, upload in uploads.items()},
            "samples": {name: upload.num_samples for name, upload in uploads.items()},
        }

    def _flaw(self, tensors: Tensors) -> str | None:
        """What the upstream coordinator would refuse an average for, or None."""
        return student_flaw(tensors, self.anchor_embeddings[:UPLOAD_ANCHORS], self.config.norm, UPLOAD_ROOM)

    def _residuals(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Eq. 12 over this relay's clients, with Σ n_k, or Σ n_{k,c} of the classes that enough of them have."""
        combined = combine_residuals(uploads, self.own, self._uploads)
        counts = self._class_counts(uploads, combined)
        samples = sum(uploads[name].num_samples for name in combined.weights)
        packed = pack_statistics(
            {"residuals": combined.tensors["fused_residuals"]}, self.config.statistics_in_force
        )
        self._answer(
            blob=self._blobs.put_tensors(packed),
            num_samples=sum(counts) if self.config.fusion is Fusion.CLASS_AWARE else samples,
            class_counts=counts,
        )
        return combined.record()

    def _class_counts(self, uploads: Mapping[str, TensorUpload], combined: Combined) -> tuple[int, ...]:
        """(C,) Σ n_{k,c}; 0 where fewer than min_cohort clients have the class, as their column is."""
        if self.config.fusion is not Fusion.CLASS_AWARE:
            return ()
        counts = np.array([uploads[name].class_counts for name in combined.weights], dtype=np.int64)
        enough = np.count_nonzero(counts, axis=0) >= self.own.min_cohort
        return tuple(np.where(enough, counts.sum(axis=0), 0).tolist())

    def _moments(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Σ A_k and Σ B_k: all of A, since the clients in it may be others than the last time."""
        sums = self.sum_moments(uploads, self.own)
        self.state = replace(self.state, embedding_blocks=sums.blocks)
        A = sums.packed().astype(np.float32)
        codec = self.config.statistics_in_force
        packed = pack_moments(A, sums.B.astype(np.float32), np.empty(0), codec, self._rounding())
        squares = None
        if self.config.refinements:
            squares = self._blobs.put_tensors({"squares": sums.matrix().diagonal()})
        self.relay = replace(self.relay, members=tuple(sums.factors), squares=squares)
        self._answer(blob=self._blobs.put_tensors(packed), num_samples=sums.samples)
        return sums.record(uploads)

    def _gradients(self, uploads: Mapping[str, TensorUpload]) -> dict[str, Json]:
        """Σ G_k."""
        G, samples, record = self.sum_gradients(uploads, self.own)
        packed = pack_statistics({"G": G.astype(np.float32)}, self.config.statistics_in_force)
        self._answer(blob=self._blobs.put_tensors(packed), num_samples=round(samples))
        return record

    def _votes(self, uploads: Mapping[str, VoteUpload]) -> dict[str, Json]:
        """Counts add up."""
        counts, record = sum_votes(uploads, self.candidates(), self.own)
        correct = {name: round(count) for name, count in counts.items()}
        self._answer(correct=correct, num_validation=record["validation_samples"])
        return record

    def _personal(self, uploads: Mapping[str, VoteUpload]) -> dict[str, Json]:
        """Scores add up; those of fewer than min_cohort clients stay here."""
        scored = {name: upload for name, upload in uploads.items() if upload.num_validation > 0}
        if len(scored) < self.own.min_cohort:
            self._answer()
        else:
            correct = sum(upload.correct[PERSONAL_CANDIDATE] for upload in scored.values())
            total = sum(upload.num_validation for upload in scored.values())
            self._answer(correct={PERSONAL_CANDIDATE: correct}, num_validation=total)
        return personal_scores(scored)

    # -- the result -------------------------------------------------------------------------------

    def publishes(self, phases: Collection[str]) -> bool:
        """See :meth:`FederatedMethod.publishes`: what the vote has chosen is told with the personal models' task."""
        return "personal" in phases

    def model(self) -> ModelParts | None:  # type: ignore[override]  # None: not known here
        """The upstream run's global model; None until it is said which candidate that is."""
        return super().model() if self.relay.chosen else None

    # -- memory -----------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Json]:
        """See :meth:`FederatedMethod.snapshot`."""
        return {**super().snapshot(), "relay": _STATE.dump_python(self.relay, mode="json")}

    def restore(self, snapshot: Mapping[str, Json]) -> None:
        """See :meth:`FederatedMethod.restore`."""
        self.relay = _STATE.validate_python(snapshot["relay"])
        super().restore({name: value for name, value in snapshot.items() if name != "relay"})

    def in_use(self) -> set[str]:
        """See :meth:`FederatedMethod.in_use`."""
        return super().in_use() | {artifact.sha256 for artifact in self.relay.artifacts()}
