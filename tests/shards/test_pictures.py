"""Odd but sound images are converted; unusable ones are named, counted and skipped up to the share allowed."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fkd_common.errors import DataError
from fkd_shards.bad_images import BadImage, refuse_if_too_many
from fkd_shards.pictures import ArrayPictures, FilePictures, decode, resized_square

from .published import distinct_images, png


def encoded(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def bomb_png(width: int, height: int) -> bytes:
    """A few dozen bytes whose header declares width×height pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def load_files(folder: Path, contents: dict[str, bytes]) -> tuple[NDArray[np.uint8], list[bool], list[str]]:
    files = []
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        files.append(folder / name)
    loaded = FilePictures(folder, files).load(np.arange(len(files)), None)
    return loaded.images, loaded.kept.tolist(), [str(image) for image in loaded.bad]


@pytest.mark.scenario(40)
@pytest.mark.parametrize(
    ("image", "kind", "pixel"),
    [
        (Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "TIFF", [255, 0, 0]),
        (Image.new("RGBA", (2, 2), (9, 8, 7, 0)), "PNG", [9, 8, 7]),
        (Image.new("LA", (2, 2), (90, 10)), "PNG", [90, 90, 90]),
        (Image.new("L", (2, 2), 77), "PNG", [77, 77, 77]),
        (Image.new("1", (2, 2), 1), "PNG", [255, 255, 255]),
        (Image.new("RGB", (2, 2), (1, 2, 3)).convert("P", palette=Image.Palette.ADAPTIVE), "PNG", [1, 2, 3]),
        (Image.fromarray(np.full((2, 2), 0x80FF, np.uint16)), "PNG", [128, 128, 128]),
        (Image.fromarray(np.full((2, 2), 0x80FF, np.uint16)), "TIFF", [128, 128, 128]),
    ],
    ids=["cmyk", "alpha", "grey-alpha", "grey", "bilevel", "palette", "16-bit-png", "16-bit-tiff"],
)
def test_every_sound_mode_becomes_rgb(image: Image.Image, kind: str, pixel: list[int]) -> None:
    """Scenario 40: CMYK, 16-bit and alpha are fine."""
    assert decode(encoded(image, kind), None)[0, 0].tolist() == pixel


@pytest.mark.scenario(40)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_unusable_images_are_named_and_the_rest_kept_in_order(tmp_path: Path) -> None:
    """Scenario 40: truncated, 0-byte, bomb and unreadable files."""
    good = distinct_images(2, 32, 32)
    whole = png(good[0])
    images, kept, bad = load_files(
        tmp_path,
        {
            "empty.png": b"",
            "good.png": whole,
            "truncated.png": whole[: len(whole) // 2],
            "bomb.png": bomb_png(10_000, 10_000),
            "huge-bomb.png": bomb_png(60_000, 60_000),
            "text.png": b"hello",
            "rare-format.png": encoded(Image.new("RGB", (32, 32)), "PCX"),
            "script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "good-too.png": png(good[1]),
        },
    )
    assert np.array_equal(images, good)
    assert kept == [False, True, False, False, False, False, False, False, True]
    assert [line.partition(":")[0] for line in bad] == [
        "empty.png",
        "truncated.png",
        "bomb.png",
        "huge-bomb.png",
        "text.png",
        "rare-format.png",
        "script.png",
    ]
    assert "empty file" in bad[0]
    assert "decompression bomb" in bad[2]
    assert "decompression bomb" in bad[3]


@pytest.mark.scenario(40)
def test_files_that_are_not_regular_are_bad_not_fatal(tmp_path: Path) -> None:
    """Scenario 40: unreadable file; a pipe (which would block), a dangling link and a folder named like an image."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "good.png").write_bytes(png(distinct_images(1)[0]))
    files = sorted(tmp_path.iterdir())
    loaded = FilePictures(tmp_path, files).load(np.arange(4), None)
    assert [image.name for image in loaded.bad] == ["folder.png", "link.png", "pipe.png"]
    assert len(loaded.images) == 1


def test_images_of_different_sizes_need_an_image_size(tmp_path: Path) -> None:
    contents = {"a.png": png(distinct_images(1, 4, 6)[0]), "b.png": png(distinct_images(1, 5, 5)[0])}
    with pytest.raises(DataError, match=r"a\.png is 6×4 and b\.png is 5×5: give --image-size"):
        load_files(tmp_path, contents)


def test_resizing_keeps_the_centre_of_the_longer_side() -> None:
    stripes = np.zeros((4, 12, 3), np.uint8)
    stripes[:, 4:8] = 250
    centre = np.asarray(resized_square(Image.fromarray(stripes), 4))
    assert (centre == 250).all()


@pytest.mark.parametrize(("width", "height"), [(90, 61), (61, 90), (33, 64), (200, 32)])
def test_resizing_equals_resizing_whole_and_cropping(width: int, height: int) -> None:
    size, image = 32, Image.fromarray(distinct_images(1, height, width)[0])
    scaled = (size * width // min(width, height), size * height // min(width, height))
    left, top = (round((side - size) / 2) for side in scaled)
    whole = image.resize(scaled, Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    difference = np.asarray(whole).astype(int) - np.asarray(resized_square(image, size))
    assert np.abs(difference).max() <= 1


@pytest.mark.scenario(40)
def test_a_long_strip_is_resized_without_its_resized_length() -> None:
    """Scenario 40: 1×1,000,000 pixels would become 32×32,000,000 if resized whole."""
    strip = Image.new("RGB", (1_000_000, 1), (5, 6, 7))
    assert np.asarray(resized_square(strip, 32)).tolist() == [[[5, 6, 7]] * 32] * 32


@pytest.mark.parametrize("channels", [1, 3])
def test_array_images_are_resized_too(channels: int) -> None:
    loaded = ArrayPictures(np.full((2, 8, 8, channels), 40, np.uint8)).load(np.array([1]), 4)
    assert loaded.images.shape == (1, 4, 4, channels)
    assert (loaded.images == 40).all()


@pytest.mark.scenario(40)
def test_share_of_bad_images_decides() -> None:
    """Scenario 40: skip up to --max-bad, then fail and list the first."""
    bad = [BadImage(f"{index}.png", "empty file") for index in range(7)]
    refuse_if_too_many(bad[:1], 100, 0.01, "photos")
    with pytest.raises(DataError, match=r"2 of 100 images.*1\.00%.*0\.png: empty file; 1\.png: empty file\)"):
        refuse_if_too_many(bad[:2], 100, 0.01, "photos")
    with pytest.raises(DataError, match=r"4\.png: empty file; and 2 more"):
        refuse_if_too_many(bad, 7, 1.0, "photos")
