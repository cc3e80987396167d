"""Clients of a tiny run that take part in secure sums: what they add is what a test gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fkd_client.secure_sum import OwnSums, student_summand
from fkd_common.method.moments import accumulate, apply_moments, pack_symmetric
from fkd_common.method.refinement import gradient, likelihood_residual
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.phases import REFINE_PHASES
from fkd_common.rpc import Method
from fkd_common.secure_sum.sharing import ThresholdRule
from fkd_common.secure_sum.steps import SECURE_STEPS, Step, Summed
from fkd_common.tensors import Tensors, decode, encode

from ..server.tiny import MOMENTS, STUDENT, VOTES, Site, TinyRun, inline


class SecureSite(Site):
    """A client with a student, n_k, r_k and moments of its own."""

    def __init__(
        self, name: str, answer: Callable[[Method, bytes], bytes], student: Tensors, n: int, r: float
    ) -> None:
        super().__init__(name, answer)
        self.student, self.n, self.r = student, n, r
        self.sums = OwnSums(name, ThresholdRule(2 / 3))
        self.z, self.residual = samples(name, n)

    def do(self, run: TinyRun) -> int | None:
        """The task at hand, if there is one; returns its phase."""
        answer = self.poll()
        if not answer.HasField("task"):
            return None
        task = answer.task
        if run.method.config.secure_aggregation and task.key.phase in SECURE_STEPS:
            self.step(task)
        else:
            self._plain(run, task)
        return int(task.key.phase)

    def step(self, task: pb.Task) -> None:
        """One step of a secure sum."""
        self.call("SubmitSecure", key=task.key, upload=inline(encode(self.answer_to(task))))

    def answer_to(self, task: pb.Task) -> Tensors:
        """What this client says at a step."""
        place, where = SECURE_STEPS[task.key.phase], task.key.round
        if place.step is Step.KEYS:
            return self.sums.begin(where, place.summed).keys()
        part = self.sums.going_on(where, place.summed)
        if place.step is Step.SHARES:
            return part.shares(self.input(task, "roster"))
        if place.step is Step.UNMASK:
            return part.revealed(task.delivered)
        summand: Tensors = self.moments()
        if place.summed is Summed.STUDENT:
            summand = student_summand(self.student, self.n * max(self.r, 0.1))
        return part.masked(summand, self.input(task, "inbox"))

    def input(self, task: pb.Task, name: str) -> Tensors:
        """One of a task's inputs."""
        (reference,) = (item for item in task.inputs if item.name == name)
        return decode(self.fetch(reference, task.key))

    def moments(self, p: int = 6, *, block_known: bool = False) -> dict[str, Any]:
        """Moments of the last p features of this client's samples."""
        sums = accumulate(self.z[:, -p:], self.residual)
        A = pack_symmetric(sums.A, 4 if block_known else 0)
        return {"A": A.astype(np.float32), "B": sums.B.astype(np.float32)}

    def gradient(self, V: np.ndarray) -> dict[str, Any]:
        """The likelihood's gradient at a solution, while the student says nothing."""
        z, labels = self.z[:, -len(V) :], self.residual.argmax(axis=1)
        missed = likelihood_residual(np.zeros(self.residual.shape), apply_moments(z, V), labels)
        return {"G": gradient(z, missed)}

    def _plain(self, run: TinyRun, task: pb.Task) -> None:
        if task.key.phase == STUDENT:
            self.submit_student(task.key.round, self.student, self.n, self.r)
        elif task.key.phase == MOMENTS:
            p, known = run.method.num_moment_features, task.embedding_block_known
            upload = inline(encode(self.moments(p, block_known=known)))
            self.call("SubmitMoments", key=task.key, upload=upload, num_samples=self.n)
        elif task.key.phase in REFINE_PHASES:
            upload = inline(encode(self.gradient(self.input(task, "solution")["V"])))
            self.call("SubmitGradient", key=task.key, upload=upload, num_samples=self.n)
        elif task.key.phase == VOTES:
            votes = [pb.Vote(candidate=name, correct=1) for name in run.method.candidates()]
            self.call("SubmitVotes", key=task.key, votes=votes, num_validation=2)
        else:
            self.call("FinishTask", key=task.key)


def samples(name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [φ; h̄; 1] and residuals of labels drawn for a client, while the student still says nothing."""
    rng = np.random.default_rng(ord(name[0]))
    z = np.concatenate([rng.normal(size=(n, 5)), np.ones((n, 1))], axis=1).astype(np.float32)
    labels = rng.integers(0, 2, size=n)
    return z, 8.0 * (np.eye(2)[labels] - 0.5)


def work(run: TinyRun, sites: Mapping[str, SecureSite], absent: Mapping[int, str] | None = None) -> None:
    """Let every site do every task until nothing happens; `absent` fail the phase they are listed under, and leave."""
    gone: set[str] = set()
    moved = True
    while moved:
        moved = False
        for name, site in sites.items():
            if name in gone:
                continue
            phase = run.coordinator.open.key.phase if run.coordinator.open else 0
            if (absent or {}).get(phase) == name:
                site.call("ReportFailure", key=site.key(run.coordinator.round, phase), detail="power cut")
                site.call("Leave")
                gone.add(name)
                moved = True
                continue
            moved = site.do(run) is not None or moved
