"""The personal model on disk: a folder of ``model.safetensors``, ``model.json`` and the text of a teacher's trees.

It stays on the machine that made it. No pickle: arrays (a teacher that is an MLP among them), JSON and LightGBM's own
text format. A newer model replaces an older one under the eyes of readers: ``model.json`` names the tensors that it
belongs to by their hash, and until they have their usual name they lie in ``model.next.safetensors``. Whenever the
writer is ended, there is a whole model.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_client.finetune import FinetunedModel
from fkd_client.global_model import GlobalModel, MomentCorrection, Published
from fkd_client.personal import PersonalModel
from fkd_client.teacher import TeacherModel
from fkd_client.teacher_tensors import teacher_of, teacher_tensors
from fkd_client.tree_learner import TreeLearner
from fkd_common.artifacts import sha256_hex, sync_folder, write_atomically
from fkd_common.choices import FinetuneScope, MomentFeatures
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, FkdError
from fkd_common.method.residuals import AnchorCorrection, Standardiser
from fkd_common.tensors import Tensors, decode, encode

_DAMAGE = (KeyError, ValueError, TypeError, AttributeError, RecursionError)
"""What reading JSON that is not what it should be ends in."""

TENSORS_FILE, DESCRIPTION_FILE, TREES_FILE = "model.safetensors", "model.json", "teacher.txt"
_NEXT_FILE = "model.next.safetensors"
"""Tensors of a description that has just been written, or is about to be."""
_TRIES, _PAUSE_S = 5, 0.05
"""A reader may come between a description and its tensors, for as long as it takes to rename a file."""


@dataclass(frozen=True)
class Origin:
    """Where a personal model comes from, and what it needs to score images."""

    run_id: str
    client: str
    classes: tuple[str, ...]
    """Names of the columns of its scores."""
    extractor_sha256: str
    """Hash of the extractor artifact whose embeddings it takes."""


def save_personal(model: PersonalModel, folder: str | Path, origin: Origin) -> None:
    """Write a personal model with all its candidates; who reads meanwhile gets the one before, or this one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is in it is nobody else's
    base = model.base
    tensors: dict[str, NDArray[Any]] = {f"global.{name}": array for name, array in base.tensors().items()}
    tensors["personal.log_prior"] = model.log_prior
    description: dict[str, Any] = {
        "origin": asdict(origin),
        "chosen": model.chosen,
        "val_accuracy": {name: _number(value) for name, value in model.val_accuracy.items()},
        "config": model.config.model_dump(mode="json"),
        "personal_lambda": _number(model.personal_lambda),
        "gamma": _number(model.gamma),
        "global": {"published": base.published, "config": base.config.model_dump(mode="json")},
    }
    if base.anchors is not None:
        description["global"]["anchors"] = {"strength": base.anchors.strength, "loo_r2": base.anchors.loo_r2}
    if base.moments is not None:
        description["global"]["moment_features"] = base.moments.features
    if model.V is not None:
        tensors["personal.V"] = model.V
    if model.teacher is not None:
        description["teacher"], kept, trees = _taken_apart(model.teacher)
        tensors |= {f"teacher.{name}": array for name, array in kept.items()}
        if trees is not None:
            write_atomically(folder / TREES_FILE, trees)
    if model.finetuned is not None:
        tensors |= {f"tail.{name}": array for name, array in model.finetuned.tail.items()}
        tensors |= {f"head.{name}": array for name, array in model.finetuned.head.items()}
        description["finetuned"] = {"scope": model.finetuned.scope, "epoch": model.finetuned.epoch}
    blob = encode(tensors)
    description["tensors_sha256"] = sha256_hex(blob)
    _finish_earlier(folder)
    write_atomically(folder / _NEXT_FILE, blob)
    write_atomically(folder / DESCRIPTION_FILE, json.dumps(description, indent=2).encode())
    (folder / _NEXT_FILE).replace(folder / TENSORS_FILE)
    sync_folder(folder)


def _finish_earlier(folder: Path) -> None:
    """Do what a writer that was ended had left to do: its tensors are needed until the next description is there."""
    try:
        named = json.loads((folder / DESCRIPTION_FILE).read_bytes())["tensors_sha256"]
        left = (folder / _NEXT_FILE).read_bytes()
    except (*_DAMAGE, OSError):
        return
    if sha256_hex(left) == named:
        (folder / _NEXT_FILE).replace(folder / TENSORS_FILE)


