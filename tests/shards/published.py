"""Tiny data sets in each published format, written by hand; every image of a set is different."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def distinct_images(count: int, height: int = 4, width: int = 4, channels: int = 3) -> NDArray[np.uint8]:
    """Image i is filled with noise of seed i, so no two are equal."""
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def labels_of(count: int, num_classes: int) -> NDArray[np.int64]:
    """Sorted by class, as many published sets are."""
    return np.sort(np.arange(count) % num_classes).astype(np.int64)


def write_npz(path: Path, count: int = 60, num_classes: int = 3) -> Path:
    np.savez(path, x=distinct_images(count), y=labels_of(count, num_classes))
    return path


def png(image: NDArray[np.uint8], suffix: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, suffix, lossless=True)
    return stream.getvalue()


def write_encoded(path: Path, files: list[bytes], labels: list[int], sources: list[int]) -> Path:
    offsets = np.cumsum([0, *map(len, files)])
    np.savez(
        path,
        bytes_train=np.frombuffer(b"".join(files), np.uint8),
        offsets_train=offsets,
        y_train=np.array(labels),
        source_train=np.array(sources),
        classes=np.array(["cat", "dog"]),
    )
    return path


def write_class_folder(root: Path, counts: dict[str, int], size: tuple[int, int] = (4, 4)) -> Path:
    """Class folders of PNG files; `counts` keys may be nested, as in ``site/class``."""
    images = iter(distinct_images(sum(counts.values()), *size))
    for name, count in counts.items():
        folder = root / name
        folder.mkdir(parents=True)
        for index in range(count):
            (folder / f"{index}.png").write_bytes(png(next(images)))
    return root


def cifar_rows(count: int) -> NDArray[np.uint8]:
    """Rows as CIFAR stores them: planes of red 10 (99 in row 2, column 5), green 20 and blue i."""
    rows = np.empty((count, 3, 1024), np.uint8)
    rows[:, 0], rows[:, 1], rows[:, 2] = 10, 20, np.arange(count)[:, np.newaxis]
    rows[:, 0, 2 * 32 + 5] = 99
    return rows.reshape(count, 3072)


def write_cifar10(root: Path, protocol: int = 2) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"):
        batch = {"data": cifar_rows(10), "labels": list(range(10)), "filenames": ["a.png"] * 10}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    names = [f"class {index}" for index in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=protocol))
    return root


def write_cifar100(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        batch = {"data": cifar_rows(100), "fine_labels": list(range(100)), "coarse_labels": [0] * 100}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    names = {"fine_label_names": [f"class {index}" for index in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return root


def write_cifar10_binary(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    rows = np.concatenate([np.arange(10, dtype=np.uint8)[:, np.newaxis], cifar_rows(10)], axis=1)
    for name in (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class {index}" for index in range(10)) + "\n\n")
    return root


def write_stl10(root: Path) -> Path:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    stored = np.zeros((10, 3, 96, 96), np.uint8)
    stored[:, 1, 5, 7] = 200  # green, column 5, row 7
    for part in ("train", "test"):
        (folder / f"{part}_X.bin").write_bytes(stored.tobytes())
        (folder / f"{part}_y.bin").write_bytes(np.arange(1, 11, dtype=np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join(f"class{index}" for index in range(10)))
    return root


def write_fashion_mnist(root: Path, zipped: bool) -> Path:
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    images = np.repeat(np.arange(10, dtype=np.uint8), 28 * 28).reshape(10, 28, 28)
    for part in ("train", "t10k"):
        for name, array in (
            (f"{part}-images-idx3", images),
            (f"{part}-labels-idx1", np.arange(10, dtype=np.uint8)),
        ):
            header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
            content = header + array.tobytes()
            if zipped:
                (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(content))
            else:
                (folder / f"{name}-ubyte").write_bytes(content)
    return root
