"""What a task's inputs must satisfy before a site computes with them; raises, never repairs, fetches nothing."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from fkd_client.pipeline import Pipeline
from fkd_common.config import MomentFeatures
from fkd_common.errors import DataError, InvalidUploadError
from fkd_common.method.moments import num_moment_features
from fkd_common.method.student_layout import TensorSpec, student_layout
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.tensors import Tensors, check_schema


def check_student(student: Tensors, pipeline: Pipeline) -> None:
    """Refuse a student that is not the run's.

    Raises:
        DataError: Naming the tensor, what was expected and what came.
    """
    config, site = pipeline.config, pipeline.site
    layout = student_layout(site.anchor_embeddings.shape[1], config.hidden, site.num_classes, config.norm)
    _check("student", student, layout)
    for name, values in student.items():
        if name.endswith("running_var") and values.min(initial=0.0) < 0:
            raise DataError(f"the coordinator's student has a negative variance in {name}")


def check_solution(solution: Tensors, which: MomentFeatures, pipeline: Pipeline) -> None:
    """Refuse a refined solution that is not "V" (p, C).

    Raises:
        DataError: Naming what was expected and what came.
    """
    d, config = pipeline.site.anchor_embeddings.shape[1], pipeline.config
    p = num_moment_features(config.hidden, d, which)
    _check("refined moments", solution, {"V": TensorSpec((p, pipeline.site.num_classes), "float32")})


def check_corrections(
    task: pb.Task, fused: Tensors, solved: Tensors, which: MomentFeatures, pipeline: Pipeline
) -> None:
    """Refuse fused residuals, a ridge strength or solutions that do not fit the run.

    Args:
        task: The task they belong to.
        fused: "fused_residuals" (m, C), or nothing.
        solved: "V.0", "V.1", ... each (p, C), one per ridge strength of the run; or nothing.
        which: Features of the moments.
        pipeline: The site's.

    Raises:
        DataError: Naming what was expected and what came.
    """
    m, d = pipeline.site.anchor_embeddings.shape
    C, config = pipeline.site.num_classes, pipeline.config
    if fused:
        _check("fused residuals", fused, {"fused_residuals": TensorSpec((m, C), "float32")})
        if not (math.isfinite(task.anchor_lambda) and task.anchor_lambda > 0):
            raise DataError(f"the coordinator's ridge strength is {task.anchor_lambda}; expected one above 0")
    p = num_moment_features(config.hidden, d, which)
    if solved:
        expected = {f"V.{i}": TensorSpec((p, C), "float32") for i in range(len(config.lambda_grid))}
        _check("moment corrections", solved, expected)


def check_choice(task: pb.Task, candidates: Collection[str]) -> None:
    """Refuse a published model that is none of the candidates, or moments whose best is not said.

    Raises:
        DataError: Naming what was chosen and what there is.
    """
    moments = {name for name in candidates if name.startswith("moments.")}
    best = {task.best_moments} if task.best_moments else set()
    if task.published not in candidates or not best <= moments or (task.published in moments and not best):
        raise DataError(
            f"the coordinator published {task.published!r} with {task.best_moments!r} as the best moments; "
            f"the candidates are {', '.join(candidates)}"
        )


def check_anchors(images: np.ndarray, embeddings: np.ndarray, d: int) -> None:
    """Refuse anchors that are not m images with m finite embeddings of length `d`.

    Raises:
        DataError: Saying what came.
    """
    fits = images.ndim == 4 and embeddings.shape == (len(images), d) and len(images) > 0
    if not fits or not np.isfinite(embeddings).all():
        raise DataError(
            f"the coordinator's anchors are images of shape {images.shape} with embeddings of shape "
            f"{embeddings.shape}; expected (m, H, W, 1 or 3) and finite (m, {d})"
        )


def _check(what: str, tensors: Tensors, schema: dict[str, TensorSpec]) -> None:
    try:
        check_schema(tensors, schema)
    except InvalidUploadError as error:
        raise DataError(f"the coordinator's {what} cannot be used: {error}") from error
