"""Data sets in one ``.npz`` file: plain arrays, MedMNIST's names, or joined image files; never unpickles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError
from fkd_shards.arrays import NpzReader, checked_classes, checked_images, checked_labels
from fkd_shards.pictures import ArrayPictures, EncodedPictures, Pictures
from fkd_shards.source import Source, Split


@dataclass(frozen=True)
class _Unchecked:
    """One part as stored: pictures, how many there are, labels not yet checked, and sites."""

    pictures: Pictures
    count: int
    labels: NDArray[np.generic]
    sites: NDArray[np.str_] | None = None

    def checked(self, num_classes: int | None, where: str) -> Split:
        """The part with its labels checked."""
        return Split(self.pictures, checked_labels(self.labels, self.count, num_classes, where), self.sites)


def read_npz(path: Path, known_classes: tuple[str, ...] | None = None) -> Source:
    """Open an ``.npz`` data set.

    Accepted keys: ``x, y`` · ``x_train, y_train[, x_test, y_test]`` · MedMNIST's ``train_images,
    train_labels, val_…, test_…`` (validation joins training) · ``bytes_SPLIT, offsets_SPLIT,
    y_SPLIT[, source_SPLIT]``; each with or without ``classes``.

    Args:
        path: The file.
        known_classes: Class names that labels index where the file names none; without them classes are
            called "0", "1", … up to the largest label.

    Raises:
        DataError: Damaged file, other keys, wrong dtypes or shapes, or labels out of range.
    """
    with NpzReader(path) as npz:
        train, test = _read_parts(npz, path)
        names = npz.read("classes") if "classes" in npz.keys else None
    classes = known_classes if names is None else checked_classes(names.ravel(), f"{path}: classes")
    train_split = train.checked(None if classes is None else len(classes), f"{path}: training labels")
    if classes is None:
        classes = tuple(str(index) for index in range(int(train_split.labels.max(initial=0)) + 1))
    return Source(
        classes, train_split, None if test is None else test.checked(len(classes), f"{path}: test labels")
    )


def _read_parts(npz: NpzReader, path: Path) -> tuple[_Unchecked, _Unchecked | None]:
    if "bytes_train" in npz.keys:
        return _encoded(npz, path, "train"), _encoded(npz, path, "test") if "bytes_test" in npz.keys else None
    if "train_images" in npz.keys:
        test = _plain(npz, path, "test_images", "test_labels") if "test_images" in npz.keys else None
        return _medmnist_train(npz, path), test
    if "x_train" in npz.keys:
        test = _plain(npz, path, "x_test", "y_test") if "x_test" in npz.keys else None
        return _plain(npz, path, "x_train", "y_train"), test
    if "x" in npz.keys:
        return _plain(npz, path, "x", "y"), None
    raise DataError(
        f"{path}: arrays x and y, x_train and y_train, train_images and train_labels, or bytes_train, "
        f"offsets_train and y_train expected, got {', '.join(sorted(npz.keys)) or 'none'}"
    )


def _plain(npz: NpzReader, path: Path, images_key: str, labels_key: str) -> _Unchecked:
    images = checked_images(npz.read(images_key), f"{path}: {images_key}")
    return _Unchecked(ArrayPictures(images), len(images), npz.read(labels_key))


def _medmnist_train(npz: NpzReader, path: Path) -> _Unchecked:
    prefixes = [prefix for prefix in ("train", "val") if f"{prefix}_images" in npz.keys]
    images = [checked_images(npz.read(f"{prefix}_images"), f"{path}: {prefix}_images") for prefix in prefixes]
    labels = [npz.read(f"{prefix}_labels") for prefix in prefixes]
    try:
        joined, joined_labels = np.concatenate(images), np.concatenate(labels)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: training and validation parts do not fit together: {error}") from error
    return _Unchecked(ArrayPictures(joined), len(joined), joined_labels)


def _encoded(npz: NpzReader, path: Path, split: str) -> _Unchecked:
    joined, offsets = npz.read(f"bytes_{split}"), npz.read(f"offsets_{split}")
    if joined.dtype != np.uint8 or joined.ndim != 1:
        raise DataError(
            f"{path}: bytes_{split}: one row of uint8 expected, got {joined.dtype} {joined.shape}"
        )
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 1:
        raise DataError(f"{path}: offsets_{split}: integers expected, got {offsets.dtype} {offsets.shape}")
    bounds = offsets.astype(np.int64)
    if bounds[0] < 0 or bounds[-1] > len(joined) or (np.diff(bounds) < 0).any():
        raise DataError(f"{path}: offsets_{split} must rise from 0 or more to at most {len(joined)}")
    count = len(bounds) - 1
    sites = None
    if f"source_{split}" in npz.keys:
        sites = npz.read(f"source_{split}").astype(np.str_)
        if sites.shape != (count,):
            raise DataError(f"{path}: source_{split}: {count} entries expected, got shape {sites.shape}")
    pictures = EncodedPictures(joined.astype(np.uint8, copy=False), bounds, f"{path.name}:{split}")
    return _Unchecked(pictures, count, npz.read(f"y_{split}"), sites)
