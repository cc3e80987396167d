"""What a relay sends its upstream coordinator for a phase: sums and averages, packed; computes none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fkd_client.session import Session
from fkd_client.transfer import TensorMessage, Transfer
from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_server.method.personal_scores import PERSONAL_CANDIDATE
from fkd_server.run_state import PhaseKey


@dataclass(frozen=True)
class Answer:
    """The upload of one phase, durable before it is sent: sent again, it is the same bytes."""

    key: PhaseKey
    blob: Artifact | None = None
    """Tensors as the run's codecs pack them; None where the phase has none."""
    num_samples: int = 0
    """Σ n_k of the clients in it."""
    reliability: float = 1.0
    """Σ n_k·max(r_k, τ_r) / Σ n_k."""
    class_counts: tuple[int, ...] = ()
    """Σ n_{k,c}, with class-aware fusion."""
    correct: Mapping[str, int] = field(default_factory=dict)
    """Of a vote, or of personal models."""
    num_validation: int = 0

    def send(self, key: types.TaskKey, session: Session, transfer: Transfer, blobs: BlobStore) -> None:
        """Submit it.

        Args:
            key: As the task carried it.
            session: To the upstream coordinator.
            transfer: Of that session.
            blobs: Where the blob is.

        Raises:
            FkdError: The coordinator refused it, or does not answer.
        """
        if self.blob is None:
            name, request = self._without_tensors(key)
            session.call(name, request, pb.SubmitResponse, key=key)
            return
        name, request = self._with_tensors(key)
        transfer.submit(TensorMessage(name, request, blobs.tensors(self.blob.sha256)))

    def _with_tensors(self, key: types.TaskKey) -> tuple[str, Any]:
        if self.key.phase == types.PHASE_STUDENT:
            return "SubmitStudent", pb.SubmitStudentRequest(
                key=key, num_samples=self.num_samples, reliability=self.reliability
            )
        if self.key.phase == types.PHASE_RESIDUALS:
            return "SubmitResiduals", pb.SubmitResidualsRequest(
                key=key, num_samples=self.num_samples, class_counts=self.class_counts
            )
        if self.key.phase in REFINE_PHASES:
            return "SubmitGradient", pb.SubmitGradientRequest(key=key, num_samples=self.num_samples)
        return "SubmitMoments", pb.SubmitMomentsRequest(key=key, num_samples=self.num_samples)

    def _without_tensors(self, key: types.TaskKey) -> tuple[str, Any]:
        if self.key.phase == types.PHASE_VOTES:
            votes = [pb.Vote(candidate=name, correct=count) for name, count in self.correct.items()]
            return "SubmitVotes", pb.SubmitVotesRequest(
                key=key, votes=votes, num_validation=self.num_validation
            )
        request = pb.FinishTaskRequest(key=key)
        if self.num_validation:
            request.personal_correct = self.correct[PERSONAL_CANDIDATE]
            request.num_validation = self.num_validation
        return "FinishTask", request
