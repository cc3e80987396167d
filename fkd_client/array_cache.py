"""Arrays on disk that notice damage: written atomically, verified on read; knows nothing of what they mean."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_DIGEST_BYTES = 32


@contextmanager
def sole_writer(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Let one thread of one process at a time fill a cache file; the others find it filled.

    Args:
        path: the cache file.
        on_wait: called once if somebody else is at it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_array(path: Path, shape: tuple[int, ...], parts: Iterator[NDArray[np.float32]]) -> None:
    """An ``.npy`` file with the SHA-256 of all of it appended (``numpy.load`` ignores trailing bytes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            digest.update(Path(temporary).read_bytes())
            for part in parts:
                data = np.ascontiguousarray(part, "<f4").tobytes()
                digest.update(data)
                file.write(data)
            file.write(digest.digest())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_array(path: Path) -> NDArray[np.float32] | None:
    """The array of an intact cache file, memory-mapped; None if there is none or it is damaged."""
    try:
        with path.open("rb") as file:
            digest, left = hashlib.sha256(), path.stat().st_size - _DIGEST_BYTES
            while left > 0 and (data := file.read(min(left, 1 << 24))):
                digest.update(data)
                left -= len(data)
            if file.read() != digest.digest():
                return None
        array: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return array
