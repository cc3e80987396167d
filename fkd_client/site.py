"""What a data site brings to a run and what it was given: data, extractor, anchors, machine; it learns nothing."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_client.embedding import embed, embed_cached
from fkd_client.extractor import Extractor
from fkd_client.progress import Progress, silent
from fkd_common.choices import FinetuneScope
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_shards.shard import Shard


@dataclass(frozen=True)
class Site:
    """What a client brings and what it was given: data, extractor, anchors, machine."""

    name: str
    shard: Shard
    extractor: Extractor
    extractor_sha256: str
    anchor_images: NDArray[np.uint8]
    anchor_embeddings: NDArray[np.float32]
    """(m, d), as the coordinator serves them: every site then fits and standardises with the same bits."""
    num_classes: int
    cache: Path
    device: str
    threads: int

    def seed(self, config: RunConfig) -> int:
        """Of everything random here: follows from the run's seed and the site's name."""
        parts = [config.seed, zlib.crc32(self.name.encode())]
        return int(np.random.SeedSequence(parts).generate_state(1)[0])

    def labels(self) -> NDArray[np.int64]:
        """(n,) classes of the shard's images.

        Raises:
            DataError: It has none.
        """
        if self.shard.labels is None or self.shard.num_samples == 0:
            raise DataError(f"shard {self.shard.name} has no labelled images to train on")
        return self.shard.labels

    def embed(
        self, shard: Shard, progress: Progress = silent, scope: FinetuneScope = FinetuneScope.HEAD
    ) -> NDArray[np.float32]:
        """(n, d) embeddings of a shard, made once and cached; with them what fine-tuning of `scope` begins with."""
        return embed_cached(
            self.cache,
            self.extractor_sha256,
            self.extractor,
            shard,
            scope=scope,
            device=self.device,
            progress=progress,
        )

    def check_extractor(self) -> None:
        """Embed a few anchors and compare: a silent difference would poison everything that is shared.

        Raises:
            DataError: The embeddings differ.
        """
        images, expected = self.anchor_images[:8], self.anchor_embeddings[:8]
        found = embed(self.extractor, images, device=self.device)
        scale = float(np.abs(expected).max(initial=1e-6))
        worst = float(np.abs(found - expected).max(initial=0.0)) / scale
        if not worst < 0.02:
            raise DataError(
                f"this machine's embeddings of the anchors differ from the coordinator's by {worst:.1%} of their "
                "range (at most 2 % is tolerated): the extractor or its preprocessing is not the same"
            )


def anchors_of(tensors: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Images and embeddings of a received anchor artifact.

    Raises:
        DataError: It is not an anchor artifact.
    """
    images, embeddings = tensors.get("images"), tensors.get("embeddings")
    if images is None or embeddings is None or images.dtype != np.uint8 or embeddings.dtype != np.float32:
        raise DataError("the coordinator's anchor artifact lacks images or embeddings")
    return images, embeddings
