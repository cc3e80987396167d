"""`fkd-bench compare`: an experiment in, tables and a report out; nothing is computed here."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.checks import check_cells
from fkd_bench.compare.disk_space import full_disk_said
from fkd_bench.compare.durations import Durations
from fkd_bench.compare.experiment import Experiment
from fkd_bench.compare.grid import RUN_CELL, run_grid
from fkd_bench.compare.pool import ProcessPool
from fkd_bench.compare.ready import find_experiment, list_of_experiments
from fkd_bench.compare.result_cache import ResultCache
from fkd_bench.compare.results_folder import REPORT_FILE, TABLE_FILE, ResultsFolder, check_publishable
from fkd_bench.compare.selection import forecast, selected, table_of_cells
from fkd_bench.compare.settings import CACHE, CompareSettings, compare_parser, compare_settings
from fkd_bench.compare.shared_folder import sweep
from fkd_bench.compare.span import cells_of, reported
from fkd_bench.compare.tracking import Track, mlflow_tracker, tensorboard_tracker
from fkd_bench.compare.watching import watch_for
from fkd_bench.compare.worker import Workers
from fkd_common.errors import ExitCode, FkdError

_PLAIN_WIDTH = 240


def compare(arguments: list[str], run_cell: str = RUN_CELL) -> int:
    """Carry out `fkd-bench compare`.

    Args:
        arguments: What follows the verb.
        run_cell: What a worker does, as ``module:function``.

    Returns:
        The exit code: a failure if one cell that was asked for failed.

    Raises:
        FkdError: The experiment cannot be run or reported.
    """
    flags = compare_parser().parse_args(arguments)
    if flags.list:
        _wide_console().print(list_of_experiments())
        return ExitCode.OK
    settings = compare_settings(flags)
    with full_disk_said(settings.out):
        return _compare(settings, run_cell)


def _compare(settings: CompareSettings, run_cell: str) -> int:
    experiment, content = find_experiment(settings.experiment)
    if settings.publish is not None:
        check_publishable(experiment)
    folder = ResultsFolder(settings.out / experiment.name)
    if settings.report_only:
        _report(settings, experiment, folder, folder.records())
        return ExitCode.OK
    cells = cells_of(experiment, settings.variables, settings.seeds)
    chosen = selected(cells, settings.methods, settings.only)
    cache = ResultCache(settings.out / CACHE)
    check_cells((cell for cell in chosen if cache.finished(cell) is None), experiment.where)
    if settings.dry_run:
        durations = Durations(cache.all_finished())
        _wide_console().print(table_of_cells(chosen, cache, durations))
        print(forecast(chosen, cache, durations, settings.local_workers, experiment.minutes))
        return ExitCode.OK
    trackers = _trackers(settings)
    workers = _workers(settings, cache, run_cell)
    every = {cell.id: cell for cell in (*cells_of(experiment, settings.variables), *cells)}
    sweep(cache.workspace)
    try:
        run_grid(chosen, cache, workers, watch_for(workers.count))
    except KeyboardInterrupt:
        print(
            "fkd-bench compare: finished cells are kept; the same command goes on from there", file=sys.stderr
        )
        raise
    finally:
        records = cache.records(every.values())
        folder.write_results(records, content)
    for track in trackers:
        track(records)
    _report(settings, experiment, folder, records)
    return _verdict(chosen, records)


def _workers(settings: CompareSettings, cache: ResultCache, run_cell: str) -> Workers:
    if settings.ray is None:
        return ProcessPool(run_cell, cache.workspace, cache.logs, settings.local_workers)
    from fkd_bench.compare.ray_grid import RayPool

    return RayPool(run_cell, settings.ray, settings.workers, cache.workspace)


def _trackers(settings: CompareSettings) -> list[Track]:
    """Where curves go besides the report; made before anything runs, so that what is missing is said at once."""
    trackers = []
    if settings.tensorboard is not None:
        trackers.append(tensorboard_tracker(settings.tensorboard))
    if settings.mlflow is not None:
        trackers.append(mlflow_tracker(settings.mlflow))
    return trackers


def _report(
    settings: CompareSettings, experiment: Experiment, folder: ResultsFolder, records: Sequence[Record]
) -> None:
    from fkd_bench.compare.report import write_report

    described = reported(experiment, cells_of(experiment, None), settings.command)
    write_report(list(records), described, folder.path)
    print((folder.path / TABLE_FILE).read_text())
    print(f"report: {folder.path / REPORT_FILE}", file=sys.stderr)
    if settings.publish is not None:
        folder.publish(records, settings.publish)
        print(f"published: {settings.publish}", file=sys.stderr)


def _verdict(chosen: Sequence[Cell], records: Sequence[Record]) -> int:
    asked = {cell.id for cell in chosen}
    failed = [record for record in records if record["cell"] in asked and record.get("error")]
    if not failed:
        return ExitCode.OK
    first = failed[0]
    raise FkdError(
        f"{len(failed)} of {len(chosen)} cells failed, and are tried again by the same command; the first is "
        f"{first['label']}, seed {first['seed']}: {first['error']}"
    )


def _wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)
