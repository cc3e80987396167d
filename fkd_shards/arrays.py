"""Arrays that come from outside: sizes capped before allocation, labels and names checked; never unpickled."""

from __future__ import annotations

import difflib
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from fkd_common.errors import DataError

MAX_ARRAY_BYTES = 8 * 2**30
"""Largest array read or built: a header that asks for more is refused before anything is allocated."""

MAX_CLASSES = 10_000
_MAX_CLASS_NAME = 200
_NAMED = 5


class NpzReader:
    """The arrays of one ``.npz`` file, each checked against its header before it is read.

    Raises:
        DataError: On opening or reading: not an .npz file, damaged, too large, or holding Python objects.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # zipfile has no common base for what a damaged file can raise
            raise DataError(f"{path} is not a readable .npz file: {reason_of(error)}") from error
        self.keys = {name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def read(self, key: str) -> NDArray[np.generic]:
        """The array stored under a key, of any plain dtype.

        Raises:
            DataError: No such key, damaged, too large, or an array of Python objects.
        """
        where = f"{self._path}: array {key!r}"
        if key not in self.keys:
            raise DataError(f"{where} is missing; the file has {', '.join(sorted(self.keys)) or 'none'}")
        try:
            stored = self._zip.getinfo(f"{key}.npy").file_size
            with self._zip.open(f"{key}.npy") as stream:
                _check_header(stream, stored, where)
            with self._zip.open(f"{key}.npy") as stream:
                array: NDArray[np.generic] = npy_format.read_array(stream, allow_pickle=False)
        except DataError:
            raise
        except Exception as error:  # nor has numpy's header parser
            raise DataError(f"{where} cannot be read: {reason_of(error)}") from error
        return array


def reason_of(error: Exception) -> str:
    """One line saying what an exception from outside means; its type where it says nothing."""
    if type(error).__name__ == "UnidentifiedImageError":  # Pillow's text names a memory address
        return "not a readable image"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_header(stream: IO[bytes], stored: int, where: str) -> None:
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy_format.read_array_header_1_0(stream)
    else:
        shape, _, dtype = npy_format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise DataError(f"{where} holds Python objects: save plain numbers or strings instead")
    num_bytes = math.prod(shape) * dtype.itemsize
    check_size(num_bytes, where)
    if stream.tell() + num_bytes != stored:
        raise DataError(f"{where} declares shape {shape} of {dtype}, but the file holds {stored} bytes")


def check_size(num_bytes: int, where: str) -> None:
    """Refuse an array that would exceed :data:`MAX_ARRAY_BYTES`.

    Raises:
        DataError: It would.
    """
    if num_bytes > MAX_ARRAY_BYTES:
        raise DataError(
            f"{where} would take {num_bytes} bytes, at most {MAX_ARRAY_BYTES} are read: "
            f"use fewer or smaller images"
        )


def check_still_whole(array: NDArray[np.generic]) -> None:
    """Refuse a memory-mapped array whose file has become shorter since it was opened.

    Reading a page beyond the file's end kills the process (SIGBUS), and Python cannot catch that: ask before
    every batch. An array in memory is always whole.

    Args:
        array: The whole of a file's array, not a part of it.

    Raises:
        DataError: The file was cut short or is gone.
    """
    if not isinstance(array, np.memmap) or array.filename is None:
        return
    path = Path(array.filename)
    try:
        held = path.stat().st_size
    except OSError:
        held = 0
    if held < array.offset + array.nbytes:
        raise DataError(
            f"{path} was cut short while it was in use: {array.offset + array.nbytes} bytes expected, {held} are left"
        )


def checked_images(array: NDArray[np.generic], where: str) -> NDArray[np.uint8]:
    """Images as uint8 n×H×W×{1,3}; grey images given as n×H×W get their channel axis.

    Raises:
        DataError: Another dtype or shape.
    """
    if array.dtype != np.uint8:
        raise DataError(f"{where}: uint8 images with values 0..255 expected, got {array.dtype}")
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or 0 in array.shape[1:]:
        raise DataError(
            f"{where}: images of shape n×H×W, n×H×W×1 or n×H×W×3 expected, "
            f"got {'×'.join(map(str, array.shape))}"
        )
    return array.astype(np.uint8, copy=False)


def checked_labels(
    values: NDArray[np.generic], num_images: int, num_classes: int | None, where: str
) -> NDArray[np.int64]:
    """Labels as int64 (n,) in 0..C-1; a trailing axis of length 1 is dropped, whole floats are accepted.

    Args:
        values: Labels as stored, (n,) or (n, 1).
        num_images: n, the number of images they belong to.
        num_classes: C, or None where only the labels themselves say it (then at most :data:`MAX_CLASSES`).
        where: What was read, for the message.

    Raises:
        DataError: Not one label per image, or some are NaN, fractional or out of range: rows are named.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (num_images,):
        raise DataError(
            f"{where}: one label for each of {num_images} images expected, got shape {values.shape}"
        )
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if values.dtype.kind not in "iuf":
        raise DataError(f"{where}: integer labels expected, got {values.dtype}")
    if values.dtype.kind == "f":
        numbers = values.astype(np.float64)
        _refuse_rows(
            values, ~(np.isfinite(numbers) & (numbers == np.floor(numbers))), f"{where}: integer labels"
        )
    limit = MAX_CLASSES if num_classes is None else num_classes
    out_of_range = (values < 0) | (values >= limit)  # type: ignore[operator]
    _refuse_rows(values, out_of_range, f"{where}: labels in 0..{limit - 1}")
    return values.astype(np.int64)


