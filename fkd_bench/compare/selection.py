"""Which of an experiment's cells are asked for, and what a person is shown of them beforehand; runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from fkd_bench.compare.cell import Cell, as_text
from fkd_bench.compare.durations import Durations, as_time
from fkd_bench.compare.result_cache import ResultCache
from fkd_common.advice import did_you_mean
from fkd_common.errors import UsageError

_OF_EVERY_CELL = ("label", "method", "dataset", "partition", "clients", "seed")


def selected(cells: Sequence[Cell], methods: Iterable[str], only: Iterable[tuple[str, str]]) -> list[Cell]:
    """The cells of these methods, with these values.

    Args:
        cells: All of them.
        methods: Names or labels, in any case; none means all.
        only: Axes or other facts of a cell, with the value as it is typed.

    Raises:
        UsageError: No cell has one of them.
    """
    kept = list(cells)
    wanted = {word.casefold() for word in methods}
    if wanted:
        names = {name.casefold(): name for cell in cells for name in (cell.method, cell.label)}
        for word in sorted(wanted - set(names)):
            advice = did_you_mean(word, names, f"expected {', '.join(dict.fromkeys(names.values()))}")
            raise UsageError(f"--methods: the experiment has no {word}: {advice}")
        kept = [cell for cell in kept if {cell.method.casefold(), cell.label.casefold()} & wanted]
    for key, value in only:
        known = dict.fromkeys([*(axis for cell in cells for axis in cell.varied), *_OF_EVERY_CELL])
        if key not in known:
            advice = did_you_mean(key, known, f"expected one of {', '.join(known)}")
            raise UsageError(f"--only {key}={value}: cells have no {key}: {advice}")
        values = dict.fromkeys(_value(cell, key) for cell in cells)
        if value not in values:
            raise UsageError(f"--only {key}={value}: no cell has it: {key} is {' or '.join(values)}")
        kept = [cell for cell in kept if _value(cell, key) == value]
    if not kept:
        raise UsageError("no cell has all that --methods and --only ask for")
    return kept


def _value(cell: Cell, key: str) -> str:
    return as_text(cell.varied[key] if key in cell.varied else cell.head()[key])


def table_of_cells(cells: Sequence[Cell], cache: ResultCache, durations: Durations) -> Table:
    """A row for each cell: what it is, whether it has finished, and how long it will take."""
    axes = list(dict.fromkeys(axis for cell in cells for axis in cell.varied))
    table = Table(box=None, pad_edge=False)
    for heading in ("cell", "label", *axes, "seed", "state", "expected"):
        table.add_column(heading)
    for cell in cells:
        values = [Text(_value(cell, axis)) if axis in cell.varied else Text("") for axis in axes]
        expected = durations.expected(cell)
        finished = cache.finished(cell) is not None
        cost = "" if finished else "not known" if expected is None else as_time(expected)
        state = "finished" if finished else "to run"
        table.add_row(cell.id[:8], Text(cell.label), *values, str(cell.seed), state, cost)
    return table


def forecast(
    cells: Sequence[Cell], cache: ResultCache, durations: Durations, workers: int, minutes: float | None
) -> str:
    """How many cells are left and how long they will take, in one sentence.

    Args:
        cells: Those asked for.
        cache: What has finished.
        durations: What was measured here.
        workers: Cells that run at once.
        minutes: What the whole experiment is known to take on 2 cores.
    """
    left = [cell for cell in cells if cache.finished(cell) is None]
    count = f"{len(cells)} cells, {len(cells) - len(left)} of them finished"
    if not left:
        return count
    seconds = durations.all_of(left, workers)
    if seconds is not None:
        return f"{count}: about {as_time(seconds)} for the others with {workers} at once"
    unknown = dict.fromkeys(cell.label for cell in left if durations.expected(cell) is None)
    said = "" if minutes is None else f"; all of it took {as_time(60 * minutes)} on 2 cores once"
    return f"{count}: how long the others take is not known, {', '.join(unknown)} never ran here{said}"
