"""Which sample goes where: test, anchors, public, then the shards; index lists only, decided by one seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError
from fkd_shards.partitions import Indices, Partition, divide

TEST, ANCHORS, PUBLIC = "test", "anchors", "public"


def shard_name(client: int) -> str:
    """Folder name of a client's shard, clients counted from 0."""
    return f"shard{client}"


@dataclass(frozen=True)
class Streams:
    """Independent random streams, so that asking for more anchors leaves the test part as it was."""

    limit: np.random.Generator
    test: np.random.Generator
    anchors: np.random.Generator
    public: np.random.Generator
    partition: np.random.Generator
    labels: np.random.Generator

    @classmethod
    def of(cls, seed: int) -> Streams:
        """The streams of a seed."""
        return cls(*(np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(6)))


def make_plan(
    labels: Indices,
    num_classes: int,
    sites: NDArray[np.str_] | None,
    *,
    published_test: int | None,
    test_fraction: float,
    anchors: int,
    public: int,
    partition: Partition,
    clients: int,
    streams: Streams,
    few_shot: int | None = None,
) -> dict[str, Indices]:
    """Decide every part of a data set.

    Args:
        labels: int64 (n,), labels of the training part in 0..C-1.
        num_classes: C.
        sites: str (n,) or None, see :func:`fkd_shards.partitions.divide`.
        published_test: Number of published test samples; None where the test part is taken from training.
        test_fraction: Share of each class taken for testing where none is published.
        anchors: m, unlabelled samples set aside.
        public: Labelled samples set aside.
        partition: How the rest is divided.
        clients: K.
        streams: Random streams.
        few_shot: Most samples of a class that a client keeps; None keeps all.

    Returns:
        ``shard0 … shard{K-1}``, ``test`` and, where not empty, ``anchors`` and ``public``, in this order:
        positions in ``labels``, pairwise disjoint; a published test part has its own positions.

    Raises:
        DataError: Too few samples.
    """
    pool = np.arange(len(labels))
    if published_test is None:
        test = _stratified(labels, num_classes, test_fraction, streams.test)
        pool = np.setdiff1d(pool, test)
    else:
        test = streams.test.permutation(published_test)
    if anchors + public >= len(pool):
        raise DataError(
            f"{anchors} anchors and {public} public samples leave none of {len(pool)} training samples "
            f"for the clients: set fewer aside"
        )
    aside: dict[str, Indices] = {}
    for name, count, rng in ((ANCHORS, anchors, streams.anchors), (PUBLIC, public, streams.public)):
        if count:
            aside[name] = rng.permutation(pool)[:count]
            pool = np.setdiff1d(pool, aside[name])
    shards = divide(
        partition,
        labels[pool],
        num_classes,
        clients,
        streams.partition,
        None if sites is None else sites[pool],
    )
    if few_shot is not None:
        shards = [_few_of_each_class(shard, labels[pool], few_shot) for shard in shards]
    return {**{shard_name(client): pool[shard] for client, shard in enumerate(shards)}, TEST: test, **aside}


def _few_of_each_class(shard: Indices, labels: Indices, most: int) -> Indices:
    """The first samples of every class, in the order they are in."""
    own = labels[shard]
    kept = [np.flatnonzero(own == label)[:most] for label in np.unique(own)]
    return shard[np.sort(np.concatenate(kept))]


def _stratified(labels: Indices, num_classes: int, fraction: float, rng: np.random.Generator) -> Indices:
    """A share of each class, at least one sample of it, never its only one; shuffled."""
    taken = []
    for label in range(num_classes):
        positions = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(round(fraction * len(positions)), 1), len(positions) - 1)
        taken.append(positions[: max(count, 0)])
    test = np.concatenate(taken)
    if not len(test):
        raise DataError("a test part needs a class with at least 2 samples, no class has them")
    return rng.permutation(test)


def partition_sha256(parts: Mapping[str, Indices]) -> str:
    """Hex SHA-256 over the ordered index lists: each part's name, length and int64 indices."""
    digest = hashlib.sha256()
    for name, indices in parts.items():
        digest.update(f"{name}:{len(indices)}\n".encode())
        digest.update(np.ascontiguousarray(indices, dtype="<i8").tobytes())
    return digest.hexdigest()
