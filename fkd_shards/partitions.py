"""How training samples are divided among clients: labels in, index lists out; no images, no files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError, UsageError

MIN_DIRICHLET_SAMPLES = 10
"""A Dirichlet draw that leaves a client with fewer samples is drawn again."""

_MAX_DRAWS = 10_000

Indices = NDArray[np.int64]


class PartitionKind(StrEnum):
    """The ways to divide."""

    DIRICHLET = "dirichlet"
    IID = "iid"
    CLASSES = "classes"
    LONGTAIL = "longtail"
    SITES = "sites"


_RANGES = {
    PartitionKind.DIRICHLET: (1e-3, 1e6),
    PartitionKind.CLASSES: (1, 10_000),
    PartitionKind.LONGTAIL: (1, 1e6),
}


@dataclass(frozen=True)
class Partition:
    """A partition as asked for: its kind and number (α, classes per client, imbalance), if it takes one."""

    kind: PartitionKind
    value: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}:{self.value:g}" if self.kind in _RANGES else str(self.kind)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``dirichlet:ALPHA``, ``iid``, ``classes:Q``, ``longtail:FACTOR`` or ``sites``.

        Raises:
            UsageError: Another word, or a number that is missing, superfluous or out of range.
        """
        word, colon, number = text.partition(":")
        try:
            kind = PartitionKind(word)
        except ValueError:
            raise UsageError(
                f"partition {text!r} is unknown: "
                f"use dirichlet:ALPHA, iid, classes:Q, longtail:FACTOR or sites"
            ) from None
        if kind not in _RANGES:
            if colon:
                raise UsageError(f"partition {word} takes no number, got {text!r}")
            return cls(kind)
        low, high = _RANGES[kind]
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (kind is PartitionKind.CLASSES and value != int(value)):
            whole = "a whole number" if kind is PartitionKind.CLASSES else "a number"
            raise UsageError(
                f"partition {word} needs {whole} in {low:g}..{high:g}, as in {word}:2, got {text!r}"
            )
        return cls(kind, value)


def divide(
    partition: Partition,
    labels: Indices,
    num_classes: int,
    clients: int,
    rng: np.random.Generator,
    sites: NDArray[np.str_] | None = None,
) -> list[Indices]:
    """Divide samples among clients; no sample goes to two, every client gets at least one.

    ``longtail``, and ``classes`` with fewer places than classes, leave some samples out; the others none.

    Args:
        partition: What was asked for.
        labels: int64 (n,) in 0..C-1.
        num_classes: C.
        clients: K.
        rng: Source of all randomness.
        sites: str (n,), needed by ``sites`` only.

    Returns:
        K arrays of positions in ``labels``, each shuffled.

    Raises:
        DataError: The data cannot be divided this way.
    """
    if clients > len(labels):
        raise DataError(
            f"{clients} clients need at least {clients} training samples, there are {len(labels)}"
        )
    match partition.kind:
        case PartitionKind.DIRICHLET:
            shards = _dirichlet(labels, num_classes, clients, rng, partition.value)
        case PartitionKind.IID:
            shards = _iid(np.arange(len(labels)), clients, rng)
        case PartitionKind.CLASSES:
            shards = _classes(labels, num_classes, clients, rng, int(partition.value))
        case PartitionKind.LONGTAIL:
            shards = _iid(_long_tail(labels, num_classes, rng, partition.value), clients, rng)
        case PartitionKind.SITES:
            shards = _sites(sites, clients)
    return [rng.permutation(shard) for shard in shards]


