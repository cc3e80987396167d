"""Uploads that arrive in chunks: contiguous files that grow, resume, are verified when complete, and expire.

A chunk need not survive a loss of power: what is damaged is found by its digest, and sent again. The digest grows with
the file; after a restart the file itself is read. In all the spool holds at most one upload per client, of the size its
phase allows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fkd_common.artifacts import read_whole, sha256_hex
from fkd_common.errors import CorruptTransferError, InvalidUploadError, TooLargeError

UPLOAD_TTL_S = 3600.0
"""A partial upload that has not grown for so long is dropped."""

Blob = TypeVar("Blob", bytes, memoryview)

_SPARE_CHUNKS = 256
_CHUNK_BYTES = 4096


def chunk_budget(size: int) -> int:
    """Most chunks an upload may come in, repeats included: on average 4 KiB each, and some to spare."""
    return _SPARE_CHUNKS + size // _CHUNK_BYTES


@dataclass(frozen=True)
class _Seen:
    size: int
    since: float


class _Digest:
    """SHA-256 of a file's first bytes, as far as this process wrote them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.covered = 0
        self._running = hashlib.sha256()

    def extend(self, data: bytes) -> None:
        self._running.update(data)
        self.covered += len(data)

    def hex(self) -> str:
        return self._running.hexdigest()


class UploadSpool:
    """Partial uploads by client and digest; each client has at most one at a time."""

    def __init__(self, folder: Path, ttl_s: float = UPLOAD_TTL_S) -> None:
        self._folder = folder
        self._ttl_s = ttl_s
        self._chunks: dict[str, tuple[str, int]] = {}
        self._digests: dict[str, _Digest] = {}
        self._seen: dict[Path, _Seen] = {}
        self._next_sweep = 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, client: str, sha256: str) -> Path:
        """The upload's file: nothing is added to it once it is complete."""
        # The name derives from hashes alone, so that no client text reaches the file system.
        return self._folder / f"{self._owner(client)}-{sha256}.part"

    @staticmethod
    def _owner(client: str) -> str:
        return hashlib.sha256(client.encode()).hexdigest()[:16]

    def held(self, client: str, sha256: str) -> int:
        """Bytes of an upload that are here, contiguous from 0."""
        return _size(self.path(client, sha256))

    def put(self, client: str, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Append a chunk if it continues what is here.

        Returns:
            Bytes held, contiguous from 0. A repeated or premature chunk changes nothing; the sender goes on
            from the returned offset.

        Raises:
            TooLargeError: The chunk reaches past the declared size, or the upload comes in too many.
        """
        if offset + len(data) > size:
            raise TooLargeError(f"chunk of {len(data)} bytes at {offset} exceeds the declared size {size}")
        path = self.path(client, sha256)
        held = _size(path)
        # Longer than it can be: a crash left something else behind. Or stored already: nobody adds to that.
        if held == 0 or held > size or (held < size and path.stat().st_nlink > 1):
            self._drop_all(client)
            self._digests[self._owner(client)] = _Digest(path)
            held = 0
        if self._count(client, sha256) > chunk_budget(size):
            raise TooLargeError(
                f"an upload of {size} bytes may come in {chunk_budget(size)} chunks; this one goes on: send larger "
                "chunks",
                reason="TOO_MANY_CHUNKS",
            )
        if offset == held and data:
            with path.open("ab") as file:
                file.write(data)
            digest = self._digests.get(self._owner(client))
            if digest is not None and (digest.path, digest.covered) == (path, offset):
                digest.extend(data)
            held += len(data)
        return held

    def read(self, client: str, sha256: str, size: int) -> memoryview:
        """A complete upload, verified, in memory of the caller's own; it stays until it is discarded.

        Raises:
            InvalidUploadError: Bytes are missing.
            CorruptTransferError: The bytes do not match the digest; the client starts over.
        """
        path = self.path(client, sha256)
        held = _size(path)
        if held != size:
            raise InvalidUploadError(f"upload has {held} of {size} bytes", reason="INCOMPLETE_UPLOAD")
        try:
            with path.open("rb") as file:
                blob = read_whole(file)
            digest = self._digests.get(self._owner(client))
            if digest is not None and (digest.path, digest.covered) == (path, size):
                check_digest(digest.hex(), sha256)
                return blob
            return verified(blob, sha256)
        except CorruptTransferError:
            self.discard(client)
            raise

    def discard(self, client: str) -> None:
        """Drop a client's partial uploads."""
        self._drop_all(client)
        self._chunks.pop(self._owner(client), None)
        self._digests.pop(self._owner(client), None)

    def clear(self) -> None:
        """Drop every partial upload: none of them can count any more."""
        for path in self._folder.glob("*.part"):
            path.unlink(missing_ok=True)
        self._chunks.clear()
        self._digests.clear()

    def sweep(self, now: float) -> int:
        """Drop what has not grown for the time allowed; cheap to call often.

        Args:
            now: Seconds of a monotonic clock. After a restart every upload has its whole time again.

        Returns:
            Uploads dropped.
        """
        if now < self._next_sweep:
            return 0
        self._next_sweep = now + self._ttl_s / 10
        seen, dropped = {}, 0
        for path in self._folder.glob("*.part"):
            size = path.stat().st_size
            known = self._seen.get(path)
            if known is None or known.size != size:
                known = _Seen(size, now)
            if now - known.since >= self._ttl_s:
                path.unlink(missing_ok=True)
                dropped += 1
            else:
                seen[path] = known
        self._seen = seen
        return dropped

    def _drop_all(self, client: str) -> None:
        for path in self._folder.glob(f"{self._owner(client)}-*.part"):
            path.unlink(missing_ok=True)

    def _count(self, client: str, sha256: str) -> int:
        """Chunks of this upload so far, this one included."""
        owner = self._owner(client)
        latest, count = self._chunks.get(owner, ("", 0))
        count = count + 1 if latest == sha256 else 1
        self._chunks[owner] = (sha256, count)
        return count


def _size(path: Path) -> int:
    """Of a file; 0 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def verified(blob: Blob, sha256: str) -> Blob:
    """The blob, if it has the digest its sender declared."""
    check_digest(sha256_hex(blob), sha256)
    return blob


def check_digest(actual: str, declared: str) -> None:
    """Refuse an upload that is not what its sender declared.

    Raises:
        CorruptTransferError: It is not.
    """
    if actual != declared:
        raise CorruptTransferError(
            f"upload arrived damaged: expected sha256 {declared}, got {actual}; send it again"
        )
