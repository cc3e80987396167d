"""A task's inputs, unpacked, and what they must satisfy before a site computes with them; fetches nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from fkd_client.pipeline import Pipeline
from fkd_client.received import checked
from fkd_common.choices import MomentFeatures
from fkd_common.codecs.statistics import unpack_statistics
from fkd_common.codecs.student import unpack_model
from fkd_common.errors import DataError
from fkd_common.method.moments import num_moment_features
from fkd_common.method.student_layout import TensorSpec, student_layout
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.tensors import Tensors


def received_student(packed: Tensors, pipeline: Pipeline) -> Tensors:
    """The coordinator's student, unpacked.

    Raises:
        DataError: It is not the run's: naming the tensor, what was expected and what came.
    """
    config, site = pipeline.config, pipeline.site
    layout = student_layout(site.anchor_embeddings.shape[1], config.hidden, site.num_classes, config.norm)
    student = checked("student", lambda: unpack_model(packed, layout, config.model_codec), layout)
    for name, values in student.items():
        if name.endswith("running_var") and values.min(initial=0.0) < 0:
            raise DataError(f"the coordinator's student has a negative variance in {name}")
    return student


def received_solution(packed: Tensors, which: MomentFeatures, pipeline: Pipeline) -> Tensors:
    """A refined solution, "V" (p, C), unpacked.

    Raises:
        DataError: It is not that: naming what was expected and what came.
    """
    p = num_moment_features(pipeline.config.hidden, pipeline.site.anchor_embeddings.shape[1], which)
    return _statistics("refined moments", packed, {"V": (p, pipeline.site.num_classes)}, pipeline)


def received_fused(packed: Tensors, anchor_lambda: float, pipeline: Pipeline) -> Tensors:
    """The fused residuals, "fused_residuals" (m, C), unpacked.

    Args:
        packed: As they came.
        anchor_lambda: The ridge strength that the task says with them.
        pipeline: The site's.

    Raises:
        DataError: They, or the strength, do not fit the run.
    """
    m = len(pipeline.site.anchor_embeddings)
    fused = _statistics(
        "fused residuals", packed, {"fused_residuals": (m, pipeline.site.num_classes)}, pipeline
    )
    if not (math.isfinite(anchor_lambda) and anchor_lambda > 0):
        raise DataError(f"the coordinator's ridge strength is {anchor_lambda}; expected one above 0")
    return fused


def received_solutions(packed: Tensors, which: MomentFeatures, pipeline: Pipeline) -> Tensors:
    """ "V.0", "V.1", ... each (p, C), one per ridge strength of the run, unpacked.

    Raises:
        DataError: They are not that: naming what was expected and what came.
    """
    config, site = pipeline.config, pipeline.site
    p = num_moment_features(config.hidden, site.anchor_embeddings.shape[1], which)
    expected = {f"V.{i}": (p, site.num_classes) for i in range(len(config.lambda_grid))}
    return _statistics("moment corrections", packed, expected, pipeline)


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


def _statistics(
    what: str, packed: Tensors, shapes: Mapping[str, tuple[int, ...]], pipeline: Pipeline
) -> Tensors:
    layout = {name: TensorSpec(shape, "float32") for name, shape in shapes.items()}
    codec = pipeline.config.statistics_in_force
    return checked(what, lambda: unpack_statistics(packed, layout, codec), layout)