def load_personal(folder: str | Path) -> PersonalModel:
    """Read what :func:`save_personal` wrote.

    Raises:
        DataError: a file is missing or damaged.
    """
    folder = Path(folder)
    try:
        description, blob = _read_together(folder)
        tensors = decode(blob)
        teacher = None
        if "teacher" in description:
            trees = (folder / TREES_FILE).read_bytes() if description["teacher"]["has_trees"] else None
            columns = tensors["global.student.layers.0.linear.weight"].shape[1]
            teacher = _put_together(description["teacher"], _under("teacher.", tensors), trees, columns)
        finetuned = None
        if "finetuned" in description:
            finetuned = FinetunedModel(
                FinetuneScope(description["finetuned"]["scope"]),
                _under("tail.", tensors),
                _under("head.", tensors),
                int(description["finetuned"]["epoch"]),
            )
        return PersonalModel(
            base=_global_model(description["global"], _under("global.", tensors)),
            config=RunConfig.model_validate(description["config"]),
            chosen=str(description["chosen"]),
            val_accuracy={name: _float(value) for name, value in description["val_accuracy"].items()},
            log_prior=tensors["personal.log_prior"],
            V=tensors.get("personal.V"),
            personal_lambda=_float(description["personal_lambda"]),
            teacher=teacher,
            gamma=_float(description["gamma"]),
            finetuned=finetuned,
        )
    except (*_DAMAGE, OSError, FkdError) as error:
        raise DataError(f"{folder} is not a readable personal model: {error}") from error


def _read_together(folder: Path) -> tuple[dict[str, Any], bytes]:
    """A description, and the tensors that belong to it."""
    for left in reversed(range(_TRIES)):
        description: dict[str, Any] = json.loads((folder / DESCRIPTION_FILE).read_bytes())
        named = description.get("tensors_sha256")  # earlier releases name none
        for name in (TENSORS_FILE, _NEXT_FILE):
            try:
                blob = (folder / name).read_bytes()
            except FileNotFoundError:
                continue
            if named is None or sha256_hex(blob) == named:
                return description, blob
        if left:
            time.sleep(_PAUSE_S)
    raise DataError(
        f"{TENSORS_FILE} is missing, or is not the one that {DESCRIPTION_FILE} names: it is damaged"
    )


def read_origin(folder: str | Path) -> Origin:
    """Where the personal model in a folder comes from.

    Raises:
        DataError: It does not say, or cannot be read.
    """
    path = Path(folder) / DESCRIPTION_FILE
    try:
        told = json.loads(path.read_bytes())["origin"]
        return Origin(
            run_id=str(told["run_id"]),
            client=str(told["client"]),
            classes=tuple(map(str, told["classes"])),
            extractor_sha256=str(told["extractor_sha256"]),
        )
    except (*_DAMAGE, OSError) as error:
        lacks = (
            f"it lacks {error}, as those of earlier releases do"
            if isinstance(error, KeyError)
            else str(error)
        )
        raise DataError(f"{path} does not say which classes and extractor its model has: {lacks}") from error


def _global_model(description: Mapping[str, Any], tensors: dict[str, NDArray[Any]]) -> GlobalModel:
    anchors = moments = None
    if "anchors" in description:
        anchors = AnchorCorrection(
            standardiser=Standardiser(tensors["anchors.mean"], tensors["anchors.std"]),
            coefficients=tensors["anchors.coefficients"],
            intercept=tensors["anchors.intercept"],
            strength=float(description["anchors"]["strength"]),
            loo_r2=float(description["anchors"]["loo_r2"]),
        )
    if "moment_features" in description:
        standardiser = Standardiser(tensors["moments.mean"], tensors["moments.std"])
        moments = MomentCorrection(
            tensors["moments.V"], standardiser, MomentFeatures(description["moment_features"])
        )
    return GlobalModel(
        state=_under("student.", tensors),
        config=RunConfig.model_validate(description["config"]),
        anchors=anchors,
        moments=moments,
        published=Published(description["published"]),
    )


def _taken_apart(teacher: TeacherModel) -> tuple[dict[str, Any], Tensors, bytes | None]:
    """A teacher as this folder has always kept it: what is said of it, its tensors, and its trees' text, if any."""
    tensors = teacher_tensors(teacher)
    trees = tensors.pop(TreeLearner.MARK, None)
    description = {
        "num_classes": teacher.num_classes,
        "n_val": int(tensors.pop("n_val")),
        "temperature": float(tensors.pop("temperature")),
        "threads": teacher.threads,
        "has_trees": trees is not None,
    }
    tensors["identity"] = tensors["identity"].astype(np.uint8)
    return description, tensors, None if trees is None else trees.tobytes()


def _put_together(
    description: Mapping[str, Any], tensors: Tensors, trees: bytes | None, num_features: int
) -> TeacherModel:
    whole = {
        **tensors,
        "n_val": np.array(int(description["n_val"])),
        "temperature": np.array(float(description["temperature"])),
        "identity": tensors["identity"].astype(np.bool_),
    }
    if trees is not None:
        whole[TreeLearner.MARK] = np.frombuffer(trees, np.uint8)
    return teacher_of(whole, int(description["num_classes"]), num_features, int(description["threads"]))


def _under(prefix: str, tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else value


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)
