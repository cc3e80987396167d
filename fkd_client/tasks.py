"""A task becomes an upload: fetches inputs, calls the pipeline, submits; no arithmetic, no polling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_client.global_model import GlobalModel
from fkd_client.personal import PersonalModel
from fkd_client.pipeline import Pipeline
from fkd_client.progress import Progress
from fkd_client.session import Session
from fkd_client.transfer import TensorMessage, Transfer
from fkd_common.config import Fusion
from fkd_common.errors import DataError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, decode


class TaskRunner:
    """Carries out a client's tasks."""

    def __init__(self, session: Session, transfer: Transfer, pipeline: Pipeline, progress: Progress) -> None:
        self.personal: PersonalModel | None = None
        """The latest personal model."""
        self.personal_round = 0
        """The round it belongs to."""
        self._session = session
        self._transfer = transfer
        self._pipeline = pipeline
        self._progress = progress
        self._handlers: dict[int, Callable[[pb.Task], None]] = {
            types.PHASE_STUDENT: self._student,
            types.PHASE_RESIDUALS: self._residuals,
            types.PHASE_MOMENTS: self._moments,
            types.PHASE_VOTES: self._votes,
            types.PHASE_PERSONAL: self._personal,
        }

    def run(self, task: pb.Task) -> None:
        """Do one task and submit its result.

        Raises:
            FkdError: It could not be done, or its result was refused.
        """
        handler = self._handlers.get(task.key.phase)
        if handler is None:
            raise DataError(
                f"the coordinator asks for an unknown phase {task.key.phase}: install the same fkd release"
            )
        handler(task)

    def _student(self, task: pb.Task) -> None:
        state = self._pipeline.student(self._input(task, "student"), task.key.round, self._progress)
        request = pb.SubmitStudentRequest(
            key=task.key,
            num_samples=self._pipeline.num_samples,
            reliability=self._pipeline.teacher.reliability,
        )
        self._transfer.submit(TensorMessage("SubmitStudent", request, state))

    def _residuals(self, task: pb.Task) -> None:
        predicted = self._pipeline.residuals(self._input(task, "student"), self._progress)
        request = pb.SubmitResidualsRequest(key=task.key, num_samples=self._pipeline.num_samples)
        if self._pipeline.config.fusion is Fusion.CLASS_AWARE:
            request.class_counts.extend(self._pipeline.class_counts.tolist())
        self._transfer.submit(TensorMessage("SubmitResiduals", request, {"residuals": predicted}))

    def _moments(self, task: pb.Task) -> None:
        self._progress(0.0, "summing moments")
        sums = self._pipeline.moments(self._input(task, "student"), block_known=task.embedding_block_known)
        request = pb.SubmitMomentsRequest(key=task.key, num_samples=self._pipeline.num_samples)
        self._transfer.submit(TensorMessage("SubmitMoments", request, sums))

    def _votes(self, task: pb.Task) -> None:
        self._progress(0.0, "comparing candidates")
        counts = self._pipeline.votes(self._models(task))
        votes = [pb.Vote(candidate=name, correct=count) for name, count in counts.items()]
        request = pb.SubmitVotesRequest(key=task.key, votes=votes, num_validation=len(self._pipeline.y_val))
        self._session.call("SubmitVotes", request, pb.SubmitResponse, key=task.key)

    def _personal(self, task: pb.Task) -> None:
        base = self._pipeline.global_model(self._models(task), task.published, task.best_moments)
        self.personal = self._pipeline.personalise(base, self._progress)
        self.personal_round = task.key.round
        self._session.call("FinishTask", pb.FinishTaskRequest(key=task.key), pb.SubmitResponse, key=task.key)

    # -- inputs -----------------------------------------------------------------------------------

    def _models(self, task: pb.Task) -> dict[str, GlobalModel]:
        fused = self._optional_input(task, "fused_residuals").get("fused_residuals")
        solved = self._optional_input(task, "moment_correction")
        solutions: list[NDArray[np.float32]] = [solved[f"V.{i}"] for i in range(len(solved))]
        return self._pipeline.candidate_models(
            self._input(task, "student"), fused, task.anchor_lambda, solutions
        )

    def _input(self, task: pb.Task, name: str) -> dict[str, NDArray[Any]]:
        tensors = self._optional_input(task, name)
        if not tensors:
            raise DataError(f"the coordinator's task lacks its input {name!r}")
        return tensors

    def _optional_input(self, task: pb.Task, name: str) -> Tensors:
        reference = next((item for item in task.inputs if item.name == name), None)
        return decode(self._transfer.fetch(reference, task.key)) if reference is not None else {}
