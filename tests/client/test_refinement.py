"""What a site does before round 1 and in the steps that refine pooled moments."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import fkd_client.pipeline
from fkd_client.embedding import embed
from fkd_client.extractor import Extractor
from fkd_client.pipeline import Pipeline
from fkd_client.progress import silent
from fkd_client.site import Site
from fkd_client.student import State, outputs
from fkd_client.tasks import TaskRunner
from fkd_common.choices import UNCODED, MomentFeatures
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.moments import centre, moment_vector, unpack_symmetric
from fkd_common.method.probabilities import softmax
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, encode
from fkd_shards.shard import Shard

C, D, HIDDEN = 3, 512, (8, 4)
P = sum(HIDDEN) + D + 1
REFINE_1 = types.PHASE_REFINE_1


@pytest.fixture(scope="module")
def site(extractor: Extractor, tmp_path_factory: pytest.TempPathFactory) -> Site:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    shard = Shard("s", images, np.arange(40) % C, ("a", "b", "c"), "cd" * 32)
    anchors = rng.integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)
    embeddings = embed(extractor, anchors, device="cpu")
    folder = tmp_path_factory.mktemp("cache")
    return Site("s", shard, extractor, "ef" * 32, anchors, embeddings, C, folder, "cpu", 1)


def prepared(site: Site, **changes: Any) -> Pipeline:
    config = RunConfig(
        **{
            "hidden": HIDDEN, "dropout": (0.0, 0.0), "teacher_trees": 3, "min_val": 5, "local_steps": 3,
            "lambda_grid": (1.0, 10.0), **UNCODED, **changes,
        }
    )  # fmt: skip
    pipeline = Pipeline(site, config)
    pipeline.prepare()
    return pipeline


def trained(pipeline: Pipeline) -> State:
    return pipeline.student(pipeline.untrained_student(), 1)


def solution(p: int = P, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).normal(size=(p, C)).astype(np.float32)


class Submitted:
    """Stands for session and transfer: serves artifacts by name and keeps what is submitted."""

    name = "s"

    def __init__(self, **artifacts: Tensors) -> None:
        blobs = {name: encode(tensors) for name, tensors in artifacts.items()}
        self.inputs = [
            types.ArtifactRef(name=name, sha256=hashlib.sha256(blob).digest(), size=len(blob))
            for name, blob in blobs.items()
        ]
        self._blobs = {item.sha256: blobs[item.name] for item in self.inputs}
        self.messages: list[Any] = []
        self.fetched_once: list[str] = []

    def fetch(self, reference: types.ArtifactRef, key: types.TaskKey) -> bytes:
        return self._blobs[reference.sha256]

    def fetch_once(self, reference: types.ArtifactRef, key: types.TaskKey) -> bytes:
        self.fetched_once.append(reference.name)
        return self.fetch(reference, key)

    def submit(self, message: Any) -> None:
        self.messages.append(message)

    def call(self, name: str, request: Any, response: Any, key: types.TaskKey) -> None:
        self.messages.append(request)


def run_task(pipeline: Pipeline, round_number: int, phase: int, **artifacts: Tensors) -> Any:
    """What a site submits for a task with these inputs."""
    ways: Any = Submitted(**artifacts)
    key = types.TaskKey(run_id="r", round=round_number, phase=phase)  # type: ignore[arg-type]
    TaskRunner(ways, ways, pipeline, silent).run(pb.Task(key=key, inputs=ways.inputs))
    (message,) = ways.messages
    return message


# -- the gradient --


@pytest.mark.parametrize("which, p", [(MomentFeatures.HIDDEN, P), (MomentFeatures.EMBEDDING, D + 1)])
def test_a_gradient_is_the_sum_over_the_training_part(site: Site, which: MomentFeatures, p: int) -> None:
    """G = Σ z (y - softmax(centre(S) + zᵀV))ᵀ."""
    pipeline = prepared(site)
    state, V = trained(pipeline), solution(p)
    student = outputs(state, pipeline.h, pipeline.config)
    z = moment_vector(student.hidden, pipeline.standardiser.apply(pipeline.h), which).astype(np.float64)
    missed = np.eye(C)[pipeline.y] - softmax(centre(student.logits) + z @ V)
    found = pipeline.gradient(state, V, which)["G"]
    assert (found.shape, found.dtype.name) == ((p, C), "float32")
    np.testing.assert_allclose(found, z.T @ missed, rtol=1e-4, atol=1e-4)


def test_clips_bound_what_one_sample_adds_to_a_gradient(site: Site) -> None:
    """A solution of 50 makes residuals as long as √2 or 0; no row of what is summed is longer than 0.1."""
    pipeline = prepared(site, target_clip=0.1)
    state, V = trained(pipeline), 50 * solution()
    student = outputs(state, pipeline.h, pipeline.config)
    z = moment_vector(student.hidden, pipeline.standardiser.apply(pipeline.h), MomentFeatures.HIDDEN)
    missed = np.eye(C)[pipeline.y] - softmax(centre(student.logits) + z.astype(np.float64) @ V)
    lengths = np.linalg.norm(missed, axis=1, keepdims=True)
    assert lengths.max() > 1.0
    missed *= np.minimum(1.0, 0.1 / np.maximum(lengths, 1e-300))
    found = pipeline.gradient(state, V, MomentFeatures.HIDDEN)["G"]
    np.testing.assert_allclose(found, z.T @ missed, rtol=1e-3, atol=1e-3)


def test_features_are_made_once_for_all_steps_and_forgotten_at_the_vote(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*arguments: Any, **keys: Any) -> Any:
        made.append(1)
        return outputs(*arguments, **keys)

    pipeline = prepared(site)
    state, other = trained(pipeline), pipeline.untrained_student()
    monkeypatch.setattr(fkd_client.pipeline, "outputs", counted)
    pipeline.moments(state, block_known=False)
    first = pipeline.gradient(state, solution(), MomentFeatures.HIDDEN)["G"]
    for step in range(1, 9):
        pipeline.gradient({**state}, solution(seed=step), MomentFeatures.HIDDEN)
    assert len(made) == 1
    pipeline.votes(pipeline.candidate_models(state, None, 0.0, {}))
    again = pipeline.gradient(state, solution(), MomentFeatures.HIDDEN)["G"]
    assert len(made) == 2
    assert again.tobytes() == first.tobytes()
    # Another student has other features, and so have other moments of the same student.
    pipeline.gradient(other, solution(), MomentFeatures.HIDDEN)
    pipeline.gradient(other, solution(D + 1), MomentFeatures.EMBEDDING)
    assert len(made) == 4


# -- tasks --


def test_a_step_is_a_gradient_at_the_solution_it_brings(site: Site) -> None:
    pipeline = prepared(site)
    state, V = trained(pipeline), solution()
    message = run_task(pipeline, 1, REFINE_1, student=dict(state), solution={"V": V})
    assert (message.method, message.request.num_samples) == ("SubmitGradient", pipeline.num_samples)
    expected = pipeline.gradient(state, V, MomentFeatures.HIDDEN)["G"]
    assert message.tensors["G"].tobytes() == expected.tobytes()


def test_solutions_of_steps_do_not_push_the_student_out_of_memory(site: Site) -> None:
    """Only the last few artifacts are kept: one that a single task needs is not to cost another download."""
    ways: Any = Submitted(student=dict(trained(prepared(site))), solution={"V": solution()})
    key = types.TaskKey(run_id="r", round=1, phase=REFINE_1)  # type: ignore[arg-type]
    TaskRunner(ways, ways, prepared(site), silent).run(pb.Task(key=key, inputs=ways.inputs))
    assert ways.fetched_once == ["solution"]


@pytest.mark.scenario(11)
@pytest.mark.parametrize(
    "round_number, brought, named",
    [
        (1, {"V": solution(D + 1)}, "refined moments cannot be used"),
        (0, {"V": solution(P)}, "refined moments cannot be used"),
        (1, None, "lacks its input 'solution'"),
    ],
)
def test_a_step_whose_solution_is_none_is_refused(
    site: Site, round_number: int, brought: Tensors | None, named: str
) -> None:
    pipeline = prepared(site)
    inputs = {"student": dict(trained(pipeline))} if round_number else {}
    with pytest.raises(DataError, match=named):
        run_task(pipeline, round_number, REFINE_1, **inputs, **({"solution": brought} if brought else {}))


def test_before_the_first_round_moments_are_those_of_the_embedding_and_need_no_student(site: Site) -> None:
    """r = t - centre(S) = t, because the untrained student says nothing."""
    pipeline = prepared(site)
    message = run_task(pipeline, 0, types.PHASE_MOMENTS)
    z = np.concatenate([pipeline.standardiser.apply(pipeline.h), np.ones((len(pipeline.h), 1))], axis=1)
    A = unpack_symmetric(message.tensors["A"], D + 1, None)
    np.testing.assert_allclose(A, z.T @ z, rtol=1e-3, atol=1e-3)
    targets = pipeline.config.kappa * (np.eye(C)[pipeline.y] - 1 / C)
    np.testing.assert_allclose(message.tensors["B"], z.T @ targets, rtol=1e-3, atol=1e-3)


def test_before_the_first_round_a_step_needs_no_student(site: Site) -> None:
    pipeline = prepared(site)
    message = run_task(pipeline, 0, REFINE_1, solution={"V": solution(D + 1)})
    z = np.concatenate([pipeline.standardiser.apply(pipeline.h), np.ones((len(pipeline.h), 1))], axis=1)
    missed = np.eye(C)[pipeline.y] - softmax(z @ solution(D + 1))
    np.testing.assert_allclose(message.tensors["G"], z.T @ missed, rtol=1e-3, atol=1e-3)


def test_in_a_round_every_task_needs_its_student(site: Site) -> None:
    pipeline = prepared(site)
    for phase in (types.PHASE_MOMENTS, REFINE_1):
        with pytest.raises(DataError, match="lacks its input 'student'"):
            run_task(pipeline, 1, phase, solution={"V": solution()})


@pytest.mark.parametrize("round_number, p", [(0, D + 1), (1, P)])
def test_a_vote_compares_the_refined_solution_with_the_others(site: Site, round_number: int, p: int) -> None:
    """A refined solution that always says class 2 is right about that class's samples of D_val."""
    pipeline = prepared(site)
    V = np.zeros((p, C), np.float32)
    V[-1] = 0.0, 0.0, 1e3
    inputs = {"student": dict(trained(pipeline))} if round_number else {}
    message = run_task(
        pipeline,
        round_number,
        types.PHASE_VOTES,
        **inputs,
        moment_correction={"V.0": solution(p), "V.1": solution(p, 1)},
        refined_moments={"V": V},
    )
    counts = {vote.candidate: vote.correct for vote in message.votes}
    assert list(counts) == ["student", "moments.0", "moments.1", "moments.refined"]
    assert counts["moments.refined"] == int((pipeline.y_val == 2).sum()) > 0
    assert message.num_validation == len(pipeline.y_val)


def test_a_model_before_the_first_round_scores_like_its_embedding_alone(site: Site) -> None:
    pipeline = prepared(site)
    narrow = solution(D + 1)
    wide = np.concatenate([np.zeros((sum(HIDDEN), C), np.float32), narrow])
    models = pipeline.candidate_models(pipeline.untrained_student(), None, 0.0, {"moments.refined": wide})
    model = models["moments.refined"]
    z = np.concatenate([pipeline.standardiser.apply(pipeline.h), np.ones((len(pipeline.h), 1))], axis=1)
    found = model.scores(pipeline.h, model.outputs(pipeline.h), model.published)
    np.testing.assert_allclose(found, z @ narrow, rtol=1e-3, atol=1e-3)
