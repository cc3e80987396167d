"""The teacher of the paper: LightGBM's trees (Eqs. 1-2), kept as LightGBM's own text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from fkd_client.booster_text import check_booster_text
from fkd_client.boosting import BinnedEmbeddings, BoosterParameters, SideBySide, common_parameters
from fkd_client.learner import Learner
from fkd_client.progress import Progress
from fkd_common.config import RunConfig
from fkd_common.tensors import Tensors


@dataclass(frozen=True, eq=False)
class TreeLearner(Learner):
    """Trees for each class, C_loc of them a boosting round."""

    KEYS = (
        "teacher_trees", "teacher_depth", "teacher_lr", "teacher_leaves", "teacher_min_leaf",
        "teacher_feature_fraction", "max_bin",
    )  # fmt: skip
    LIBRARY = f"lightgbm {lgb.__version__}"
    MARK = "booster"

    booster: lgb.Booster

    @classmethod
    def fit(
        cls,
        h: NDArray[np.float32],
        labels: NDArray[np.int64],
        parts: Mapping[int, NDArray[np.int64]],
        config: RunConfig,
        *,
        threads: int,
        seed: int,
        binned: BinnedEmbeddings | None,
        progress: Progress,
    ) -> dict[int, Self]:
        """See :class:`~fkd_client.learner.Learner`; embeddings are binned once: a part is a subset of them."""
        plan = SideBySide(len(parts), threads)
        parameters: BoosterParameters = {
            "objective": "multiclass",
            "num_class": int(labels.max()) + 1,
            "learning_rate": config.teacher_lr,
            "max_depth": config.teacher_depth,
            "num_leaves": config.teacher_leaves,
            **common_parameters(config, plan.threads_each, seed),
        }
        whole = (binned or BinnedEmbeddings(h, config, threads, seed)).with_labels(labels)
        sets = [
            whole if len(rows) == len(labels) else whole.subset(rows.tolist()).construct()
            for rows in parts.values()
        ]
        trees = config.teacher_trees
        fitted = plan.run(lambda number, told: cls(_grown(sets[number], parameters, trees, told)), progress)
        return dict(zip(parts, fitted, strict=True))

    @classmethod
    def of(cls, tensors: Tensors, num_classes: int, num_features: int) -> Self:
        """See :class:`~fkd_client.learner.Learner`."""
        text = tensors[cls.MARK].tobytes().decode()
        check_booster_text(text, num_classes, num_features)
        try:
            return cls(lgb.Booster(model_str=text))
        except lgb.basic.LightGBMError as error:
            raise ValueError(f"LightGBM refuses its trees: {error}") from error

    def tensors(self) -> Tensors:
        """LightGBM's text as uint8."""
        return {self.MARK: np.frombuffer(self.booster.model_to_string().encode(), np.uint8)}

    def margins(self, h: NDArray[np.float32], threads: int) -> NDArray[np.float64]:
        """Σ η·tree_m(h) of every class (Eq. 1)."""
        margins: NDArray[np.float64] = np.asarray(
            self.booster.predict(h, raw_score=True, num_threads=threads)
        )
        return margins.reshape(len(h), -1)


def _grown(
    dataset: lgb.Dataset, parameters: BoosterParameters, trees: int, progress: Progress
) -> lgb.Booster:
    def told(env: lgb.callback.CallbackEnv) -> None:
        progress((env.iteration + 1) / trees, "training the teacher")

    return lgb.train(dict(parameters), dataset, num_boost_round=trees, callbacks=[told])
