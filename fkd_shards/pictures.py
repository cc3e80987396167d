"""From stored pictures to uint8 arrays: decoding, RGB conversion, resizing; decides nothing about labels."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fkd_common.errors import DataError
from fkd_shards.arrays import check_size, reason_of
from fkd_shards.bad_images import BadImage

MAX_PIXELS = 64_000_000
"""Images of more pixels count as decompression bombs and are never decoded."""

MAX_FILE_BYTES = 256 * 2**20

# Pillow would also try EPS (which starts Ghostscript) and dozens of rarely fuzzed decoders.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_CHUNK = 256
_MAX_THREADS = 8


@dataclass(frozen=True)
class Loaded:
    """Decoded pictures.

    Attributes:
        images: uint8 n×H×W×{1,3}, the usable pictures in the order asked for.
        kept: bool, one per picture asked for: whether it is among ``images``.
        bad: The others, with reasons.
    """

    images: NDArray[np.uint8]
    kept: NDArray[np.bool_]
    bad: tuple[BadImage, ...]


class Pictures(Protocol):
    """Pictures that can be loaded by position."""

    def load(self, indices: NDArray[np.int64], image_size: int | None) -> Loaded:
        """The pictures at ``indices``, as size×size squares where ``image_size`` is given."""
        ...


@dataclass(frozen=True)
class ArrayPictures:
    """Pictures that are already an array: uint8 n×H×W×{1,3}."""

    images: NDArray[np.uint8]

    def load(self, indices: NDArray[np.int64], image_size: int | None) -> Loaded:
        """See :class:`Pictures`; none is ever bad."""
        images = self.images[indices]
        if image_size is not None and images.shape[1:3] != (image_size, image_size):
            check_size(len(images) * image_size**2 * images.shape[3], "the resized images")
            resized = np.empty((len(images), image_size, image_size, images.shape[3]), np.uint8)
            for row, image in enumerate(images):
                square = resized_square(
                    Image.fromarray(image.squeeze(axis=2) if image.shape[2] == 1 else image), image_size
                )
                resized[row] = np.asarray(square).reshape(resized.shape[1:])
            images = resized
        return Loaded(images, np.ones(len(indices), dtype=bool), ())


@dataclass(frozen=True)
class EncodedPictures:
    """Image files joined into one buffer: picture i is ``joined[offsets[i]:offsets[i + 1]]``."""

    joined: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    name: str

    def load(self, indices: NDArray[np.int64], image_size: int | None) -> Loaded:
        """See :class:`Pictures`."""

        def decode_at(index: int) -> NDArray[np.uint8]:
            return decode(self.joined[self.offsets[index] : self.offsets[index + 1]].tobytes(), image_size)

        return _decode_all(indices, decode_at, lambda index: f"{self.name}[{index}]")


@dataclass(frozen=True)
class FilePictures:
    """Image files in a folder; they are named relative to ``root``."""

    root: Path
    files: Sequence[Path]

    def load(self, indices: NDArray[np.int64], image_size: int | None) -> Loaded:
        """See :class:`Pictures`."""

        def decode_at(index: int) -> NDArray[np.uint8]:
            return decode(_file_bytes(self.files[index]), image_size)

        return _decode_all(indices, decode_at, lambda index: str(self.files[index].relative_to(self.root)))


def _file_bytes(path: Path) -> bytes:
    # A FIFO or device named like an image would block or never end.
    if not path.is_file():
        raise ValueError("not a regular file" if path.exists() else "no such file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"file larger than {MAX_FILE_BYTES} bytes")
    return path.read_bytes()


def decode(encoded: bytes, image_size: int | None) -> NDArray[np.uint8]:
    """One image file as uint8 H×W×3 RGB.

    Args:
        encoded: Bytes of the file.
        image_size: Edge of the centre square returned, in pixels; None keeps the size.

    Raises:
        Exception: Whatever Pillow finds wrong; ValueError for bombs and float pixels.
    """
    if not encoded:
        raise ValueError("empty file")
    with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(
                f"{width}×{height} pixels: a decompression bomb? At most {MAX_PIXELS} are decoded"
            )
        rgb = _as_rgb(image)
    return np.asarray(rgb if image_size is None else resized_square(rgb, image_size))


def _as_rgb(image: Image.Image) -> Image.Image:
    """RGB whatever was stored; alpha is dropped, 16-bit grey keeps its upper byte (Pillow would saturate)."""
    if image.mode == "F":
        raise ValueError("floating-point pixels: store 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("32-bit pixels: store 8 or 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def resized_square(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to ``size`` pixels (bilinear, antialiased), then crop the centre square.

    Both happen in one resampling, so that a 1×60,000,000 strip never exists at its resized length.
    """
    width, height = image.size
    if (width, height) == (size, size):
        return image
    shorter = min(width, height)
    box: list[float] = []
    for side in (width, height):
        scaled = size * side // shorter
        start = round((scaled - size) / 2)
        box.append(start * side / scaled)
        box.append((start + size) * side / scaled)
    left, right, top, bottom = box
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, right, bottom))


def _decode_all(
    indices: NDArray[np.int64],
    decode_at: Callable[[int], NDArray[np.uint8]],
    name_of: Callable[[int], str],
) -> Loaded:
    """Decode in a few threads straight into one array; Pillow leaves Python's lock while it decodes."""
    bad: dict[int, BadImage] = {}
    odd_sizes: dict[int, tuple[int, ...]] = {}

    def attempt(row: int) -> NDArray[np.uint8] | None:
        index = int(indices[row])
        try:
            return decode_at(index)
        except Exception as error:  # a hostile file can make a decoder raise anything
            bad[row] = BadImage(name_of(index), reason_of(error))
            return None

    first, start = None, 0
    while first is None and start < len(indices):
        first = attempt(start)
        start += 1
    if first is None:
        return Loaded(
            np.empty((0, 1, 1, 3), np.uint8), np.zeros(len(indices), dtype=bool), tuple(bad.values())
        )
    check_size(len(indices) * first.size, "the decoded images")
    images = np.empty((len(indices), *first.shape), np.uint8)
    images[start - 1] = first

    def decode_rows(rows: range) -> None:
        for row in rows:
            image = attempt(row)
            if image is None:
                continue
            if image.shape == images.shape[1:]:
                images[row] = image
            else:
                odd_sizes[row] = image.shape

    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        chunks = (range(at, min(at + _CHUNK, len(indices))) for at in range(start, len(indices), _CHUNK))
        list(pool.map(decode_rows, chunks))
    if odd_sizes:
        row = min(odd_sizes)
        raise DataError(
            f"images of one size expected, but {name_of(int(indices[start - 1]))} is "
            f"{first.shape[1]}×{first.shape[0]} and {name_of(int(indices[row]))} is "
            f"{odd_sizes[row][1]}×{odd_sizes[row][0]}: give --image-size N"
        )
    kept = np.ones(len(indices), dtype=bool)
    kept[list(bad)] = False
    return Loaded(images[kept] if bad else images, kept, tuple(bad[row] for row in sorted(bad)))
