"""Embeddings of a data set, made once for all its partitions: images are known by their content.

A new seed or partition divides the same images anew, and every shard has a cache file of its own. The bank fills those
files from embeddings it has already; only images it has never seen are embedded. Files of embeddings end with a digest,
and damaged ones are made anew; a damaged key is no image's, so that its image counts as never seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fkd_client.array_cache import read_array, sole_writer, write_array
from fkd_client.embedding import embed, embedding_file
from fkd_client.extractor import EMBEDDING_DIM, Extractor
from fkd_client.progress import Progress, silent
from fkd_common.artifacts import write_atomically
from fkd_shards.shard import Shard

_KEY_BYTES = 16


class EmbeddingBank:
    """Embeddings by image, for one extractor and one data set."""

    def __init__(self, folder: Path, extractor_sha256: str, data: str) -> None:
        """Nothing is read yet.

        Args:
            folder: Where banks are kept.
            extractor_sha256: Hash of the extractor artifact.
            data: Which data set, in words: banks of others are not read.
        """
        name = hashlib.sha256(f"{extractor_sha256} {data}".encode()).hexdigest()[:32]
        self._path = folder / f"{name}.npy"
        self._keys_path = folder / f"{name}.keys"
        self._extractor_sha256 = extractor_sha256

    def fill(
        self, cache: Path, extractor: Extractor, shards: Sequence[Shard], progress: Progress = silent
    ) -> list[Path]:
        """See that every shard's embeddings are in `cache`, where ``embed_cached`` looks for them.

        Returns:
            Files that were damaged, and made anew.
        """
        files = {embedding_file(cache, self._extractor_sha256, shard.sha256): shard for shard in shards}
        missing = {
            file: shard
            for file, shard in files.items()
            if not _whole(file, (len(shard.images), EMBEDDING_DIM))
        }
        if not missing:
            return []
        damaged = [file for file in missing if file.exists()]
        if self._path.exists() and read_array(self._path) is None:
            damaged.append(self._path)
        self._make(missing, extractor, progress)
        return damaged

    def _make(self, missing: Mapping[Path, Shard], extractor: Extractor, progress: Progress) -> None:
        with sole_writer(
            self._path, lambda: progress(0.0, "waiting for another process to embed the same images")
        ):
            keys, known = self._read()
            place = {key: row for row, key in enumerate(keys)}
            shards = list(missing.values())
            keys_of = [_keys(shard.images) for shard in shards]
            new: dict[bytes, tuple[int, int]] = {}
            for number, shard_keys in enumerate(keys_of):
                for row, key in enumerate(shard_keys):
                    if key not in place:
                        new.setdefault(key, (number, row))
            if new:
                images = np.stack([shards[number].images[row] for number, row in new.values()])
                made = embed(extractor, images, device="cpu", progress=progress)
                known = np.concatenate([known, made])
                place |= {key: len(keys) + row for row, key in enumerate(new)}
                keys = [*keys, *new]
                write_array(self._path, known.shape, iter([known]))
                write_atomically(self._keys_path, b"".join(keys))
            for file, shard_keys in zip(missing, keys_of, strict=True):
                rows = known[[place[key] for key in shard_keys]].reshape(-1, EMBEDDING_DIM)
                write_array(file, rows.shape, iter([rows]))

    def _read(self) -> tuple[list[bytes], NDArray[np.float32]]:
        known = read_array(self._path)
        joined = self._keys_path.read_bytes() if self._keys_path.exists() else b""
        keys = [joined[at : at + _KEY_BYTES] for at in range(0, len(joined), _KEY_BYTES)]
        if known is None or len(known) != len(keys):
            return [], np.zeros((0, EMBEDDING_DIM), np.float32)
        return keys, np.asarray(known)


def _whole(file: Path, shape: tuple[int, int]) -> bool:
    array = read_array(file)
    return array is not None and array.shape == shape


def _keys(images: NDArray[np.uint8]) -> list[bytes]:
    """A short hash of every image's pixels and shape."""
    shape = repr(images.shape[1:]).encode()
    return [
        hashlib.blake2b(shape + np.ascontiguousarray(image).tobytes(), digest_size=_KEY_BYTES).digest()
        for image in images
    ]
