"""A task becomes an upload: fetches inputs, calls the pipeline, submits; no arithmetic, no polling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fkd_client.global_model import GlobalModel
from fkd_client.personal import PersonalModel
from fkd_client.pipeline import Pipeline
from fkd_client.progress import Progress
from fkd_client.secure_sum import OwnSums, student_summand
from fkd_client.session import Session
from fkd_client.task_inputs import (
    check_choice,
    received_fused,
    received_solution,
    received_solutions,
    received_student,
)
from fkd_client.transfer import TensorMessage, Transfer
from fkd_common.choices import Fusion, MomentFeatures
from fkd_common.codecs.statistics import pack_moments, pack_statistics
from fkd_common.codecs.student import pack_update, rounding
from fkd_common.errors import DataError, FkdError
from fkd_common.method.aggregation import drop_unreliable
from fkd_common.method.moments import num_moment_features
from fkd_common.method.refinement import solutions_by_candidate
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.secure_sum.sharing import ThresholdRule
from fkd_common.secure_sum.steps import SECURE_STEPS, SecureStep, Step, Summed
from fkd_common.tensors import Tensors, decode
from fkd_common.tracing import part_span


class TaskRunner:
    """Carries out a client's tasks."""

    def __init__(self, session: Session, transfer: Transfer, pipeline: Pipeline, progress: Progress) -> None:
        self.personal: PersonalModel | None = None
        """The latest personal model."""
        self.personal_round = 0
        """The round it belongs to."""
        self.keep: Callable[[PersonalModel], None] = lambda model: None
        """Called with every personal model as soon as it is made."""
        self._session = session
        self._transfer = transfer
        self._pipeline = pipeline
        self._progress = progress
        config = pipeline.config
        self._sums = OwnSums(session.name, ThresholdRule(config.secure_threshold, config.min_cohort))
        self._handlers: dict[int, Callable[[pb.Task], None]] = {
            types.PHASE_STUDENT: self._student,
            types.PHASE_RESIDUALS: self._residuals,
            types.PHASE_MOMENTS: self._moments,
            **dict.fromkeys(REFINE_PHASES, self._gradient),
            types.PHASE_VOTES: self._votes,
            types.PHASE_PERSONAL: self._personal,
        }

    def run(self, task: pb.Task) -> None:
        """Do one task and submit its result.

        Raises:
            FkdError: It could not be done, or its result was refused.
        """
        if self._pipeline.config.secure_aggregation and task.key.phase in SECURE_STEPS:
            self._secure_step(task, SECURE_STEPS[task.key.phase])
            return
        handler = self._handlers.get(task.key.phase)
        if handler is None:
            raise DataError(
                f"the coordinator asks for an unknown phase {task.key.phase}: install the same fkd release"
            )
        try:
            handler(task)
        except torch.OutOfMemoryError as error:
            raise FkdError(
                "the device ran out of memory in this task: free it, or use --device cpu",
                reason="OUT_OF_MEMORY",
            ) from error

    def _secure_step(self, task: pb.Task, place: SecureStep) -> None:
        """One step of a secure sum; see ``fkd_common.secure_sum``."""
        where = (task.key.round, place.summed)
        if place.summed is Summed.STUDENT and not self._weight() > 0:
            # A summand of nothing would be counted among those that hide the others.
            raise FkdError(
                f"this site's weight is 0 (reliability {self._pipeline.teacher.reliability:.3g}, drop_below "
                f"{self._pipeline.config.drop_below}): it takes no part in the sum",
                reason="NO_WEIGHT",
            )
        part = self._sums.begin(*where) if place.step is Step.KEYS else self._sums.going_on(*where)
        if place.step is Step.KEYS:
            tensors = part.keys()
        elif place.step is Step.SHARES:
            tensors = part.shares(self._input_once(task, "roster"))
        elif place.step is Step.MASKED:
            tensors = part.masked(self._summand(task, place.summed), self._input_once(task, "inbox"))
        else:
            tensors = part.revealed(task.delivered)
        self._transfer.submit(TensorMessage("SubmitSecure", pb.SubmitSecureRequest(key=task.key), tensors))
        if place.step is Step.UNMASK:
            self._sums.end()

    def _summand(self, task: pb.Task, summed: Summed) -> Tensors:
        """What this client adds to a secure sum."""
        start = self._received_student(task)
        if summed is Summed.MOMENTS:
            self._progress(0.0, "summing moments")
            return dict(self._pipeline.moments(start, block_known=False, which=self._features(task)))
        trained = self._pipeline.student(start, task.key.round, self._progress)
        return student_summand(trained, self._weight())

    def _weight(self) -> float:
        """The numerator of Eq. 15: n_k · max(r_k, τ_r), or 0 for a site that is to be left out."""
        reliability, config = self._pipeline.teacher.reliability, self._pipeline.config
        kept = bool(drop_unreliable(np.array([reliability]), config.drop_below)[0])
        return self._pipeline.num_samples * max(reliability, config.tau_r) if kept else 0.0

    def _student(self, task: pb.Task) -> None:
        start = self._received_student(task)
        with part_span("train"):
            state = self._pipeline.student(start, task.key.round, self._progress)
        request = pb.SubmitStudentRequest(
            key=task.key,
            num_samples=self._pipeline.num_samples,
            reliability=self._pipeline.teacher.reliability,
        )
        codec = self._pipeline.config.update_codec
        packed = pack_update(state, start, codec, self._rounding(task))
        self._transfer.submit(TensorMessage("SubmitStudent", request, packed))

    def _rounding(self, task: pb.Task) -> np.random.Generator:
        return rounding([self._pipeline.seed], task.key.round, task.key.phase)

    def _residuals(self, task: pb.Task) -> None:
        student = self._received_student(task)
        with part_span("fit residuals"):
            predicted = self._pipeline.residuals(student, self._progress)
        request = pb.SubmitResidualsRequest(key=task.key, num_samples=self._pipeline.num_samples)
        if self._pipeline.config.fusion is Fusion.CLASS_AWARE:
            request.class_counts.extend(self._pipeline.class_counts.tolist())
        self._submit_statistics("SubmitResiduals", request, {"residuals": predicted})

    def _moments(self, task: pb.Task) -> None:
        self._progress(0.0, "summing moments")
        sums = self._pipeline.moments(
            self._received_student(task),
            block_known=task.embedding_block_known,
            which=self._features(task),
        )
        request = pb.SubmitMomentsRequest(key=task.key, num_samples=self._pipeline.num_samples)
        codec = self._pipeline.config.statistics_in_force
        left_out = self._pipeline.embedding_squares() if task.embedding_block_known else np.empty(0)
        packed = pack_moments(sums["A"], sums["B"], left_out, codec, self._rounding(task))
        self._transfer.submit(TensorMessage("SubmitMoments", request, packed))

    def _features(self, task: pb.Task) -> MomentFeatures:
        return self._pipeline.config.moment_features_in(task.key.round)

    def _gradient(self, task: pb.Task) -> None:
        self._progress(0.0, "refining the moment correction")
        which = self._features(task)
        solution = received_solution(self._input_once(task, "solution"), which, self._pipeline)
        gradient = self._pipeline.gradient(self._received_student(task), solution["V"], which)
        request = pb.SubmitGradientRequest(key=task.key, num_samples=self._pipeline.num_samples)
        self._submit_statistics("SubmitGradient", request, gradient)

    def _submit_statistics(self, method: str, request: Any, tensors: Tensors) -> None:
        packed = pack_statistics(tensors, self._pipeline.config.statistics_in_force)
        self._transfer.submit(TensorMessage(method, request, packed))

    def _votes(self, task: pb.Task) -> None:
        self._progress(0.0, "comparing candidates")
        counts = self._pipeline.votes(self._models(task))
        votes = [pb.Vote(candidate=name, correct=count) for name, count in counts.items()]
        request = pb.SubmitVotesRequest(key=task.key, votes=votes, num_validation=len(self._pipeline.y_val))
        self._session.call("SubmitVotes", request, pb.SubmitResponse, key=task.key)

    def _personal(self, task: pb.Task) -> None:
        models = self._models(task)
        check_choice(task, models)
        base = self._pipeline.global_model(models, task.published, task.best_moments)
        self.personal = self._pipeline.personalise(base, self._progress)
        self.personal_round = task.key.round
        self.keep(self.personal)
        request = pb.FinishTaskRequest(key=task.key)
        held_out = len(self._pipeline.y_val)
        if self._pipeline.config.report_personal and held_out:
            request.personal_correct = round(self.personal.val_accuracy[self.personal.chosen] * held_out)
            request.num_validation = held_out
        self._session.call("FinishTask", request, pb.SubmitResponse, key=task.key)

    # -- inputs -----------------------------------------------------------------------------------

    def _models(self, task: pb.Task) -> dict[str, GlobalModel]:
        pipeline, which, config = self._pipeline, self._features(task), self._pipeline.config
        fused, solved, refined = (
            self._optional_input(task, name)
            for name in ("fused_residuals", "moment_correction", "refined_moments")
        )
        if fused:
            fused = received_fused(fused, task.anchor_lambda, pipeline)
        if solved:
            solved = received_solutions(solved, which, pipeline)
        if refined:
            refined = received_solution(refined, which, pipeline)
        p = num_moment_features(
            config.hidden, pipeline.site.anchor_embeddings.shape[1], config.moment_features
        )
        return pipeline.candidate_models(
            self._received_student(task),
            fused.get("fused_residuals"),
            task.anchor_lambda,
            solutions_by_candidate(solved, refined, p),
        )

    def _received_student(self, task: pb.Task) -> Tensors:
        if task.key.round == 0:
            return self._pipeline.untrained_student()
        return received_student(self._input(task, "student"), self._pipeline)

    def _input(self, task: pb.Task, name: str) -> dict[str, NDArray[Any]]:
        tensors = self._optional_input(task, name)
        if not tensors:
            raise DataError(f"the coordinator's task lacks its input {name!r}")
        return tensors

    def _input_once(self, task: pb.Task, name: str) -> Tensors:
        """An input of this task alone; empty where nobody else takes part."""
        reference = next((item for item in task.inputs if item.name == name), None)
        if reference is None:
            raise DataError(f"the coordinator's task lacks its input {name!r}")
        return decode(self._transfer.fetch_once(reference, task.key))

    def _optional_input(self, task: pb.Task, name: str) -> Tensors:
        reference = next((item for item in task.inputs if item.name == name), None)
        return decode(self._transfer.fetch(reference, task.key)) if reference is not None else {}
