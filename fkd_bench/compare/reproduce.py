"""`fkd-bench reproduce`: one cell of published results run again, and what agrees with what was published."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fkd_bench.compare.cell import Cell, Record, as_text
from fkd_bench.compare.checks import check_cells
from fkd_bench.compare.disk_space import full_disk_said
from fkd_bench.compare.experiment import Experiment
from fkd_bench.compare.grid import RUN_CELL, run_grid
from fkd_bench.compare.measures import number
from fkd_bench.compare.pool import ProcessPool
from fkd_bench.compare.result_cache import ResultCache
from fkd_bench.compare.results_folder import BYTE_COUNTS, CELLS_FILE, EXPERIMENT_FILE, NUMBERS, read_cells_csv
from fkd_bench.compare.settings import variables_with
from fkd_bench.compare.shared_folder import sweep
from fkd_bench.compare.span import cells_of
from fkd_bench.compare.watching import watch_for
from fkd_common.errors import ExitCode, FkdError, UsageError
from fkd_common.given_path import given_folder, given_path
from fkd_common.program import OneSentenceParser

_TIME = "seconds"
_BYTES_ROOM = 0.005
"""Of a byte count: how much zstd finds in a codec's tensors depends on their last bits, which another processor adds
otherwise."""
_HASHES = ("config_hash", "partition_hash", "model_hash")


@dataclass(frozen=True)
class Agreement:
    """What of a published row came out again."""

    lines: tuple[str, ...]
    """A sentence each."""
    holds: bool


def reproduce(arguments: list[str], run_cell: str = RUN_CELL) -> int:
    """Carry out `fkd-bench reproduce`.

    Args:
        arguments: What follows the verb.
        run_cell: What a worker does, as ``module:function``.

    Returns:
        The exit code: a failure if something does not agree.

    Raises:
        FkdError: The cell cannot be found or run.
    """
    parser = OneSentenceParser(
        prog="fkd-bench reproduce",
        description="Run one cell of published results again, and compare.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=given_path, help="of published results, as docs/results/NAME")
    parser.add_argument(
        "--cell", metavar="N|LABEL/.../SEED", help="row of cells.csv, from 1, or what it says (the cheapest)"
    )
    parser.add_argument(
        "--tolerance", type=_share, default=0.01, help="largest difference of accuracies (0.01)"
    )
    parser.add_argument(
        "--data-folder", type=given_path, metavar="DIR", help="where data lie; else $FKD_DATA"
    )
    parser.add_argument("--out", type=given_folder, metavar="DIR", help="keep what the run leaves there")
    flags = parser.parse_args(arguments)
    rows = read_cells_csv(flags.folder / CELLS_FILE)
    row = chosen_row(rows, flags.cell)
    experiment = Experiment.parse(
        _text(flags.folder / EXPERIMENT_FILE),
        flags.folder.resolve().name,
        str(flags.folder / EXPERIMENT_FILE),
    )
    cell = _cell_of(experiment, row, variables_with(flags.data_folder))
    check_cells([cell], experiment.where)
    print(f"running {cell} again (took {float(row[_TIME] or 0):.0f} s)", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        place = flags.out or Path(folder)
        cache = ResultCache(place)
        pool = ProcessPool(run_cell, cache.workspace, cache.logs, 1)
        with full_disk_said(place):
            sweep(cache.workspace)
            run_grid([cell], cache, pool, watch_for(1))
        (record,) = cache.records([cell])
    if record["error"]:
        raise FkdError(f"{cell} failed: {record['error']}")
    found = agreement(row, record, flags.tolerance)
    print("\n".join(found.lines))
    return ExitCode.OK if found.holds else ExitCode.FAILURE


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a number from 0 to 1 expected, got {text!r}")
    return value


def chosen_row(rows: Sequence[Mapping[str, str]], asked: str | None) -> Mapping[str, str]:
    """The row that is asked for.

    Args:
        rows: Of cells.csv.
        asked: Its number, from 1; or its label, further values and its seed, with slashes between; None for the one
            that took the fewest seconds.

    Raises:
        UsageError: There is no such row, or more than one.
    """
    if asked is None:
        return min(rows, key=lambda row: float(row[_TIME] or "inf"))
    if asked.isdecimal():
        if not 1 <= int(asked) <= len(rows):
            raise UsageError(f"--cell {asked}: {CELLS_FILE} has rows 1 to {len(rows)}")
        return rows[int(asked) - 1]
    label, *values = asked.split("/")
    matching = [
        (place, row)
        for place, row in enumerate(rows, start=1)
        if row["label"] == label and values[-1:] == [row["seed"]] and set(values) <= set(row.values())
    ]
    if not matching:
        labels = ", ".join(dict.fromkeys(row["label"] for row in rows))
        raise UsageError(f"--cell {asked}: no row says LABEL/.../SEED so; labels are {labels}")
    if len(matching) > 1:
        places = ", ".join(str(place) for place, _ in matching)
        raise UsageError(f"--cell {asked}: rows {places} all say so: give one of these numbers")
    return matching[0][1]


def agreement(row: Mapping[str, str], record: Record, tolerance: float) -> Agreement:
    """Compare a published row with the same cell run again.

    The division of the data must be the same, and so must the model and the bytes, or else the accuracies to within
    the tolerance and the bytes to 0.5 %: another processor or build of PyTorch adds numbers in another order.
    """
    lines, holds = [], True
    now = {name: number(record, *path) for name, path in NUMBERS.items() if name != _TIME}
    before = {name: float(row[name]) if row[name] else None for name in now}
    same = {name: str(record.get(name) or "") == row[name] for name in _HASHES}
    if not same["partition_hash"]:
        lines.append("the data are divided otherwise: other data, or other code that divides them")
        holds = False
    if not same["config_hash"]:
        lines.append(
            "the run configuration is not hashed as the published one: a default has changed, or a key has been added, "
            "since"
        )
    identical = same["model_hash"] and bool(row["model_hash"]) and now == before
    if identical:
        lines.append(f"the model is bit-identical: sha256 {row['model_hash']}")
    elif now == before:
        lines.append("every accuracy and byte count is the published one")
    for name in now:
        room = _BYTES_ROOM * (before[name] or 0.0) if name in BYTE_COUNTS else tolerance
        line, agrees = _compared(name, before[name], now[name], room)
        lines.append(line)
        holds = holds and agrees
    verdict = "reproduced" if holds else "NOT reproduced"
    if holds and now != before:
        verdict += f" to within {tolerance:g}: another processor or PyTorch adds in another order"
    return Agreement((*lines, verdict), holds)


def _compared(name: str, before: float | None, now: float | None, tolerance: float) -> tuple[str, bool]:
    if before is None or now is None:
        return f"{name}: {_shown(name, before)} published, {_shown(name, now)} now", before == now
    agrees = abs(before - now) <= tolerance
    same = "the same" if before == now else f"{_shown(name, before)} published"
    return f"{name}: {_shown(name, now)}, {same}" + ("" if agrees else ", which is too far"), agrees


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f} bytes" if name in BYTE_COUNTS else f"{100 * value:.2f} %"


def _cell_of(experiment: Experiment, row: Mapping[str, str], variables: Mapping[str, str]) -> Cell:
    """The experiment's cell that a row is about."""
    cells = cells_of(experiment, variables, [int(row["seed"])])
    for cell in cells:
        if cell.id == row["cell"]:
            return cell
    alike = [cell for cell in cells if cell.label == row["label"] and _says(cell, row)]
    if not alike:
        raise UsageError(f"{EXPERIMENT_FILE} has no cell for the row of {row['label']}, seed {row['seed']}")
    return alike[0]


def _says(cell: Cell, row: Mapping[str, str]) -> bool:
    """Whether a cell is what a row says, though its id is another: data or defaults have changed since."""
    facts = {**cell.head(), **cell.varied}
    return all(
        as_text(facts[name]) == row[name] for name in facts if name in row and name not in ("cell", "seed")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
