"""Teachers kept on disk: a client that starts again, or a second run on the same data, finds its teacher trained.

A teacher follows from embeddings, labels, a few keys and a seed, so it is kept under their digest. The file is one
safetensors blob behind its own SHA-256: a damaged one, or one whose content is not that teacher's, is trained anew.
It is as private as the embeddings beside it. Those used last are kept, up to :data:`MAX_BYTES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_client.teacher import LEARNERS, Teacher, TeacherReport, train_teacher
from fkd_client.teacher_tensors import teacher_of, teacher_tensors
from fkd_common.artifacts import TEMPORARY, write_atomically
from fkd_common.choices import TeacherKind
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.tensors import Tensors, decode, encode, metadata_of

_DIGEST_BYTES = 32
_SUFFIX = ".teacher"
_VERSION = 2
"""Raised whenever training computes something else, or is kept otherwise: teachers from before no longer match."""

MAX_BYTES = 1 << 30
"""Of all teachers in a folder; one of a hundred trees for each of ten classes takes 4 MB, an MLP 3 MB."""

_UNFINISHED_S = 3600.0
"""After this many seconds nobody writes at an unfinished file any more."""

_KEYS = ("teacher", "kd_targets", "kd_folds", "calibrator", "min_val", "reliability", "beta")
TEACHER_KEYS = {kind: (*_KEYS, *learner.KEYS) for kind, learner in LEARNERS.items()}
"""Keys of the run configuration that each kind of teacher depends on."""


class TeacherCache:
    """Trains teachers, and remembers them in a folder."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

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
        path = self._folder / f"{teacher_key(data, num_classes, config, seed)}{_SUFFIX}"
        kept = _read(path, data, num_classes, config.teacher, threads)
        if kept is not None:
            with contextlib.suppress(OSError):
                path.touch()  # the files of the least recent date go first
            return kept
        teacher = train_teacher(*data, num_classes, config, threads=threads, seed=seed, **how)
        with contextlib.suppress(OSError):  # a cache that cannot be filled costs a training, not the run
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            blob = _encode(teacher)
            write_atomically(path, hashlib.sha256(blob).digest() + blob)
            self._tidy(path)
        return teacher

    def _tidy(self, newest: Path) -> None:
        """Remove what interrupted writes left, and the teachers not used for longest while there are too many bytes."""
        for left in self._folder.glob(f"{TEMPORARY}*"):
            if time.time() - left.stat().st_mtime > _UNFINISHED_S:
                left.unlink(missing_ok=True)
        others = [(path.stat(), path) for path in self._folder.glob(f"*{_SUFFIX}") if path != newest]
        held = newest.stat().st_size
        for status, path in sorted(others, key=lambda entry: entry[0].st_mtime_ns, reverse=True):
            held += status.st_size
            if held > self._max_bytes:
                path.unlink(missing_ok=True)


def teacher_key(data: tuple[NDArray[Any], ...], num_classes: int, config: RunConfig, seed: int) -> str:
    """Hex digest of everything a teacher depends on.

    Args:
        data: embeddings and labels of the training part and of D_val.
        num_classes: C.
        config: the run configuration, of which its kind's `TEACHER_KEYS` count.
        seed: the site's.
    """
    keys = config.model_dump(mode="json", include=set(TEACHER_KEYS[config.teacher]))
    told = json.dumps([_VERSION, LEARNERS[config.teacher].LIBRARY, num_classes, seed, sorted(keys.items())])
    digest = hashlib.sha256(told.encode())
    for array in data:
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _encode(teacher: Teacher) -> bytes:
    tensors = {**teacher_tensors(teacher.model), "soft_source": teacher.soft_source}
    if teacher.oof is not None and teacher.oof is not teacher.soft_source:
        tensors["oof"] = teacher.oof
    numbers = {
        "reliability": teacher.reliability,
        "has_oof": teacher.oof is not None,
        "report": asdict(teacher.report),
    }
    return encode(tensors, {"numbers": json.dumps(numbers)})


def _read(
    path: Path, data: tuple[NDArray[Any], ...], num_classes: int, kind: TeacherKind, threads: int
) -> Teacher | None:
    """The teacher in an intact file; None if there is none, or it is damaged or not of these data."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    blob = content[_DIGEST_BYTES:]
    if hashlib.sha256(blob).digest() != content[:_DIGEST_BYTES]:
        return None
    try:
        tensors, numbers = decode(blob), json.loads(metadata_of(blob)["numbers"])
        return _checked(tensors, numbers, data, num_classes, kind, threads)
    except (FkdError, KeyError, TypeError, ValueError, AttributeError):
        return None  # written by another release


def _checked(
    tensors: Tensors,
    numbers: dict[str, Any],
    data: tuple[NDArray[Any], ...],
    num_classes: int,
    kind: TeacherKind,
    threads: int,
) -> Teacher:
    """The teacher of a file's content.

    Raises:
        DataError, ValueError: It is not whole, or not one of these data.
        KeyError, TypeError: Something is missing, or of another kind.
    """
    h_train, y_train, _, y_val = data
    model = teacher_of(tensors, num_classes, h_train.shape[1], threads)
    if not np.array_equal(model.present, np.unique(y_train)) or model.n_val != len(y_val):
        raise ValueError("other classes, or another D_val")
    if not (model.learner is None or isinstance(model.learner, LEARNERS[kind])):
        raise ValueError("another kind of teacher")
    shape, soft = (len(y_train), num_classes), tensors["soft_source"]
    oof = tensors.get("oof", soft) if numbers["has_oof"] else None
    for shares in (soft, *(() if oof is None else (oof,))):
        if shares.dtype != np.float32 or shares.shape != shape or not np.isfinite(shares).all():
            raise ValueError(f"expected finite float32 of shape {shape}")
        if shares.min(initial=0.0) < 0:
            raise ValueError("negative shares")
    return Teacher(
        model=model,
        soft_source=soft,
        oof=oof,
        reliability=_share(numbers["reliability"]),
        report=TeacherReport(**{name: float(value) for name, value in numbers["report"].items()}),
    )


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("expected a number from 0 to 1")
    return value
