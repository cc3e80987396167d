"""Blobs to and from the coordinator in chunks that resume; downloads are cached by content hash.

What every round replaces is kept in memory, the last few only; what a run needs throughout (extractor,
anchors) is kept on disk, where it can also be put beforehand.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fkd_client.run_info import RunInfo
from fkd_client.session import Session
from fkd_common.artifacts import BlobStore, sha256_hex
from fkd_common.errors import CorruptTransferError, DamagedFileError, FkdError, TooLargeError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import chunk_payload, encode
from fkd_common.tracing import part_span

MAX_ARTIFACT_BYTES = 4 << 30
"""An artifact said to be larger is refused before anything is allocated."""

_ATTEMPTS = 3
_RECENT = 4
"""A vote compares models of at most four artifacts; the next round begins with one of them, the student."""


@dataclass(frozen=True)
class TensorMessage:
    """Tensors ready to be submitted, and the message that carries them."""

    method: str
    request: Any
    tensors: Mapping[str, NDArray[Any]]


class Transfer:
    """Moves blobs for one session."""

    def __init__(self, session: Session, run: RunInfo, cache: BlobStore) -> None:
        self._session = session
        self._run = run
        self._cache = cache
        self._recent: OrderedDict[str, bytes] = OrderedDict()

    def fetch(self, reference: types.ArtifactRef, key: types.TaskKey) -> bytes:
        """An artifact of a round, from memory or the coordinator; verified.

        Raises:
            CorruptTransferError: It does not match its hash after several attempts.
            TooLargeError: It claims an absurd size.
        """
        sha256 = reference.sha256.hex()
        if sha256 not in self._recent:
            self._recent[sha256] = self._download_verified(reference, key)
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        return self._recent[sha256]

    def fetch_once(self, reference: types.ArtifactRef, key: types.TaskKey) -> bytes:
        """An artifact that no other task needs: not remembered, so that it pushes out none that does; verified.

        Raises:
            CorruptTransferError: It does not match its hash after several attempts.
            TooLargeError: It claims an absurd size.
        """
        return self._download_verified(reference, key)

    def fetch_kept(self, reference: types.ArtifactRef, key: types.TaskKey) -> bytes:
        """An artifact of the whole run, from disk or the coordinator; verified either way.

        Raises:
            CorruptTransferError: It does not match its hash after several attempts.
            TooLargeError: It claims an absurd size.
        """
        sha256 = reference.sha256.hex()
        if self._cache.has(sha256):
            try:
                return self._cache.read(sha256)
            except (DamagedFileError, OSError):
                with contextlib.suppress(OSError):
                    self._cache.remove(sha256)
        blob = self._download_verified(reference, key)
        with contextlib.suppress(OSError):  # a cache that cannot be filled costs a download, not the run
            self._cache.put(blob)
        return blob

    def _download_verified(self, reference: types.ArtifactRef, key: types.TaskKey) -> bytes:
        if reference.size > MAX_ARTIFACT_BYTES:
            raise TooLargeError(
                f"artifact {reference.name} claims {reference.size} bytes; at most {MAX_ARTIFACT_BYTES}"
            )
        sha256 = reference.sha256.hex()
        for _ in range(_ATTEMPTS):
            with part_span("fetch"):
                blob = self._download(reference, key)
            if sha256_hex(blob) == sha256:
                return blob
        raise CorruptTransferError(
            f"artifact {reference.name} arrived damaged {_ATTEMPTS} times: expected {sha256}"
        )

    def _download(self, reference: types.ArtifactRef, key: types.TaskKey) -> bytes:
        held = bytearray()
        while len(held) < reference.size:
            offset = len(held)
            length = min(self._run.max_chunk_bytes, reference.size - offset)
            request = pb.GetChunkRequest(key=key, sha256=reference.sha256, offset=offset, length=length)

            def payload(response: pb.GetChunkResponse, offset: int = offset) -> int:
                return chunk_payload(response.data, offset, reference.size)

            data = self._session.call(
                "GetChunk", request, pb.GetChunkResponse, key=key, payload_down=payload
            ).data
            if not data or len(data) > length:
                raise CorruptTransferError(
                    f"artifact {reference.name}: asked for {length} bytes, got {len(data)}"
                )
            held += data
        return bytes(held)

    def submit(self, message: TensorMessage) -> pb.SubmitResponse:
        """Upload tensors and submit them; small ones travel inside the message, larger ones in chunks before it.

        Raises:
            FkdError: The coordinator refused the upload.
        """
        with part_span("upload"):
            return self._submit(message)

    def _submit(self, message: TensorMessage) -> pb.SubmitResponse:
        blob = encode(message.tensors)
        upload = types.Upload(sha256=bytes.fromhex(sha256_hex(blob)), size=len(blob))
        inline = len(blob) <= self._run.max_chunk_bytes
        if inline:
            upload.inline = blob
        message.request.upload.CopyFrom(upload)
        payload = chunk_payload(blob, 0, len(blob)) if inline else 0
        key = message.request.key
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if not inline:
                    self._send(blob, upload.sha256, key)
                return self._session.call(
                    message.method, message.request, pb.SubmitResponse, key=key, payload_up=payload
                )
            except FkdError as error:
                again = isinstance(error, CorruptTransferError) or error.reason == "INCOMPLETE_UPLOAD"
                if not again or attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _send(self, blob: bytes, sha256: bytes, key: types.TaskKey) -> None:
        offset, chunks = 0, 0
        while offset < len(blob):
            chunks += 1
            if (chunks - 1) * self._run.max_chunk_bytes > 4 * len(blob):
                raise CorruptTransferError("the coordinator keeps asking for the same bytes of an upload")
            data = blob[offset : offset + self._run.max_chunk_bytes]
            request = pb.PutChunkRequest(key=key, sha256=sha256, size=len(blob), offset=offset, data=data)
            payload = chunk_payload(data, offset, len(blob))
            told = self._session.call("PutChunk", request, pb.PutChunkResponse, key=key, payload_up=payload)
            offset = min(told.received, len(blob))
