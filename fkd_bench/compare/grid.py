"""All cells of a comparison: finished ones are taken as they are, the others run; one never stops another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.durations import Durations
from fkd_bench.compare.result_cache import ResultCache
from fkd_bench.compare.schedule import Schedule
from fkd_bench.compare.watching import GridWatch
from fkd_bench.compare.worker import Workers

RUN_CELL = "fkd_bench.compare.cell_run:run_cell"
"""What a worker does."""


def run_grid(cells: Sequence[Cell], cache: ResultCache, workers: Workers, watch: GridWatch) -> list[Record]:
    """Run the cells that have not finished; each is written down as soon as it has.

    Args:
        cells: All of them.
        cache: Where finished cells are looked for and kept.
        workers: Where the others run.
        watch: Told what happens.

    Returns:
        Records of the cells that ran now, in the order in which they ended.
    """
    to_run = [cell for cell in cells if cache.finished(cell) is None]
    durations = Durations(cache.all_finished())
    watch.begin(len(cells), to_run, durations)
    for method, count in Counter(cell.method for cell in to_run if cache.outdated(cell)).items():
        watch.say(f"{method} has been edited since: {count} of its cells run again")
    ended: list[Record] = []
    try:
        for cell, record in workers.run(Schedule(to_run), watch) if to_run else ():
            ended.append(cache.keep(cell, record))
            for remark in record.get("remarks") or ():
                watch.say(remark)
            watch.ended(cell, ended[-1])
    finally:
        watch.close()
    return ended
