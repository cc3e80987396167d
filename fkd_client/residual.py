"""The class-wise residual learners g_k (after Eq. 11): trees on (h, r_c), predicted on the anchors; no fusion."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from fkd_client.boosting import BinnedEmbeddings, BoosterParameters, common_parameters
from fkd_client.progress import Progress, silent
from fkd_common.config import RunConfig


class ResidualLearners:
    """One LightGBM regressor per class on one dataset, binned once for all classes and all residual rounds.

    Embeddings never change during a run (the extractor is frozen), so only labels are swapped.
    Not to be shared between threads: it is one client's.
    """

    def __init__(
        self,
        h: NDArray[np.float32],
        config: RunConfig,
        *,
        threads: int,
        seed: int,
        binned: BinnedEmbeddings | None = None,
    ) -> None:
        """Learners on (n, d) embeddings; `binned` are the same in bins, where they exist already."""
        self._trees = config.residual_trees
        self._parameters: BoosterParameters = {
            "objective": "regression",
            "learning_rate": config.residual_lr,
            "max_depth": config.residual_depth,
            "num_leaves": 2 ** min(config.residual_depth, 17),  # LightGBM takes no more
            **common_parameters(config, threads, seed),
        }
        binned = binned or BinnedEmbeddings(h, config, threads, seed)
        self._dataset = binned.with_labels(np.zeros(len(h), np.float32))

    def fit_and_predict(
        self, r: NDArray[np.floating], anchor_embeddings: NDArray[np.float32], progress: Progress = silent
    ) -> NDArray[np.float32]:
        """R̂_k: fit every class's residuals, predict them on the anchors.

        Args:
            r: (n, C) prepared residuals (Eq. 11); a column of zeros is an absent class.
            anchor_embeddings: (m, d) embeddings of the anchors.
            progress: told after every class.

        Returns:
            (m, C) float32; a zero column stays zero and is not trained.
        """
        num_classes = r.shape[1]
        predicted = np.zeros((len(anchor_embeddings), num_classes), np.float32)
        for c in range(num_classes):
            if np.any(r[:, c]):
                self._dataset.set_label(r[:, c].astype(np.float32))
                booster = lgb.train(dict(self._parameters), self._dataset, num_boost_round=self._trees)
                predicted[:, c] = booster.predict(
                    anchor_embeddings, num_threads=self._parameters["num_threads"]
                )
            progress((c + 1) / num_classes, "fitting residuals")
        return predicted


def fit_and_predict_residuals(
    h: NDArray[np.float32],
    r: NDArray[np.floating],
    anchor_embeddings: NDArray[np.float32],
    config: RunConfig,
    *,
    threads: int,
    seed: int,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """One residual round from scratch; see :class:`ResidualLearners` for several on the same embeddings."""
    learners = ResidualLearners(h, config, threads=threads, seed=seed)
    return learners.fit_and_predict(r, anchor_embeddings, progress)
