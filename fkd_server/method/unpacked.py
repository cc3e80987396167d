"""What a blob that many uploads are differences to holds, unpacked once."""

from __future__ import annotations

from collections.abc import Callable

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.tensors import Tensors, decode


class UnpackedOnce:
    """The tensors of the blob that was asked for last; not to be changed."""

    def __init__(self, blobs: BlobStore, unpack: Callable[[Tensors], Tensors]) -> None:
        self._blobs = blobs
        self._unpack = unpack
        self._last: tuple[str, Tensors] = ("", {})

    def of(self, artifact: Artifact) -> Tensors:
        """What everybody unpacks from it."""
        if self._last[0] != artifact.sha256:
            self._last = artifact.sha256, self._unpack(decode(self._blobs.read(artifact.sha256)))
        return self._last[1]
