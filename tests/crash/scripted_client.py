"""A client process without torch: real session, real transfers, and uploads that follow from its name and the task.

Run as ``python -m tests.crash.scripted_client NAME ADDRESS``; ends when the run is over.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_client.session import Session, TaskClosedError
from fkd_client.transfer import TensorMessage, Transfer
from fkd_client.transport import GrpcTransport
from fkd_common.artifacts import BlobStore
from fkd_common.config import RunConfig
from fkd_common.errors import NotFoundError, StaleError
from fkd_common.logs import LogFormat, configure_logs
from fkd_common.method.moments import accumulate, centre, moment_targets, pack_symmetric
from fkd_common.method.refinement import gradient, likelihood_residual
from fkd_common.method.student_layout import student_layout
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, decode

CHUNK_BYTES = 1024
"""So small that even these uploads travel in several chunks."""

SAMPLES = 10


def rng_of(name: str, round_number: int, phase: int) -> np.random.Generator:
    """What a client's upload follows from."""
    return np.random.default_rng([zlib.crc32(name.encode()), round_number, phase])


def student_of(name: str, round_number: int, config: RunConfig, d: int, num_classes: int) -> Tensors:
    """The student a client uploads in a round."""
    layout = student_layout(d, config.hidden, num_classes, config.norm)
    rng = rng_of(name, round_number, types.PHASE_STUDENT)
    return {key: rng.normal(size=spec.shape).astype(spec.dtype) for key, spec in layout.items()}


def samples_of(name: str) -> int:
    """n_k, different for every name."""
    return SAMPLES + zlib.crc32(name.encode()) % 7


class ScriptedClient:
    """Answers every task at once."""

    def __init__(self, name: str, address: str, cache: Path) -> None:
        self.name = name
        self.session = Session(GrpcTransport(address), name, patience_s=60.0)
        run = self.session.register()
        self.run = replace(run, max_chunk_bytes=CHUNK_BYTES)
        self.transfer = Transfer(self.session, self.run, BlobStore(cache))
        anchors = decode(
            self.transfer.fetch_kept(
                run.artifacts["anchors"], types.TaskKey(run_id=run.run_id, phase=types.PHASE_SETUP)
            )
        )
        self.anchors = anchors["embeddings"]
        self.inputs: dict[str, bytes] = {}
        """What the task at work came with, by name."""
        self.answers: dict[int, Callable[[pb.Task], Any]] = {
            types.PHASE_STUDENT: self._student,
            types.PHASE_RESIDUALS: self._residuals,
            types.PHASE_MOMENTS: self._moments,
            types.PHASE_REFINE_1: self._gradient,
            types.PHASE_VOTES: self._votes,
            types.PHASE_PERSONAL: self._personal,
        }

    def take_part(self) -> pb.Finished:
        """Until the run is over."""
        while True:
            answer = self.session.next_task()
            if answer.HasField("finished"):
                return answer.finished
            if answer.HasField("wait"):
                time.sleep(answer.wait.retry_after_s)
                continue
            self.session.begin(answer.task.key)
            try:
                self.inputs = {
                    reference.name: self.transfer.fetch(reference, answer.task.key)
                    for reference in answer.task.inputs
                }
                self.answers[answer.task.key.phase](answer.task)
            except (TaskClosedError, StaleError, NotFoundError):
                pass
            finally:
                self.session.end()

    def _student(self, task: pb.Task) -> None:
        state = student_of(
            self.name, task.key.round, self.run.config, self.anchors.shape[1], len(self.run.classes)
        )
        request = pb.SubmitStudentRequest(key=task.key, num_samples=samples_of(self.name), reliability=0.5)
        self.transfer.submit(TensorMessage("SubmitStudent", request, state))

    def _residuals(self, task: pb.Task) -> None:
        rng = rng_of(self.name, task.key.round, task.key.phase)
        shape = (len(self.anchors), len(self.run.classes))
        request = pb.SubmitResidualsRequest(key=task.key, num_samples=samples_of(self.name))
        residuals = rng.uniform(-1, 1, size=shape).astype(np.float32)
        self.transfer.submit(TensorMessage("SubmitResiduals", request, {"residuals": residuals}))

    def _moments(self, task: pb.Task) -> None:
        """Moments of embeddings alone; the student's outputs are taken to be 0."""
        z, labels = self._samples()
        n, num_classes = len(z), len(self.run.classes)
        targets = moment_targets(labels, None, num_classes, self.run.config.kappa, 0.0)
        sums = accumulate(z, targets - centre(np.zeros((n, num_classes))))
        block = z.shape[1] if task.embedding_block_known else 0
        tensors = {"A": pack_symmetric(sums.A, block).astype(np.float32), "B": sums.B.astype(np.float32)}
        request = pb.SubmitMomentsRequest(key=task.key, num_samples=n)
        self.transfer.submit(TensorMessage("SubmitMoments", request, tensors))

    def _gradient(self, task: pb.Task) -> None:
        z, labels = self._samples()
        V = decode(self.inputs["solution"])["V"]
        residual = likelihood_residual(np.zeros((len(z), V.shape[1])), z @ V, labels)
        request = pb.SubmitGradientRequest(key=task.key, num_samples=len(z))
        self.transfer.submit(TensorMessage("SubmitGradient", request, {"G": gradient(z, residual)}))

    def _samples(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(n, d + 1) embeddings with a constant, and (n,) labels."""
        n, rng = samples_of(self.name), rng_of(self.name, 0, types.PHASE_MOMENTS)
        z = np.hstack([rng.normal(size=(n, self.anchors.shape[1])), np.ones((n, 1))])
        return z.astype(np.float32), np.arange(n) % len(self.run.classes)

    def _votes(self, task: pb.Task) -> None:
        names = ["student", "anchors", *(f"moments.{i}" for i in range(len(task.moment_lambdas)))]
        names += ["moments.refined"]
        votes = [pb.Vote(candidate=name, correct=int(name == "anchors")) for name in names]
        request = pb.SubmitVotesRequest(key=task.key, votes=votes, num_validation=1)
        self.session.call("SubmitVotes", request, pb.SubmitResponse, key=task.key)

    def _personal(self, task: pb.Task) -> None:
        self.session.call("FinishTask", pb.FinishTaskRequest(key=task.key), pb.SubmitResponse, key=task.key)


def main(name: str, address: str) -> int:
    """One client, from registration to the end of the run."""
    configure_logs(LogFormat.JSON)
    with tempfile.TemporaryDirectory() as cache:
        client = ScriptedClient(name, address, Path(cache))
        finished = client.take_part()
        client.session.leave()
    return 0 if finished.completed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
