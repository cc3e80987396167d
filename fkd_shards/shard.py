"""One client's data: shard folders and all that `--data` accepts; decodes and divides nothing itself."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError
from fkd_shards.arrays import checked_classes, checked_images, checked_labels, map_labels, reason_of
from fkd_shards.bad_images import DEFAULT_MAX_BAD, BadImage, refuse_if_too_many
from fkd_shards.json_files import ShardFile

IMAGES_FILE, LABELS_FILE, SHARD_FILE, MANIFEST_FILE = (
    "images.npy",
    "labels.npy",
    "shard.json",
    "manifest.json",
)
DATA_ENVIRONMENT, DATA_FOLDER = "FKD_DATA", "shards"


@dataclass(frozen=True)
class Shard:
    """Images of one client, or of the test, anchor or public part.

    Attributes:
        name: What messages call it.
        images: uint8 n×H×W×{1,3}; may be a read-only memory map.
        labels: int64 (n,) in 0..C-1; None for unlabelled anchors.
        classes: Class names that labels index, in order; None where unknown.
        sha256: Hex SHA-256 of the image bytes followed by the label bytes.
        bad: Images that were left out.
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...] | None
    sha256: str
    bad: tuple[BadImage, ...] = ()

    @property
    def num_samples(self) -> int:
        """Number n of images."""
        return len(self.images)

    def class_counts(self, num_classes: int) -> NDArray[np.int64]:
        """Samples of each class, int64 (C,); all zero for unlabelled shards."""
        labels = np.empty(0, np.int64) if self.labels is None else self.labels
        return np.bincount(labels, minlength=num_classes)


def content_sha256(images: NDArray[np.uint8], labels: NDArray[np.int64] | None) -> str:
    """Hex SHA-256 of the image bytes followed by the little-endian int64 label bytes, if any."""
    digest = hashlib.sha256(np.ascontiguousarray(images).data)
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()


def write_shard(
    folder: Path,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    *,
    classes: tuple[str, ...] | None,
    source: str,
) -> ShardFile:
    """Write a shard folder named after its last path component.

    Args:
        folder: Folder to create; its parents exist.
        images: uint8 n×H×W×{1,3}.
        labels: int64 (n,) in 0..C-1, or None for an unlabelled part.
        classes: Class names in global order.
        source: Where the images came from.

    Returns:
        What was written to ``shard.json``.
    """
    height, width, channels = images.shape[1:]
    content = ShardFile(
        name=folder.name,
        classes=classes,
        num_samples=len(images),
        image_shape=(height, width, channels),
        source=source,
        sha256=content_sha256(images, labels),
    )
    folder.mkdir()
    np.save(folder / IMAGES_FILE, np.ascontiguousarray(images), allow_pickle=False)
    if labels is not None:
        np.save(folder / LABELS_FILE, labels.astype("<i8"), allow_pickle=False)
    content.write(folder / SHARD_FILE)
    return content


def read_shard(folder: Path | str, *, verify: bool = False) -> Shard:
    """Open a shard folder; images stay on disk, memory-mapped.

    Args:
        folder: What :func:`write_shard` wrote.
        verify: Also read everything once and compare the SHA-256.

    Raises:
        DataError: Files are missing, damaged or do not fit each other, or there are no samples.
    """
    folder = Path(folder)
    described = ShardFile.read(folder / SHARD_FILE)
    where = str(folder)
    if described.num_samples == 0:
        raise DataError(f"{where} has no samples: a shard needs at least one")
    classes = None if described.classes is None else checked_classes(described.classes, where)
    images = checked_images(_mapped(folder / IMAGES_FILE), str(folder / IMAGES_FILE))
    expected = (described.num_samples, *described.image_shape)
    if images.shape != expected:
        raise DataError(
            f"{folder / IMAGES_FILE}: shape {expected} expected from {SHARD_FILE}, got {images.shape}"
        )
    labels = None
    if (folder / LABELS_FILE).exists():
        stored = np.array(_mapped(folder / LABELS_FILE))
        num_classes = None if classes is None else len(classes)
        labels = checked_labels(stored, len(images), num_classes, str(folder / LABELS_FILE))
    if verify and content_sha256(images, labels) != described.sha256:
        raise DataError(
            f"{where} is damaged: its content does not match the sha256 in {SHARD_FILE}: copy it again"
        )
    return Shard(described.name, images, labels, classes, described.sha256)


