"""What a client's data holds, read as a run would read it; knows no run, so the classes are the data's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from fkd_shards.bad_images import BadImage
from fkd_shards.pictures import FORMATS, FilePictures
from fkd_shards.shard import SHARD_FILE, located, open_data
from fkd_shards.sources.folder import read_folder

_SIDE = 32
"""Images of a class folder are resized to this many pixels: what is wrong with one shows whatever the size."""

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True)
class Survey:
    """What data holds."""

    path: Path
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    """Usable images by class."""
    bad: tuple[BadImage, ...]
    """Images that cannot be used, and why."""
    smallest: Size
    """By number of pixels, as stored."""
    largest: Size

    @property
    def usable(self) -> int:
        """Images that can be used."""
        return sum(self.counts)

    @property
    def total(self) -> int:
        """Images looked at."""
        return self.usable + len(self.bad)


def survey(spec: str) -> Survey:
    """Read data whole, however many of its images are bad as long as one is not.

    Args:
        spec: What a person gives as `--data`.

    Raises:
        DataError: Nothing is there, it is empty or unlabelled, or none of it can be used.
    """
    path = located(spec)
    shard = open_data(spec, classes=None, image_size=_SIDE, max_bad=1.0)
    assert shard.classes is not None
    height, width = shard.images.shape[1:3]
    sizes = [(width, height)]
    if path.is_dir() and not (path / SHARD_FILE).exists():
        sizes = _sizes_of_files(path) or sizes
    return Survey(
        path=path,
        classes=shard.classes,
        counts=tuple(map(int, shard.class_counts(len(shard.classes)))),
        bad=shard.bad,
        smallest=min(sizes, key=_pixels),
        largest=max(sizes, key=_pixels),
    )


def _sizes_of_files(folder: Path) -> list[Size]:
    """Of the images in a class folder, as their headers say; those without a readable one are left out."""
    pictures = read_folder(folder).train.pictures
    assert isinstance(pictures, FilePictures)
    sizes = []
    for file in pictures.files:
        if not file.is_file():  # opening a pipe would wait
            continue
        try:
            with Image.open(file, formats=FORMATS) as image:
                sizes.append(image.size)
        except Exception:  # noqa: S112 - it is among the bad, with a reason
            continue
    return sizes


def _pixels(size: Size) -> int:
    return size[0] * size[1]
