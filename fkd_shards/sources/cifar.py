"""CIFAR-10 and CIFAR-100 as published: Python batches or binary batches; never downloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError
from fkd_shards.arrays import check_size, checked_classes, checked_labels
from fkd_shards.pictures import ArrayPictures
from fkd_shards.source import Source, Split
from fkd_shards.sources.inert_pickle import read_inert_pickle

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """Where one of the two data sets keeps what."""

    title: str
    num_classes: int
    python_folder: str
    python_train: tuple[str, ...]
    python_test: str
    python_meta: tuple[str, str]
    labels_key: str
    binary_folder: str
    binary_train: tuple[str, ...]
    binary_test: str
    binary_meta: str
    label_bytes: int


CIFAR10 = _Layout(
    title="CIFAR-10",
    num_classes=10,
    python_folder="cifar-10-batches-py",
    python_train=tuple(f"data_batch_{part}" for part in range(1, 6)),
    python_test="test_batch",
    python_meta=("batches.meta", "label_names"),
    labels_key="labels",
    binary_folder="cifar-10-batches-bin",
    binary_train=tuple(f"data_batch_{part}.bin" for part in range(1, 6)),
    binary_test="test_batch.bin",
    binary_meta="batches.meta.txt",
    label_bytes=1,
)

CIFAR100 = _Layout(
    title="CIFAR-100",
    num_classes=100,
    python_folder="cifar-100-python",
    python_train=("train",),
    python_test="test",
    python_meta=("meta", "fine_label_names"),
    labels_key="fine_labels",
    binary_folder="cifar-100-binary",
    binary_train=("train.bin",),
    binary_test="test.bin",
    binary_meta="fine_label_names.txt",
    label_bytes=2,
)


def is_cifar(path: Path, layout: _Layout) -> bool:
    """Whether a folder is, or holds, one of the published folders."""
    return _find(path, layout.python_folder) is not None or _find(path, layout.binary_folder) is not None


def read_cifar(path: Path, layout: _Layout) -> Source:
    """Open a published CIFAR folder, or the folder it was unpacked in: 32×32 RGB.

    Raises:
        DataError: Files are missing, damaged or of another shape, or a pickle is not inert.
    """
    folder = _find(path, layout.python_folder)
    if folder is not None:
        meta_file, names_key = layout.python_meta
        names = read_inert_pickle(_existing(folder / meta_file, layout)).get(names_key)
        classes = checked_classes(
            names if isinstance(names, list) else (), f"{folder / meta_file}: {names_key}"
        )
        train = [_python_batch(_existing(folder / name, layout), layout) for name in layout.python_train]
        test = [_python_batch(_existing(folder / layout.python_test, layout), layout)]
    else:
        folder = _find(path, layout.binary_folder)
        if folder is None:
            raise DataError(
                f"{path}: {layout.title} expected in {layout.python_folder}/ or {layout.binary_folder}/, "
                f"found neither"
            )
        text = _existing(folder / layout.binary_meta, layout).read_text(encoding="utf-8", errors="replace")
        classes = checked_classes(
            [line for line in text.splitlines() if line.strip()], str(folder / layout.binary_meta)
        )
        train = [_binary_batch(_existing(folder / name, layout), layout) for name in layout.binary_train]
        test = [_binary_batch(_existing(folder / layout.binary_test, layout), layout)]
    if len(classes) != layout.num_classes:
        raise DataError(f"{folder}: {layout.num_classes} class names expected, got {len(classes)}")
    return Source(classes, _joined(train), _joined(test))


def _find(path: Path, name: str) -> Path | None:
    if path.name == name and path.is_dir():
        return path
    return path / name if (path / name).is_dir() else None


def _existing(path: Path, layout: _Layout) -> Path:
    if not path.is_file():
        raise DataError(f"{path} is missing: unpack the whole {layout.title} archive")
    return path


def _python_batch(path: Path, layout: _Layout) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = read_inert_pickle(path)
    data, labels = batch.get("data"), batch.get(layout.labels_key)
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != _PIXELS
    ):
        raise DataError(f"{path}: data of uint8 n×{_PIXELS} expected")
    try:
        values = np.asarray(labels)
    except ValueError as error:
        raise DataError(f"{path}: {layout.labels_key} is not a list of integers") from error
    return data, checked_labels(values, len(data), layout.num_classes, f"{path}: {layout.labels_key}")


def _binary_batch(path: Path, layout: _Layout) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    row, size = layout.label_bytes + _PIXELS, path.stat().st_size
    check_size(size, str(path))
    if size % row:
        raise DataError(f"{path}: rows of {row} bytes expected, but its size is {size}: fetch it again")
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, row)
    # CIFAR-100 stores the coarse label first; the fine one is always the last before the pixels.
    labels = checked_labels(rows[:, layout.label_bytes - 1], len(rows), layout.num_classes, f"{path}: labels")
    return rows[:, layout.label_bytes :], labels


def _joined(batches: Sequence[tuple[NDArray[np.uint8], NDArray[np.int64]]]) -> Split:
    planes = np.concatenate([data for data, _ in batches]).reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return Split(ArrayPictures(images), np.concatenate([labels for _, labels in batches]))
