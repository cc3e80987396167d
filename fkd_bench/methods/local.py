"""Local training alone: what a site has without any federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_client.teacher import train_teacher
from fkd_client.teacher_tensors import teacher_of, teacher_tensors
from fkd_common.choices import KdTargets
from fkd_common.exchange_method import Aggregate, ExchangeMethod, Layout, Site, State, Upload
from fkd_common.tensors import Tensors

TEACHER = "teacher"
"""Where a site remembers its teacher."""


class Local(ExchangeMethod):
    """Every site's own teacher, calibrated on its D_val; rounds exchange nothing, so one is enough."""

    title = "Local only"
    source = "Zhang et al., CMC 88(2), 2026: the teacher of FKD-RTM (Eqs. 1-2), each site's alone"

    # -- server half ------------------------------------------------------------------------------

    def start(self) -> State:
        """Nothing."""
        return {}

    def broadcast(self, round_number: int, client: str) -> Sequence[str]:
        """Nothing."""
        return ()

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """Nothing."""
        return {}

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """Nothing comes of it."""
        return Aggregate({})

    def global_model(self, state: State) -> Tensors | None:
        """None: sites are scored one by one."""
        return None

    # -- client half ------------------------------------------------------------------------------

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """Train the teacher, if there is none yet."""
        site.memory[TEACHER] = self.personal_model(site, received)
        return {}

    def personal_model(self, site: Site, received: State) -> Tensors:
        """The teacher."""
        if TEACHER in site.memory:
            return site.memory[TEACHER]
        # Predictions on its own training data would only serve distillation.
        config = self.config.model_copy(update={"kd_targets": KdTargets.IN_SAMPLE, "beta": 0.0})
        teacher = train_teacher(
            site.train.inputs,
            site.train.labels,
            site.val.inputs,
            site.val.labels,
            self.num_classes,
            config,
            threads=site.threads,
            seed=site.seed,
            progress=site.progress,
        )
        return teacher_tensors(teacher.model)

    # -- both -------------------------------------------------------------------------------------

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """Logarithms of the teacher's calibrated probabilities."""
        p = teacher_of(model, self.num_classes, inputs.shape[1]).calibrated(inputs)
        return np.log(np.maximum(p, np.finfo(np.float32).tiny))
