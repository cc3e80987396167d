"""STL-10 and Fashion-MNIST as published, in raw binary files; never downloads."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError
from fkd_shards.arrays import check_size, checked_classes, checked_labels
from fkd_shards.pictures import ArrayPictures
from fkd_shards.source import Source, Split

_STL10_FOLDER = "stl10_binary"
_STL10_PIXELS = 3 * 96 * 96
_FASHION_FOLDERS = ("FashionMNIST/raw", "raw", ".")
_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_IDX_UINT8 = 0x08


def is_stl10(path: Path) -> bool:
    """Whether a folder is, or holds, ``stl10_binary``."""
    return (_stl10_folder(path) / "train_X.bin").is_file()


def _stl10_folder(path: Path) -> Path:
    return path if path.name == _STL10_FOLDER else path / _STL10_FOLDER


def read_stl10(path: Path) -> Source:
    """Open STL-10's labelled parts: 96×96 RGB, 10 classes; the unlabelled part is not read.

    Raises:
        DataError: Files are missing or damaged, or labels are outside 1..10.
    """
    folder = _stl10_folder(path)
    text = _raw(folder / "class_names.txt").tobytes().decode("utf-8", "replace")
    classes = checked_classes(text.split(), str(folder / "class_names.txt"))
    return Source(classes, _stl10_split(folder, "train", classes), _stl10_split(folder, "test", classes))


def _stl10_split(folder: Path, part: str, classes: tuple[str, ...]) -> Split:
    raw = _raw(folder / f"{part}_X.bin")
    if len(raw) % _STL10_PIXELS:
        raise DataError(
            f"{folder}/{part}_X.bin: images of {_STL10_PIXELS} bytes expected, its size is {len(raw)}"
        )
    # Stored channel, column, row.
    images = np.ascontiguousarray(raw.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1))
    stored = _raw(folder / f"{part}_y.bin").astype(np.int64) - 1  # published as 1..10
    labels = checked_labels(stored, len(images), len(classes), f"{folder}/{part}_y.bin, less one")
    return Split(ArrayPictures(images), labels)


def _raw(path: Path) -> NDArray[np.uint8]:
    try:
        check_size(path.stat().st_size, str(path))
        return np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def is_fashion_mnist(path: Path) -> bool:
    """Whether a folder is, or holds, ``FashionMNIST/raw``."""
    return _fashion_folder(path) is not None


def _fashion_folder(path: Path) -> Path | None:
    for inner in _FASHION_FOLDERS:
        if any((path / inner / f"train-images-idx3-ubyte{suffix}").is_file() for suffix in ("", ".gz")):
            return path / inner
    return None


def read_fashion_mnist(path: Path) -> Source:
    """Open Fashion-MNIST: 28×28 grey, 10 classes, plain or gzipped idx files.

    Raises:
        DataError: Files are missing or damaged.
    """
    folder = _fashion_folder(path)
    if folder is None:
        raise DataError(f"{path}: FashionMNIST/raw/train-images-idx3-ubyte[.gz] expected, not found")
    return Source(_FASHION_CLASSES, _fashion_split(folder, "train"), _fashion_split(folder, "t10k"))


def _fashion_split(folder: Path, part: str) -> Split:
    images = _idx(folder, f"{part}-images-idx3-ubyte", 3)[..., np.newaxis]
    where = f"{part}-labels-idx1-ubyte"
    stored = _idx(folder, where, 1)
    return Split(
        ArrayPictures(images), checked_labels(stored, len(images), len(_FASHION_CLASSES), f"{folder / where}")
    )


def _idx(folder: Path, name: str, num_axes: int) -> NDArray[np.uint8]:
    """An idx file: 0, 0, type, number of axes, big-endian int32 lengths, then the values."""
    path = folder / name if (folder / name).is_file() else folder / f"{name}.gz"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            header = stream.read(4 + 4 * num_axes)
            if header[:4] != bytes((0, 0, _IDX_UINT8, num_axes)) or len(header) != 4 + 4 * num_axes:
                raise DataError(f"{path}: an idx file of bytes with {num_axes} axes expected")
            shape = tuple(int(side) for side in np.frombuffer(header, ">u4", offset=4))
            size = int(np.prod(shape, dtype=object))
            check_size(size, str(path))
            body = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(body) != size or 0 in shape[1:]:
        raise DataError(
            f"{path}: {size} bytes expected after the header of shape {shape}, got {len(body)} or more"
        )
    return np.frombuffer(body, np.uint8).reshape(shape)