def _mapped(path: Path) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's header parser lets a damaged file raise anything
        raise DataError(
            f"{path} cannot be read: {reason_of(error)}: copy or create the folder anew"
        ) from error
    if not isinstance(array, np.ndarray):  # an .npz under the wrong name
        raise DataError(f"{path}: a single array expected")
    return array


def open_data(
    spec: str, *, classes: tuple[str, ...] | None, image_size: int, max_bad: float = DEFAULT_MAX_BAD
) -> Shard:
    """Open what a person gives as `--data`: a shard folder or its name, an ``.npz`` file or a class folder.

    Names are looked for as a path, then in ``$FKD_DATA``, then in ``./shards``. Of an ``.npz`` file or folder
    with training and test parts, the training part is taken. Labels come back in the order of ``classes``.

    Args:
        spec: Path or name.
        classes: Class names of the run, in global order; the data may lack some but not add any. None: the data's
            own, or numbers where it names none.
        image_size: Edge in pixels to which images of a class folder are resized and cropped.
        max_bad: Share of unusable images accepted; they are listed in the result.

    Raises:
        DataError: Nothing is there, it is empty or unlabelled, has unknown classes or too many bad images.
    """
    path = located(spec)
    if path.is_dir() and ((path / SHARD_FILE).exists() or (path / IMAGES_FILE).exists()):
        shard = read_shard(path)
    elif (path / MANIFEST_FILE).exists():
        raise DataError(f"{path} holds several shards: name one of them, as in {path / 'shard0'}")
    else:
        shard = _read_unprepared(path, classes, image_size, max_bad)
    if shard.labels is None:
        raise DataError(f"{path} has no {LABELS_FILE}: clients train on labelled shards, not on anchors")
    if classes is None:
        classes = shard.classes or tuple(map(str, range(int(shard.labels.max()) + 1)))
    if shard.classes is None:
        checked_labels(shard.labels, shard.num_samples, len(classes), str(path))
    if shard.classes is None or shard.classes == classes:
        return replace(shard, classes=classes)
    labels = map_labels(shard.labels, shard.classes, classes, str(path))
    return replace(shard, labels=labels, classes=classes, sha256=content_sha256(shard.images, labels))


def check_exists(spec: str) -> None:
    """Refuse a path or name that leads nowhere, before anything else is done.

    Raises:
        DataError: Saying where it was looked for.
    """
    located(spec)


def located(spec: str) -> Path:
    """Where the data is that a person gives as `--data`.

    Raises:
        DataError: Nowhere; saying where it was looked for.
    """
    places = [Path(spec).expanduser()]
    folder = os.environ.get(DATA_ENVIRONMENT)
    if folder:
        places.append(Path(folder).expanduser() / spec)
    places.append(Path(DATA_FOLDER) / spec)
    for place in places:
        if spec and place.exists():
            return place
    unset = "" if folder else f" (${DATA_ENVIRONMENT} is not set)"
    looked = ", ".join(str(place.absolute()) for place in places)
    raise DataError(f"no data {spec!r}: looked for {looked}{unset}: make shards with `fkd-shards create`")


def _read_unprepared(path: Path, classes: tuple[str, ...] | None, image_size: int, max_bad: float) -> Shard:
    # Only here are pictures decoded: who reads shard folders alone needs no Pillow.
    from fkd_shards.sources.folder import read_folder
    from fkd_shards.sources.npz import read_npz

    if path.is_dir():
        source, size = read_folder(path), image_size
        if classes is not None:
            map_labels(np.empty(0, np.int64), source.classes, classes, str(path))  # refuse before decoding
    elif path.suffix == ".npz":
        source, size = read_npz(path, known_classes=classes), None
    else:
        raise DataError(f"{path}: a shard folder, a class folder or an .npz file expected")
    total = len(source.train.labels)
    if total == 0:
        raise DataError(f"{path} has no samples: a shard needs at least one")
    loaded = source.train.pictures.load(np.arange(total), size)
    refuse_if_too_many(loaded.bad, total, max_bad, str(path))
    labels = source.train.labels[loaded.kept]
    sha256 = content_sha256(loaded.images, labels)
    return Shard(path.name, loaded.images, labels, source.classes, sha256, loaded.bad)
