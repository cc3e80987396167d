"""Labels that are wrong on purpose, for experiments with abnormal clients; labels in, labels out, no files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fkd_common.errors import UsageError
from fkd_shards.partitions import Indices
from fkd_shards.plan import shard_name


@dataclass(frozen=True)
class LabelFaults:
    """What happens to the labels of clients' shards; test and public parts keep theirs.

    Raises:
        UsageError: A share is out of range.
    """

    flipped_clients: float = 0.0
    """Share of the clients, rounded, whose every label c becomes C - 1 - c (Tolpegin et al., ESORICS 2020)."""
    label_noise: float = 0.0
    """Share of every client's labels, rounded, that become another class, each with equal probability."""

    def __post_init__(self) -> None:
        for flag, share in (("flipped-clients", self.flipped_clients), ("label-noise", self.label_noise)):
            if not 0 <= share <= 1:
                raise UsageError(f"--{flag} is a share in 0..1, got {share}")

    def flipped_shards(self, clients: int, rng: np.random.Generator) -> frozenset[str]:
        """Names of the shards whose labels are flipped: a smaller share's are among a larger share's."""
        order = rng.permutation(clients)
        return frozenset(shard_name(int(client)) for client in order[: round(self.flipped_clients * clients)])

    def applied(
        self, labels: Indices, num_classes: int, rng: np.random.Generator, *, flipped: bool
    ) -> Indices:
        """A shard's labels with their faults.

        Args:
            labels: int64 (n,) in 0..C-1; left as they are.
            num_classes: C.
            rng: Source of the noise.
            flipped: Whether this shard is one of the flipped.

        Returns:
            int64 (n,) in 0..C-1.
        """
        wrong = num_classes - 1 - labels if flipped else labels.copy()
        count = round(self.label_noise * len(labels)) if num_classes > 1 else 0
        noisy = rng.permutation(len(labels))[:count]
        wrong[noisy] = (wrong[noisy] + rng.integers(1, max(num_classes, 2), count)) % num_classes
        return wrong