def _positions_by_class(labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
    return [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]


def _iid(positions: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    if clients > len(positions):
        raise DataError(
            f"{clients} clients need at least {clients} training samples, {len(positions)} are left"
        )
    return list(np.array_split(rng.permutation(positions), clients))


def _dirichlet(
    labels: Indices, num_classes: int, clients: int, rng: np.random.Generator, alpha: float
) -> list[Indices]:
    """Each class is divided in proportions drawn from Dir(α·1_K) (Hsu, Qi, Brown, arXiv 1909.06335)."""
    if len(labels) < clients * MIN_DIRICHLET_SAMPLES:
        raise DataError(
            f"dirichlet needs {MIN_DIRICHLET_SAMPLES} samples for each of {clients} clients, "
            f"there are {len(labels)} in all: use fewer clients"
        )
    by_class = _positions_by_class(labels, num_classes, rng)
    counts = np.array([len(positions) for positions in by_class])
    for _ in range(_MAX_DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), size=num_classes)
        cuts = np.floor(np.cumsum(shares, axis=1)[:, :-1] * counts[:, np.newaxis]).astype(np.int64)
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, np.newaxis]).sum(axis=0)
        if sizes.min() >= MIN_DIRICHLET_SAMPLES:
            pieces = [np.split(positions, cut) for positions, cut in zip(by_class, cuts, strict=True)]
            return [np.concatenate(client) for client in zip(*pieces, strict=True)]
    raise DataError(
        f"none of {_MAX_DRAWS} draws of dirichlet:{alpha:g} gave each of {clients} clients "
        f"{MIN_DIRICHLET_SAMPLES} samples: use a larger alpha or fewer clients"
    )


def _classes(
    labels: Indices, num_classes: int, clients: int, rng: np.random.Generator, per_client: int
) -> list[Indices]:
    """Each client in turn takes the classes with the fewest holders so far, ties at random."""
    if per_client > num_classes:
        raise DataError(
            f"classes:{per_client} asks for more classes per client than the {num_classes} there are"
        )
    holders: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(clients):
        ties = rng.permutation(num_classes)
        fewest = sorted(range(num_classes), key=lambda label: (len(holders[label]), ties[label]))
        for label in fewest[:per_client]:
            holders[label].append(client)
    pieces: list[list[Indices]] = [[] for _ in range(clients)]
    for label, positions in enumerate(_positions_by_class(labels, num_classes, rng)):
        if len(positions) < len(holders[label]):
            raise DataError(
                f"class {label} has {len(positions)} samples for {len(holders[label])} clients: "
                f"use fewer clients"
            )
        if holders[label]:
            for client, piece in zip(
                holders[label], np.array_split(positions, len(holders[label])), strict=True
            ):
                pieces[client].append(piece)
    return [np.concatenate(client) for client in pieces]


def _long_tail(labels: Indices, num_classes: int, rng: np.random.Generator, factor: float) -> Indices:
    """Keep as many samples as allow n_c ∝ factor^(−c/(C−1)) for class c (Cao et al., LDAM, NeurIPS 2019)."""
    by_class = _positions_by_class(labels, num_classes, rng)
    relative = factor ** -(np.arange(num_classes) / max(num_classes - 1, 1))
    largest = min(len(positions) / share for positions, share in zip(by_class, relative, strict=True))
    keep = np.round(largest * relative).astype(np.int64)
    if keep.min() < 1:
        raise DataError(
            f"longtail:{factor:g} leaves class {int(keep.argmin())} without samples, since the largest class "
            f"could keep {int(largest)}: use a smaller factor or more data"
        )
    return np.concatenate([positions[:count] for positions, count in zip(by_class, keep, strict=True)])


def _sites(sites: NDArray[np.str_] | None, clients: int) -> list[Indices]:
    """Largest site first, each to the shard with the fewest samples so far."""
    if sites is None:
        raise DataError("partition sites needs a source with sites, as in folder:PATH/<site>/<class>/<image>")
    names, counts = np.unique(sites, return_counts=True)
    if len(names) < clients:
        raise DataError(
            f"{clients} clients need as many sites, the source has {len(names)}: use fewer clients"
        )
    sizes = np.zeros(clients, dtype=np.int64)
    shard_of_site = np.empty(len(names), dtype=np.int64)
    for site in np.argsort(-counts, kind="stable"):
        shard_of_site[site] = sizes.argmin()
        sizes[shard_of_site[site]] += counts[site]
    shard_of_sample = shard_of_site[np.searchsorted(names, sites)]
    return [np.flatnonzero(shard_of_sample == client) for client in range(clients)]
