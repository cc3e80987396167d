"""What every kind of teacher learns into: raw scores of the classes a site has; no calibration, no files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fkd_client.boosting import BinnedEmbeddings
from fkd_client.progress import Progress
from fkd_common.config import RunConfig
from fkd_common.tensors import Tensors


class Learner(ABC):
    """Fitted to embeddings and the classes present among them."""

    KEYS: ClassVar[tuple[str, ...]]
    """Keys of the run configuration that a fit reads."""
    LIBRARY: ClassVar[str]
    """What fits, and its version: another one may compute something else."""
    MARK: ClassVar[str]
    """A tensor that only this kind has."""

    @classmethod
    @abstractmethod
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
        """Fit one learner to each of several parts of the same samples.

        Args:
            h: (n, d) embeddings.
            labels: (n,) classes in 0 … C_loc−1.
            parts: By number, the rows that a learner is fitted to; at least two classes each.
            config: The run configuration.
            threads: What all fits may use together; their result does not depend on it.
            seed: Of everything random; a part's number is the rest of its seed.
            binned: `h` in bins, where that exists.
            progress: Told after every step of any of them.

        Returns:
            The learners, by number; all have C_loc scores, whatever classes their part has.

        Raises:
            DataError: There is nothing that could be learnt from such numbers.
        """

    @classmethod
    @abstractmethod
    def of(cls, tensors: Tensors, num_classes: int, num_features: int) -> Self:
        """The learner of :meth:`tensors`; other tensors are passed over.

        Args:
            tensors: By name.
            num_classes: C_loc.
            num_features: d.

        Raises:
            ValueError: Saying what is wrong with it.
            KeyError: A tensor is missing.
        """

    @abstractmethod
    def tensors(self) -> Tensors:
        """All that it has learnt, by name."""

    @abstractmethod
    def margins(self, h: NDArray[np.float32], threads: int) -> NDArray[np.float64]:
        """Raw scores of (n, d) embeddings, (n, C_loc), n at least 1; their softmax are probabilities (Eq. 2)."""
