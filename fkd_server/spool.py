"""Uploads that arrive in chunks: contiguous files that grow, resume and are verified when complete."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fkd_common.artifacts import sha256_hex
from fkd_common.errors import CorruptTransferError, InvalidUploadError, TooLargeError


class UploadSpool:
    """Partial uploads by client and digest; each client has at most one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, client: str, sha256: str) -> Path:
        # The name derives from hashes alone, so that no client text reaches the file system.
        return self._folder / f"{self._owner(client)}-{sha256}.part"

    @staticmethod
    def _owner(client: str) -> str:
        return hashlib.sha256(client.encode()).hexdigest()[:16]

    def held(self, client: str, sha256: str) -> int:
        """Bytes of an upload that are here, contiguous from 0."""
        path = self._path(client, sha256)
        return path.stat().st_size if path.exists() else 0

    def put(self, client: str, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Append a chunk if it continues what is here.

        Returns:
            Bytes held, contiguous from 0. A repeated or premature chunk changes nothing; the sender goes on
            from the returned offset.

        Raises:
            TooLargeError: The chunk reaches past the declared size.
        """
        if offset + len(data) > size:
            raise TooLargeError(f"chunk of {len(data)} bytes at {offset} exceeds the declared size {size}")
        path, held = self._path(client, sha256), self.held(client, sha256)
        if held == 0:
            self.discard(client)
        if offset == held and data:
            with path.open("ab") as file:
                file.write(data)
            held += len(data)
        return held

    def take(self, client: str, sha256: str, size: int) -> bytes:
        """A complete upload, verified and removed from the spool.

        Raises:
            InvalidUploadError: Bytes are missing.
            CorruptTransferError: The bytes do not match the digest; the client starts over.
        """
        path, held = self._path(client, sha256), self.held(client, sha256)
        if held != size:
            raise InvalidUploadError(f"upload has {held} of {size} bytes", reason="INCOMPLETE_UPLOAD")
        blob = path.read_bytes()
        path.unlink()
        return verified(blob, sha256)

    def discard(self, client: str) -> None:
        """Drop a client's partial uploads."""
        for path in self._folder.glob(f"{self._owner(client)}-*.part"):
            path.unlink()


def verified(blob: bytes, sha256: str) -> bytes:
    """The blob, if it has the digest its sender declared."""
    actual = sha256_hex(blob)
    if actual != sha256:
        raise CorruptTransferError(
            f"upload arrived damaged: expected sha256 {sha256}, got {actual}; send it again"
        )
    return blob
