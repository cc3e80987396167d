"""A teacher's model as named tensors and back, checked: whatever keeps or sends one goes through here; no files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_client.learner import Learner
from fkd_client.teacher import LEARNERS, TeacherModel
from fkd_common.errors import DataError
from fkd_common.method.calibration import Calibration
from fkd_common.tensors import Tensors


def teacher_tensors(model: TeacherModel) -> Tensors:
    """A teacher as tensors: the classes it knows, its calibration, and what its learner, if any, has learnt."""
    calibration = model.calibration
    return {
        "present": model.present,
        "slopes": calibration.slopes,
        "offsets": calibration.offsets,
        "identity": calibration.identity,
        "temperature": np.array(calibration.temperature),
        "n_val": np.array(model.n_val),
        **(model.learner.tensors() if model.learner is not None else {}),
    }


def teacher_of(tensors: Tensors, num_classes: int, num_features: int, threads: int = 1) -> TeacherModel:
    """The teacher of :func:`teacher_tensors`.

    Args:
        tensors: By name; others are passed over.
        num_classes: C.
        num_features: d of the embeddings it is to score.
        threads: Threads used to predict.

    Raises:
        DataError: It is not whole, or of other classes or features.
    """
    try:
        present = tensors["present"]
        local = _finite(tensors, "present", np.int64, (present.size,)).shape
        if (
            not present.size
            or not 0 <= present[0] <= present[-1] < num_classes
            or (np.diff(present) < 1).any()
        ):
            raise ValueError(f"present are not classes from 0 to {num_classes - 1} in ascending order")
        calibration = Calibration(
            slopes=_finite(tensors, "slopes", np.float64, local),
            offsets=_finite(tensors, "offsets", np.float64, local),
            identity=_finite(tensors, "identity", np.bool_, local),
            temperature=float(_finite(tensors, "temperature", np.float64, ())),
        )
        n_val = int(_finite(tensors, "n_val", np.int64, ()))
        if not calibration.temperature > 0 or n_val < 0:
            raise ValueError("temperature is not above 0, or n_val is below")
        learner = _learner(tensors, len(present), num_features) if len(present) > 1 else None
    except KeyError as error:
        raise DataError(f"the teacher cannot be read: it lacks {error}") from error
    except ValueError as error:
        raise DataError(f"the teacher cannot be read: {error}") from error
    return TeacherModel(learner, present, num_classes, n_val, calibration, threads)


def _learner(tensors: Tensors, num_local: int, num_features: int) -> Learner:
    for kind in LEARNERS.values():
        if kind.MARK in tensors:
            return kind.of(tensors, num_local, num_features)
    raise ValueError(f"it knows {num_local} classes and has nothing that tells them apart")


def _finite(tensors: Tensors, name: str, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    array = tensors[name]
    if array.dtype != dtype or array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite {dtype.__name__.rstrip('_')} of shape {shape}")
    return array
