"""Teachers kept on disk: a client that starts again, or a second run on the same data, finds its teacher trained.

A teacher follows from embeddings, labels, a few keys and a seed, so it is kept under their digest. The file is one
safetensors blob behind its own SHA-256: a damaged one is trained anew. It is as private as the embeddings beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from fkd_client.teacher import Teacher, TeacherModel, TeacherReport, train_teacher
from fkd_common.artifacts import write_atomically
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.method.calibration import Calibration
from fkd_common.tensors import Tensors, decode, encode, metadata_of

_DIGEST_BYTES = 32
_VERSION = 1
"""Raised whenever training computes something else: teachers kept before then no longer match."""

TEACHER_KEYS = (
    "teacher_trees", "teacher_depth", "teacher_lr", "teacher_leaves", "teacher_min_leaf", "teacher_feature_fraction",
    "max_bin", "kd_targets", "kd_folds", "calibrator", "min_val", "reliability", "beta",
)  # fmt: skip
"""Keys of the run configuration that a teacher depends on."""


class TeacherCache:
    """Trains teachers, and remembers them in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        h_train: NDArray[np.float32],
        y_train: NDArray[np.int64],
        h_val: NDArray[np.float32],
        y_val: NDArray[np.int64],
        num_classes: int,
        config: RunConfig,
        *,
        threads: int,
        seed: int,
        **how: Any,
    ) -> Teacher:
        """The teacher that :func:`~fkd_client.teacher.train_teacher` makes of the same arguments."""
        data = (h_train, y_train, h_val, y_val)
        path = self._folder / f"{teacher_key(data, num_classes, config, seed)}.teacher"
        kept = _read(path, num_classes, len(y_val), threads)
        if kept is not None:
            return kept
        teacher = train_teacher(*data, num_classes, config, threads=threads, seed=seed, **how)
        with contextlib.suppress(OSError):  # a cache that cannot be filled costs a training, not the run
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            blob = _encode(teacher)
            write_atomically(path, hashlib.sha256(blob).digest() + blob)
        return teacher


def teacher_key(data: tuple[NDArray[Any], ...], num_classes: int, config: RunConfig, seed: int) -> str:
    """Hex digest of everything a teacher depends on.

    Args:
        data: embeddings and labels of the training part and of D_val.
        num_classes: C.
        config: the run configuration, of which `TEACHER_KEYS` count.
        seed: the site's.
    """
    keys = config.model_dump(mode="json", include=set(TEACHER_KEYS))
    told = json.dumps([_VERSION, lgb.__version__, num_classes, seed, sorted(keys.items())])
    digest = hashlib.sha256(told.encode())
    for array in data:
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _encode(teacher: Teacher) -> bytes:
    model, calibration = teacher.model, teacher.model.calibration
    tensors: Tensors = {
        "present": model.present,
        "slopes": calibration.slopes,
        "offsets": calibration.offsets,
        "identity": calibration.identity,
        "soft_source": teacher.soft_source,
    }
    if model.booster is not None:
        tensors["booster"] = np.frombuffer(model.booster.model_to_string().encode(), dtype=np.uint8)
    if teacher.oof is not None and teacher.oof is not teacher.soft_source:
        tensors["oof"] = teacher.oof
    numbers = {
        "temperature": calibration.temperature,
        "reliability": teacher.reliability,
        "has_oof": teacher.oof is not None,
        "report": asdict(teacher.report),
    }
    return encode(tensors, {"numbers": json.dumps(numbers)})


def _read(path: Path, num_classes: int, n_val: int, threads: int) -> Teacher | None:
    """The teacher in an intact file; None if there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    blob = content[_DIGEST_BYTES:]
    if hashlib.sha256(blob).digest() != content[:_DIGEST_BYTES]:
        return None
    try:
        tensors, numbers = decode(blob), json.loads(metadata_of(blob)["numbers"])
        booster = tensors.get("booster")
        model = TeacherModel(
            booster=None if booster is None else lgb.Booster(model_str=booster.tobytes().decode()),
            present=tensors["present"],
            num_classes=num_classes,
            n_val=n_val,
            calibration=Calibration(
                tensors["slopes"], tensors["offsets"], tensors["identity"], numbers["temperature"]
            ),
            threads=threads,
        )
        soft = tensors["soft_source"]
        return Teacher(
            model=model,
            soft_source=soft,
            oof=tensors.get("oof", soft) if numbers["has_oof"] else None,
            reliability=numbers["reliability"],
            report=TeacherReport(**numbers["report"]),
        )
    except (FkdError, KeyError, TypeError, ValueError, lgb.basic.LightGBMError):
        return None  # written by another release
