"""Who is sampled into a round; knows no sessions and no state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fkd_common.config import RunConfig


def sample_cohort(config: RunConfig, ready: Sequence[str], round_number: int) -> tuple[str, ...]:
    """S_t: uniform without replacement, the same for equal seed, round and clients.

    Args:
        config: The run's.
        ready: Names of the clients that can be asked, sorted.
        round_number: t.

    Returns:
        Names, sorted.
    """
    size = max(config.min_cohort, round(config.clients_per_round * len(ready)))
    rng = np.random.default_rng([config.seed, round_number])
    return tuple(sorted(rng.choice(ready, size=min(size, len(ready)), replace=False).tolist()))
