"""Arrays as zstd frames of their byte planes: all lowest bytes first, then the next; lossless, and bounded on reading.

Exponents and signs resemble each other more than they resemble mantissas, so planes shrink where values do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from fkd_common.errors import InvalidUploadError

_LEVEL = 3


def squeeze(array: NDArray[Any]) -> NDArray[np.uint8]:
    """An array's values as one zstd frame, (size,) uint8; none as no byte at all."""
    if not array.size:
        return np.empty(0, dtype=np.uint8)
    flat = np.ascontiguousarray(array).reshape(-1)
    planes = flat.view(np.uint8).reshape(flat.size, flat.itemsize).T
    return np.frombuffer(zstandard.ZstdCompressor(level=_LEVEL).compress(planes.tobytes()), dtype=np.uint8)


def expand(squeezed: NDArray[np.uint8], count: int, dtype: str) -> NDArray[Any]:
    """What :func:`squeeze` was given, flat; no more room is taken than `count` values need, whatever a frame holds.

    Raises:
        InvalidUploadError: It is not one whole frame of so many values, with their number in its header.
    """
    item, frame = np.dtype(dtype).itemsize, squeezed.tobytes()
    if not frame and not count:
        return np.empty(0, dtype=dtype)
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size != count * item:
            came = "an untold number of" if size == zstandard.CONTENTSIZE_UNKNOWN else size
            raise InvalidUploadError(
                f"a packed tensor holds {came} bytes; expected {count * item}", reason="WRONG_SIZE"
            )
        if not count:
            raise InvalidUploadError("a packed tensor holds an empty zstd frame; expected no byte at all")
        found = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidUploadError(f"not a readable zstd frame: {error}") from error
    planes = np.frombuffer(found, dtype=np.uint8).reshape(item, count)
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)


class Parts:
    """The tensors of a packed message, taken out one by one; whatever is left over is one too many."""

    def __init__(self, packed: Mapping[str, NDArray[Any]]) -> None:
        self._left = dict(packed)

    def take(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """A tensor of this shape and dtype.

        Raises:
            InvalidUploadError: It is missing or another.
        """
        array = self._of(name, dtype)
        if array.shape != shape:
            raise InvalidUploadError(
                f"tensor {name!r}: expected shape {shape}, got {array.shape}", reason="WRONG_SHAPE"
            )
        return array

    def take_squeezed(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """What a squeezed tensor holds, in this shape and dtype.

        Raises:
            InvalidUploadError: It is missing, or holds something else.
        """
        array = self._of(name, "uint8")
        if array.ndim != 1:
            raise InvalidUploadError(
                f"tensor {name!r}: expected one dimension, got shape {array.shape}", reason="WRONG_SHAPE"
            )
        return expand(array, math.prod(shape), dtype).reshape(shape)

    def finish(self) -> None:
        """Refuse what nobody took.

        Raises:
            InvalidUploadError: Naming it.
        """
        if self._left:
            raise InvalidUploadError(
                f"tensor names differ: missing none, unexpected {sorted(self._left)}", reason="WRONG_NAMES"
            )

    def _of(self, name: str, dtype: str) -> NDArray[Any]:
        array = self._left.pop(name, None)
        if array is None:
            raise InvalidUploadError(f"tensor names differ: missing {name!r}", reason="WRONG_NAMES")
        if array.dtype != np.dtype(dtype):
            raise InvalidUploadError(
                f"tensor {name!r}: expected dtype {dtype}, got {array.dtype}", reason="WRONG_DTYPE"
            )
        return array
