"""Content-addressed blobs in a folder: written atomically, verified on read; knows nothing of what they mean."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DamagedFileError, NotFoundError
from fkd_common.failpoints import failpoint
from fkd_common.tensors import Tensors, decode, encoded_parts, payload_offset

TEMPORARY = ".unfinished-"
"""Files that begin so were being written when their process ended; nobody else ever sees them."""


NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS)
"""What says that a file cannot have a second name there."""

_PIECE_BYTES = 1 << 20


def sha256_hex(data: bytes | memoryview) -> str:
    """Hex SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_parts(parts: Iterable[bytes | memoryview]) -> str:
    """Hex SHA-256 of bytes that come piece by piece."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that its name only ever shows old or new content, never half of it."""
    write_parts_atomically(path, (data,))


def write_parts_atomically(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """:func:`write_atomically` of bytes that come piece by piece."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            failpoint("file.written")
            os.fsync(file.fileno())
        failpoint("file.synced")
        temporary.replace(path)
        failpoint("file.renamed")
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    failpoint("file.durable")


def link_durably(source: Path, path: Path) -> None:
    """Give a file a second name, once its bytes are on disk.

    Raises:
        OSError: The file system has no second names (see `NO_LINKS`), or does not take this one.
    """
    with source.open("rb") as file:
        os.fsync(file.fileno())
    failpoint("file.synced")
    path.hardlink_to(source)
    failpoint("file.renamed")
    sync_folder(path.parent)
    failpoint("file.durable")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Artifact:
    """A stored blob: hex digest, size in bytes, and where its tensor data starts."""

    sha256: str
    size: int
    payload_offset: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of tensor data."""
        return self.size - self.payload_offset

    def payload_in(self, offset: int, length: int) -> int:
        """How many of the bytes [offset, offset + length) are tensor data."""
        end = min(offset + length, self.size)
        return max(0, end - max(offset, self.payload_offset))


_SUFFIX = ".safetensors"
_TICK_NS = 1_000_000_000
"""More than any system's."""


def blob_file(folder: Path, sha256: str) -> Path:
    """Where a :class:`BlobStore` in that folder keeps a blob."""
    return folder / f"{sha256}{_SUFFIX}"


class BlobStore:
    """Blobs as files named by their SHA-256."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Artifact] = {}
        self._whole: dict[str, tuple[int, int]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, blob: bytes | memoryview, sha256: str | None = None) -> Artifact:
        """Store a safetensors blob; storing it twice is free.

        Args:
            blob: It.
            sha256: Its digest, where that is known already.
        """
        return self._keep(sha256_hex(blob) if sha256 is None else sha256, (blob,))

    def put_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> Artifact:
        """Store tensors as :func:`fkd_common.tensors.encode` serialises them, without a blob of them all in memory."""
        return self._keep(sha256_of_parts(encoded_parts(tensors)), encoded_parts(tensors))

    def adopt(self, source: Path) -> Artifact:
        """Store a copy of a safetensors file without reading it into memory at once."""
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            if not self.has(digest):
                write_parts_atomically(self.path(digest), _pieces(file))
        return self.describe(digest)

    def link(self, source: Path, sha256: str) -> Artifact:
        """Store a safetensors file by a second name, without writing its bytes again, or a copy where there is none.

        Args:
            source: It; nobody writes to it any more.
            sha256: Its digest, verified.
        """
        if not self.has(sha256):
            try:
                link_durably(source, self.path(sha256))
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                return self.adopt(source)
            self._note_whole(sha256)
        return self.describe(sha256)

    def _keep(self, sha256: str, parts: Iterable[bytes | memoryview]) -> Artifact:
        if not self.has(sha256):
            write_parts_atomically(self.path(sha256), parts)
            self._note_whole(sha256)
        return self.describe(sha256)

    def _note_whole(self, sha256: str) -> None:
        """Remember that a file is whole, and date it back: no later change may have the same tick of the clock."""
        path = self.path(sha256)
        size, written = _version(path.stat())
        os.utime(path, ns=(written - _TICK_NS, written - _TICK_NS))
        self._whole[sha256] = size, written - _TICK_NS

    def has(self, sha256: str) -> bool:
        """Whether the blob is here."""
        return self.path(sha256).exists()

    def path(self, sha256: str) -> Path:
        """The blob's file."""
        return blob_file(self._folder, sha256)

    def describe(self, sha256: str) -> Artifact:
        """Size and payload offset of a stored blob.

        Raises:
            NotFoundError: No such blob.
        """
        if sha256 not in self._known:
            try:
                with self.path(sha256).open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    self._known[sha256] = Artifact(sha256, size, payload_offset(file.read(8), size))
            except FileNotFoundError as error:
                raise NotFoundError(f"no artifact with sha256 {sha256}") from error
        return self._known[sha256]

    def read(self, sha256: str) -> bytes:
        """A whole blob, verified.

        Raises:
            DamagedFileError: It is missing, or no longer matches its digest.
        """
        with self._open(sha256) as file:
            blob = file.read()
        if sha256_hex(blob) != sha256:
            raise DamagedFileError(f"{self.path(sha256)} is damaged: its content does not match its name")
        return blob

    def tensors(self, sha256: str) -> Tensors:
        """A blob's tensors, in memory of the caller's own; verified as by :meth:`check`.

        Raises:
            DamagedFileError: The blob is missing, or no longer matches its digest.
            InvalidUploadError: It is none.
        """
        with self._open(sha256) as file:
            blob = read_whole(file)
            self._verify(sha256, file, lambda: sha256_hex(blob))
        return decode(blob)

    def check(self, sha256: str) -> None:
        """Read a blob through, without holding it; not again while its file has the same size and time of change.

        Raises:
            DamagedFileError: It is missing, or no longer matches its digest.
        """
        with self._open(sha256) as file:
            self._verify(sha256, file, lambda: hashlib.file_digest(file, "sha256").hexdigest())

    def _open(self, sha256: str) -> BufferedReader:
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError as error:
            raise DamagedFileError(f"{self.path(sha256)} is missing") from error

    def _verify(self, sha256: str, file: BufferedReader, digest: Callable[[], str]) -> None:
        version = _version(os.fstat(file.fileno()))
        if self._whole.get(sha256) == version:
            return
        if digest() != sha256:
            raise DamagedFileError(f"{self.path(sha256)} is damaged: its content does not match its name")
        self._whole[sha256] = version

    def read_chunk(self, sha256: str, offset: int, length: int) -> bytes:
        """Part of a blob, unverified: the receiver checks the whole."""
        self.describe(sha256)
        with self.path(sha256).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def sweep(self, keep: Collection[str]) -> None:
        """Remove every blob but those to keep, and what an interrupted write left behind."""
        for path in self._folder.iterdir():
            if path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)
            elif path.suffix == _SUFFIX and path.stem not in keep:
                self.remove(path.stem)

    def remove(self, sha256: str) -> None:
        """Forget a blob that nothing refers to any more."""
        self._known.pop(sha256, None)
        self._whole.pop(sha256, None)
        self.path(sha256).unlink(missing_ok=True)


def read_whole(file: BufferedReader) -> memoryview:
    """A file's bytes in writeable memory of the caller's own: a large one costs a fraction of what `bytes` do."""
    return np.fromfile(file, np.uint8).data


def _pieces(file: BufferedReader) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
