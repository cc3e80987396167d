"""The handwritten digits that ship with scikit-learn; the only place that imports it."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from fkd_shards.pictures import ArrayPictures
from fkd_shards.source import Source, Split


def read_digits() -> Source:
    """1,797 grey 8×8 digits, 10 classes, no published test part; values 0..16 are scaled to 0..255."""
    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    classes = tuple(str(digit) for digit in range(10))
    return Source(classes, Split(ArrayPictures(images), bunch.target.astype(np.int64)))
