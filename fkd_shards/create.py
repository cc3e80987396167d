"""From a source to shard folders: load, plan, write; formats, partitions and printing are elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError, UsageError
from fkd_shards.bad_images import DEFAULT_MAX_BAD, BadImage, refuse_if_too_many
from fkd_shards.json_files import BadFile, Manifest, PartSummary
from fkd_shards.label_faults import LabelFaults
from fkd_shards.output import check_output, replaced_whole
from fkd_shards.partitions import Indices, Partition, PartitionKind
from fkd_shards.plan import ANCHORS, PUBLIC, TEST, Streams, make_plan, partition_sha256
from fkd_shards.shard import MANIFEST_FILE, write_shard
from fkd_shards.source import Source, Split
from fkd_shards.sources import open_source

_LISTED_BAD = 100
_MAX_IMAGE_SIZE = 4096


@dataclass(frozen=True)
class CreateRequest:
    """What `fkd-shards create` was asked for; see its flags.

    Raises:
        UsageError: A number is out of range.
    """

    source: str
    clients: int
    partition: Partition
    seed: int
    out: Path
    anchors: int = 500
    public: int = 0
    test_fraction: float = 0.2
    image_size: int | None = None
    max_bad: float = DEFAULT_MAX_BAD
    limit: int | None = None
    force: bool = False
    few_shot: int | None = None
    faults: LabelFaults = field(default_factory=LabelFaults)

    def __post_init__(self) -> None:
        _require(self.clients >= 1, f"--clients must be at least 1, got {self.clients}")
        _require(self.seed >= 0, f"--seed must be at least 0, got {self.seed}")
        _require(self.anchors >= 0, f"--anchors must be at least 0, got {self.anchors}")
        _require(self.public >= 0, f"--public must be at least 0, got {self.public}")
        _require(
            0 < self.test_fraction < 1, f"--test-fraction must lie between 0 and 1, got {self.test_fraction}"
        )
        _require(0 <= self.max_bad <= 1, f"--max-bad is a share in 0..1, got {self.max_bad}")
        _require(self.limit is None or self.limit >= 1, f"--limit must be at least 1, got {self.limit}")
        _require(
            self.few_shot is None or self.few_shot >= 1, f"--few-shot must be at least 1, got {self.few_shot}"
        )
        size_fits = self.image_size is None or 1 <= self.image_size <= _MAX_IMAGE_SIZE
        _require(size_fits, f"--image-size must be in 1..{_MAX_IMAGE_SIZE}, got {self.image_size}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


@dataclass(frozen=True)
class _Samples:
    """Decoded samples: images (n, H, W, c), labels, sites and their indices in the source (n,)."""

    images: NDArray[np.uint8]
    labels: Indices
    sites: NDArray[np.str_] | None
    source_indices: Indices
    bad: tuple[BadImage, ...]


def create(request: CreateRequest) -> Manifest:
    """Turn a data set into ``shard0 … shard{K-1}``, ``test``, ``anchors``, ``public`` and ``manifest.json``.

    The same request on the same data writes the same bytes.

    Returns:
        The manifest, as written.

    Raises:
        UsageError: A flag is wrong or the output folder is taken.
        DataError: The source cannot be read, has too many bad images, or cannot be divided as asked.
    """
    out = request.out.expanduser().resolve()
    check_output(out, request.force)
    source = open_source(request.source)
    if request.partition.kind is PartitionKind.SITES and source.train.sites is None:
        raise DataError(f"partition sites needs a source with sites, {request.source} has none")
    streams = Streams.of(request.seed)
    train = _load(source.train, request, streams.limit)
    test = None if source.test is None else _load(source.test, request, streams.limit)
    parts = [train] if test is None else [train, test]
    bad = tuple(image for part in parts for image in part.bad)
    total = sum(len(part.labels) + len(part.bad) for part in parts)
    refuse_if_too_many(bad, total, request.max_bad, request.source)
    for part, name in zip(parts, ("training", "test"), strict=False):
        if not len(part.labels):
            raise DataError(f"{request.source}: the {name} part has no samples")
    if test is not None and test.images.shape[1:] != train.images.shape[1:]:
        raise DataError(
            f"{request.source}: training images are {train.images.shape[1:]} and test images "
            f"{test.images.shape[1:]}: give --image-size N"
        )
    plan = _plan(request, source, train.source_indices, None if test is None else len(test.labels), streams)
    with replaced_whole(out) as staging:
        return _write(staging, request, source.classes, train, test, plan, bad, streams.labels)


def check_divisible(request: CreateRequest, source: Source) -> None:
    """See that a source can be divided as asked, unless images turn out to be bad: none is decoded.

    Raises:
        DataError: It cannot.
    """
    streams = Streams.of(request.seed)
    train = _chosen(source.train, request, streams.limit)
    test = None if source.test is None else len(_chosen(source.test, request, streams.limit))
    _plan(request, source, train, test, streams)


def _plan(
    request: CreateRequest, source: Source, train: Indices, published_test: int | None, streams: Streams
) -> dict[str, Indices]:
    """Which of these training samples go where; see :func:`make_plan`."""
    return make_plan(
        source.train.labels[train],
        len(source.classes),
        None if source.train.sites is None else source.train.sites[train],
        published_test=published_test,
        test_fraction=request.test_fraction,
        anchors=request.anchors,
        public=request.public,
        partition=request.partition,
        clients=request.clients,
        streams=streams,
        few_shot=request.few_shot,
    )


def _chosen(split: Split, request: CreateRequest, rng: np.random.Generator) -> Indices:
    """Positions of the samples that `limit` leaves."""
    chosen = np.arange(len(split.labels))
    if request.limit is None or request.limit >= len(chosen):
        return chosen
    return np.sort(rng.permutation(chosen)[: request.limit])


def _load(split: Split, request: CreateRequest, rng: np.random.Generator) -> _Samples:
    chosen = _chosen(split, request, rng)
    loaded = split.pictures.load(chosen, request.image_size)
    kept = chosen[loaded.kept]
    sites = None if split.sites is None else split.sites[kept]
    return _Samples(loaded.images, split.labels[kept], sites, kept, loaded.bad)


def _write(
    folder: Path,
    request: CreateRequest,
    classes: tuple[str, ...],
    train: _Samples,
    test: _Samples | None,
    plan: Mapping[str, Indices],
    bad: tuple[BadImage, ...],
    label_rng: np.random.Generator,
) -> Manifest:
    summaries: dict[str, PartSummary] = {}
    source_indices: dict[str, Indices] = {}
    flipped = request.faults.flipped_shards(request.clients, label_rng)
    for name, positions in plan.items():
        samples = test if name == TEST and test is not None else train
        source_indices[name] = samples.source_indices[positions]
        labels = None if name == ANCHORS else samples.labels[positions]
        if labels is not None and name not in (TEST, PUBLIC):
            labels = request.faults.applied(labels, len(classes), label_rng, flipped=name in flipped)
        summaries[name] = _write_part(folder / name, samples, positions, labels, classes, request.source)
    # A published test part is not drawn from the training samples, so it does not count as using them.
    used = sum(len(positions) for name, positions in plan.items() if test is None or name != TEST)
    height, width, channels = train.images.shape[1:]
    manifest = Manifest(
        classes=classes,
        image_shape=(height, width, channels),
        source=request.source,
        seed=request.seed,
        clients=request.clients,
        partition=str(request.partition),
        partition_sha256=partition_sha256(source_indices),
        test_fraction=request.test_fraction if test is None else None,
        limit=request.limit,
        image_size=request.image_size,
        flipped=tuple(name for name in plan if name in flipped),
        label_noise=request.faults.label_noise,
        few_shot=request.few_shot,
        num_unused=len(train.labels) - used,
        num_bad=len(bad),
        bad=tuple(BadFile(name=image.name, reason=image.reason) for image in bad[:_LISTED_BAD]),
        parts=summaries,
    )
    manifest.write(folder / MANIFEST_FILE)
    return manifest


def _write_part(
    folder: Path,
    samples: _Samples,
    positions: Indices,
    labels: Indices | None,
    classes: tuple[str, ...],
    source: str,
) -> PartSummary:
    written = write_shard(folder, samples.images[positions], labels, classes=classes, source=source)
    counts = None if labels is None else np.bincount(labels, minlength=len(classes))
    sites = None if samples.sites is None else np.unique(samples.sites[positions])
    return PartSummary(
        num_samples=len(positions),
        class_counts=None if counts is None else tuple(int(count) for count in counts),
        sites=None if sites is None else tuple(str(site) for site in sites),
        sha256=written.sha256,
    )
