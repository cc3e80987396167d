"""What a coordinator asks for fits the run, or is refused before a site computes with it."""

from types import SimpleNamespace

import numpy as np
import pytest

from fkd_client.task_inputs import (
    check_choice,
    received_fused,
    received_solution,
    received_solutions,
    received_student,
)
from fkd_common.choices import UNCODED, ModelCodec, MomentFeatures, StatisticsCodec
from fkd_common.codecs.statistics import pack_statistics
from fkd_common.codecs.student import pack_model
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.student_layout import initial_student
from fkd_common.pb import coordinator_pb2 as pb

C, D, M = 2, 3, 4
CONFIG = RunConfig(hidden=(2,), dropout=(0.0,), lambda_grid=(1.0, 10.0), **UNCODED)
SITE = SimpleNamespace(anchor_embeddings=np.zeros((M, D), np.float32), num_classes=C)
PIPELINE = SimpleNamespace(config=CONFIG, site=SITE)


def student(**changes):
    return {**initial_student(0, D, CONFIG.hidden, C, CONFIG.norm), **changes}


def fused(m=M):
    return {"fused_residuals": np.zeros((m, C), np.float32)}


def solved(count=2, p=2 + D + 1):
    return {f"V.{i}": np.zeros((p, C), np.float32) for i in range(count)}


def test_what_fits_is_taken():
    received_student(student(), PIPELINE)
    received_fused(fused(), 10.0, PIPELINE)
    received_solutions(solved(), MomentFeatures.HIDDEN, PIPELINE)
    received_solutions(solved(p=D + 1), MomentFeatures.EMBEDDING, PIPELINE)
    received_solution({"V": np.zeros((2 + D + 1, C), np.float32)}, MomentFeatures.HIDDEN, PIPELINE)
    received_solution({"V": np.zeros((D + 1, C), np.float32)}, MomentFeatures.EMBEDDING, PIPELINE)


def test_what_was_packed_is_unpacked_and_anything_else_refused():
    config = CONFIG.model_copy(
        update={"model_codec": ModelCodec.INT8, "statistics_codec": StatisticsCodec.INT16}
    )
    coded = SimpleNamespace(config=config, site=SITE)
    whole = received_student(pack_model(student(), ModelCodec.INT8), coded)
    assert {name: array.shape for name, array in whole.items()} == {n: a.shape for n, a in student().items()}
    V = {"V": np.array([[0.5, -0.25]] * 6, np.float32)}
    np.testing.assert_array_equal(
        received_solution(pack_statistics(V, StatisticsCodec.INT16), MomentFeatures.HIDDEN, coded)["V"],
        V["V"],
    )
    with pytest.raises(DataError, match="coordinator's student cannot be used: tensor names differ"):
        received_student(student(), coded)
    with pytest.raises(DataError, match="coordinator's student cannot be used: tensor names differ"):
        received_student(pack_model(student(), ModelCodec.INT8), PIPELINE)


@pytest.mark.scenario(10, 11)
@pytest.mark.parametrize(
    "changes, named",
    [
        ({"output.weight": np.zeros((3, 2), np.float32)}, "output.weight"),
        ({"output.bias": np.full(2, np.nan, np.float32)}, "NaN"),
        ({"output.bias": np.zeros(2)}, "float64"),
        ({"extra": np.zeros(2)}, "extra"),
        ({"layers.0.norm.running_var": np.array([1.0, -1.0], np.float32)}, "negative variance"),
    ],
)
def test_a_student_of_another_run_is_refused(changes, named):
    with pytest.raises(DataError, match=named):
        received_student(student(**changes), PIPELINE)


@pytest.mark.scenario(11)
@pytest.mark.parametrize(
    "strength, residuals, solutions",
    [
        (10.0, fused(m=5), {}),
        (0.0, fused(), {}),
        (float("nan"), fused(), {}),
        (10.0, {}, solved(count=1)),
        (10.0, {}, solved(p=5)),
        (10.0, {}, {"V.1": np.zeros((6, C), np.float32), "V.2": np.zeros((6, C), np.float32)}),
    ],
)
def test_corrections_of_another_run_are_refused(strength, residuals, solutions):
    with pytest.raises(DataError, match="coordinator's"):
        if residuals:
            received_fused(residuals, strength, PIPELINE)
        else:
            received_solutions(solutions, MomentFeatures.HIDDEN, PIPELINE)


@pytest.mark.scenario(11)
@pytest.mark.parametrize(
    "solution, named",
    [
        ({"V": np.zeros((D + 1, C), np.float32)}, "V"),
        ({"V": np.full((2 + D + 1, C), np.inf, np.float32)}, "infinity"),
        ({"W": np.zeros((2 + D + 1, C), np.float32)}, "W"),
    ],
)
def test_a_refined_solution_of_another_run_is_refused(solution, named):
    with pytest.raises(DataError, match=f"coordinator's refined moments cannot be used.*{named}"):
        received_solution(solution, MomentFeatures.HIDDEN, PIPELINE)


@pytest.mark.parametrize(
    "published, best, fits",
    [
        ("student", "", True),
        ("student", "moments.1", True),
        ("moments.0", "moments.0", True),
        ("moments.refined", "moments.refined", False),
        ("moments.0", "", False),
        ("moments.0", "student", False),
        ("moments.9", "moments.0", False),
        ("", "", False),
    ],
)
def test_what_is_published_must_be_a_candidate(published, best, fits):
    task, candidates = pb.Task(published=published, best_moments=best), ("student", "moments.0", "moments.1")
    if fits:
        check_choice(task, candidates)
        return
    with pytest.raises(DataError, match="the candidates are student"):
        check_choice(task, candidates)
