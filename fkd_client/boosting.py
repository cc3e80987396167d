"""What LightGBM is told by teacher and residual learners alike; nothing is trained here."""

from __future__ import annotations

from fkd_common.config import RunConfig

BoosterParameters = dict[str, int | float | bool | str]


def common_parameters(config: RunConfig, threads: int, seed: int) -> BoosterParameters:
    """Binning, sampling and determinism of every booster.

    Args:
        config: the run configuration.
        threads: threads of LightGBM; its result does not depend on them.
        seed: seed of feature sampling.
    """
    return {
        "min_data_in_leaf": config.teacher_min_leaf,
        "feature_fraction": config.teacher_feature_fraction,
        "max_bin": config.max_bin,
        "feature_pre_filter": False,  # a tiny shard would otherwise lose every feature at binning
        "force_col_wise": True,
        "deterministic": True,
        "num_threads": threads,
        "seed": seed,
        "verbosity": -1,
    }
