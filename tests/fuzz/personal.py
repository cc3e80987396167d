"""The personal model's folder: description and tensors; the trees' text is LightGBM's own to read."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fkd_client.global_model import GlobalModel
from fkd_client.mlp_learner import MlpLearner
from fkd_client.personal import PersonalModel
from fkd_client.personal_file import (
    DESCRIPTION_FILE,
    TENSORS_FILE,
    Origin,
    load_personal,
    read_origin,
    save_personal,
)
from fkd_client.teacher import TeacherModel
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.method.calibration import Calibration
from fkd_common.method.student_layout import initial_student

from .framing import join, split
from .target import Target


def personal(data: bytes, folder: Path) -> None:
    description, tensors = split(data, 2)
    (folder / DESCRIPTION_FILE).write_bytes(description)
    (folder / TENSORS_FILE).write_bytes(tensors)
    with suppress(FkdError):
        read_origin(folder)
    model = load_personal(folder)
    model.scores(model.chosen, np.zeros((2, 3), np.float32))


def personal_seeds(folder: Path) -> dict[str, bytes]:
    config = RunConfig(hidden=(2,), dropout=(0.0,), personal=("prior",))
    base = GlobalModel(initial_student(0, 3, config.hidden, 2, config.norm), config)
    model = PersonalModel(
        base=base, config=config, chosen="global", val_accuracy={"global": 0.5, "prior": 0.25},
        log_prior=np.zeros(2), V=None, personal_lambda=float("nan"), teacher=None, gamma=float("nan"), finetuned=None,
    )  # fmt: skip
    mlp = MlpLearner((np.eye(3, 2), np.eye(2)), (np.zeros(2), np.zeros(2)))
    calibration = Calibration(np.ones(2), np.zeros(2), np.ones(2, np.bool_), 1.0)
    taught = replace(
        model, chosen="blend", teacher=TeacherModel(mlp, np.arange(2), 2, 5, calibration, 1), gamma=1.0
    )
    return {"plain": _saved(model, folder), "mlp": _saved(taught, folder)}


def _saved(model: PersonalModel, folder: Path) -> bytes:
    save_personal(model, folder, Origin("run", "site-a", ("cat", "dog"), "ab" * 32))
    described = json.loads((folder / DESCRIPTION_FILE).read_bytes())
    del described["tensors_sha256"]  # or every change to the tensors would end there
    return join(json.dumps(described).encode(), (folder / TENSORS_FILE).read_bytes())


TARGETS = (Target("personal", personal, personal_seeds),)
