"""Data sets and shards as tables for people; reads nothing, writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fkd_common.printable import printable
from fkd_shards.json_files import Manifest
from fkd_shards.shard import Shard

_MAX_COLUMNS = 20


def manifest_table(manifest: Manifest) -> Table:
    """Parts by classes; with many classes, how many are present and the largest instead."""
    table = Table()
    table.add_column("part")
    table.add_column("samples", justify="right")
    few = len(manifest.classes) <= _MAX_COLUMNS
    for heading in manifest.classes if few else ("classes present", "largest class"):
        table.add_column(_text(heading), justify="right")
    for name, part in manifest.parts.items():
        table.add_row(_text(name), str(part.num_samples), *_cells(part.class_counts, manifest.classes, few))
    return table


def manifest_caption(manifest: Manifest) -> str:
    """Source, partition and seed in one line, the partition hash in the next."""
    shape = "×".join(map(str, manifest.image_shape))
    unused = f", {manifest.num_unused} samples unused" if manifest.num_unused else ""
    made = f"{manifest.source}, {shape}, partition {manifest.partition}, seed {manifest.seed}{unused}"
    return f"{printable(made)}\npartition sha256 {printable(manifest.partition_sha256)}"


def _text(name: str) -> Text:
    """A name out of somebody's data: no markup, nothing that a terminal would obey."""
    return Text(printable(name))


def _cells(counts: Sequence[int] | None, classes: Sequence[str], few: bool) -> list[Text]:
    if counts is None:
        return [Text("–")] * (len(classes) if few else 2)
    if few:
        return [Text(str(count)) for count in counts]
    present = sum(count > 0 for count in counts)
    largest = max(range(len(counts)), key=lambda label: counts[label])
    return [Text(f"{present} of {len(classes)}"), _text(f"{classes[largest]} ({counts[largest]})")]


def shard_table(shard: Shard) -> Table:
    """Classes of one shard and how many samples each has."""
    table = Table()
    table.add_column("class")
    table.add_column("samples", justify="right")
    if shard.labels is None:
        table.add_row("(unlabelled)", str(shard.num_samples))
        return table
    names = shard.classes or tuple(str(label) for label in range(int(shard.labels.max()) + 1))
    for name, count in zip(names, shard.class_counts(len(names)), strict=True):
        table.add_row(_text(name), str(count))
    return table


def shard_caption(shard: Shard) -> str:
    """Name and shape in one line, the content hash in the next."""
    shape = "×".join(map(str, shard.images.shape))
    return f"{printable(shard.name)}: {shape} uint8\nsha256 {printable(shard.sha256)}"
