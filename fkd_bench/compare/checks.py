"""What can be known to fail before a cell runs: its method, its options, its extractor, its division of the data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fkd_bench.compare.cell import Cell, Division
from fkd_bench.compare.experiment import check_numbers
from fkd_bench.compare.source_files import PRETRAIN
from fkd_common.config import FKD_RTM
from fkd_common.errors import DataError, UsageError
from fkd_common.method_registry import check_codecs, exchange_method
from fkd_shards.create import check_divisible
from fkd_shards.source import Source
from fkd_shards.sources import open_source


def check_cells(cells: Iterable[Cell], where: str) -> None:
    """See that cells can run here; imports what their methods need, and reads data but decodes no image.

    Args:
        cells: Those that are to run.
        where: The experiment's file, for messages.

    Raises:
        UsageError: A method cannot be loaded, or a key or option cannot be meant.
        DataError: Data or an extractor cannot be used, or not be divided so.
    """
    methods: set[str] = set()
    divisions: set[str] = set()
    sources: dict[str, Source] = {}
    extractors: set[str] = set()
    for cell in cells:
        try:
            if (asked := f"{cell.method} {sorted(cell.options.items())} {cell.config.model}") not in methods:
                methods.add(asked)
                _check_method(cell)
            check_codecs(cell.config)
            _check_participants(cell)
            if (division := cell.division).id not in divisions:
                divisions.add(division.id)
                if division.data not in sources:
                    sources[division.data] = open_source(division.data)
                _check_division(division, sources[division.data])
            if division.extractor not in extractors:
                extractors.add(division.extractor)
                _check_extractor(division)
        except (UsageError, DataError) as error:
            raise type(error)(f"experiment {where}: {cell}: {error}") from error


def _check_method(cell: Cell) -> None:
    if cell.method != FKD_RTM:
        options = exchange_method(cell.config).Options(**cell.options)
        check_numbers(cell.options, options)


def _check_participants(cell: Cell) -> None:
    least, clients = cell.config.min_clients, cell.division.clients
    if least > clients:
        raise UsageError(
            f"min_clients = {least}: {clients} clients are fewer, so that no round would ever start"
        )


def _check_division(division: Division, source: Source) -> None:
    if division.extractor == PRETRAIN and not division.public:
        raise UsageError(
            f"public = 0: extractor {PRETRAIN} learns from labelled public images, set some aside as in `public: 300`"
        )
    check_divisible(division.create_request(Path()), source)


def _check_extractor(division: Division) -> None:
    if division.extractor.startswith("/"):
        from fkd_client.extractor import extractor_artifact, load_extractor

        load_extractor(extractor_artifact(division.extractor))