def _refuse_rows(values: NDArray[np.generic], wrong: NDArray[np.bool_], expected: str) -> None:
    rows = np.flatnonzero(wrong)
    if len(rows):
        named = ", ".join(f"row {row}: {values[row]}" for row in rows[:_NAMED])
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        raise DataError(f"{expected} expected, got {named}{more}: correct or remove these rows")


def checked_classes(names: Iterable[object], where: str) -> tuple[str, ...]:
    """Class names in their given order: at least one, printable, none twice.

    Raises:
        DataError: They are not.
    """
    classes = tuple(
        name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names
    )
    if not 1 <= len(classes) <= MAX_CLASSES:
        raise DataError(f"{where}: 1 to {MAX_CLASSES} classes expected, got {len(classes)}")
    for name in classes:
        if not name.strip() or not name.isprintable() or len(name) > _MAX_CLASS_NAME:
            raise DataError(
                f"{where}: class names are printable and 1..{_MAX_CLASS_NAME} long, got {name[:50]!r}"
            )
    if len(set(classes)) < len(classes):
        twice = sorted({name for name in classes if classes.count(name) > 1})
        raise DataError(f"{where}: class names given twice: {', '.join(twice)}")
    return classes


def _advice(unknown: Sequence[str], classes: Sequence[str]) -> str:
    """What to do about class names nobody knows."""
    by_folded = {name.casefold(): name for name in classes}
    for name in unknown:
        near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
        if near:
            return f"rename {name!r} to {by_folded[near[0]]!r}, or take it out of the data"
    return "take it out of the data, or rename it to a known class"


def map_labels(
    labels: NDArray[np.int64], own: Sequence[str], classes: Sequence[str], where: str
) -> NDArray[np.int64]:
    """Labels that index ``own`` class names, as indices into the global ``classes``.

    Args:
        labels: int64 (n,), indices into ``own``.
        own: Class names of the data, a subset of ``classes`` in any order.
        classes: Class names of the run, in global order.
        where: What was read, for the message.

    Returns:
        int64 (n,), indices into ``classes``.

    Raises:
        DataError: ``own`` has a class that ``classes`` lacks.
    """
    unknown = [name for name in own if name not in set(classes)]
    if unknown:
        raise DataError(
            f"{where}: unknown class {', '.join(map(repr, unknown))}; "
            f"the data has {', '.join(own)}, the known classes are {', '.join(classes)}: "
            f"{_advice(unknown, classes)}"
        )
    position = {name: index for index, name in enumerate(classes)}
    return np.array([position[name] for name in own], dtype=np.int64)[labels]
