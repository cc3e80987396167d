"""What a data set is once a source has been opened: classes, labels, sites, and pictures not yet decoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fkd_shards.pictures import Pictures


@dataclass(frozen=True)
class Split:
    """One published part of a data set.

    Attributes:
        pictures: n pictures.
        labels: int64 (n,) in 0..C-1.
        sites: str (n,), the natural site of each picture; None where the source has none.
    """

    pictures: Pictures
    labels: NDArray[np.int64]
    sites: NDArray[np.str_] | None = None


@dataclass(frozen=True)
class Source:
    """A data set: class names in global order, a training part and, where one is published, a test part."""

    classes: tuple[str, ...]
    train: Split
    test: Split | None = None
