"""The published model and its extractor in pieces, as operators fetch them; reads files, changes nothing."""

from __future__ import annotations

from pathlib import Path

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.errors import InvalidUploadError, NotFoundError, StaleError
from fkd_common.pb import admin_pb2 as pb
from fkd_common.rpc import MAX_CHUNK_BYTES
from fkd_server.chronicle import Chronicle


class PublishedFiles:
    """What `fkd-server export` fetches from a run at work."""

    def __init__(self, model: Path, chronicle: Chronicle, extractor: Artifact, blobs: BlobStore) -> None:
        """Nothing is read yet.

        Args:
            model: The file of the published model.
            chronicle: Knows whether it is there, and its hash.
            extractor: What every model of the run needs.
            blobs: Where the extractor is.
        """
        self._model = model
        self._chronicle = chronicle
        self._extractor = extractor
        self._blobs = blobs

    def piece(self, part: int, offset: int, sha256: str) -> pb.ReadModelResponse:
        """A piece of a file; the receiver checks the whole.

        Args:
            part: Which file, a ``ModelPart``.
            offset: Bytes before the piece.
            sha256: What the file was when the first piece was read; empty for the first.

        Raises:
            NotFoundError: No model has been published yet.
            StaleError: It has been replaced by a newer one meanwhile.
            InvalidUploadError: The request names no part, or a place outside the file.
        """
        path, now = self._file(part)
        if sha256 not in ("", now):
            raise StaleError(
                "a newer model has been published: fetch it from its beginning", reason="MODEL_REPLACED"
            )
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if offset > size:
                raise InvalidUploadError(f"offset {offset} in a file of {size} bytes", reason="OUT_OF_RANGE")
            file.seek(offset)
            return pb.ReadModelResponse(piece=file.read(MAX_CHUNK_BYTES), sha256=now, size=size)

    def _file(self, part: int) -> tuple[Path, str]:
        if part == pb.MODEL_PART_EXTRACTOR:
            return self._blobs.path(self._extractor.sha256), self._extractor.sha256
        if part != pb.MODEL_PART_MODEL:
            raise InvalidUploadError(
                f"part {part}: expected the model (1) or the extractor (2)", reason="OUT_OF_RANGE"
            )
        model = self._chronicle.model
        if model is None:
            raise NotFoundError("no model has been published yet: there has been no vote", reason="NO_MODEL")
        return self._model, model.sha256
