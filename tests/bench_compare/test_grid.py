"""Cells on workers: run once, whatever fails or is killed; what is shared is made once."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.disk_space import full_disk_said
from fkd_bench.compare.durations import Durations, as_time
from fkd_bench.compare.experiment import Experiment
from fkd_bench.compare.grid import run_grid
from fkd_bench.compare.method_source import source_sha256
from fkd_bench.compare.pool import ProcessPool
from fkd_bench.compare.result_cache import ResultCache
from fkd_bench.compare.schedule import Schedule
from fkd_bench.compare.span import cells_of
from fkd_bench.compare.watching import BarWatch, GridWatch, LineWatch
from fkd_bench.compare.worker import record_of
from fkd_common import failpoints
from fkd_common.errors import FkdError

from . import stand_in
from .conftest import small_cells

GOES_ON = [
    "fkd-bench compare: finished cells are kept; the same command goes on from there",
    "fkd-bench: error: stopped on request",
]


def grid(
    folder: Path, cells: list[Cell], what: str = "quick", workers: int = 1, watch: GridWatch | None = None
) -> list[Record]:
    cache = ResultCache(folder)
    pool = ProcessPool(f"{stand_in.HERE}:{what}", cache.workspace, cache.logs, workers)
    return run_grid(cells, cache, pool, watch or GridWatch(workers))


def ran(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "work" / stand_in.RAN).read_text().splitlines()]


def test_a_finished_cell_never_runs_again_not_even_for_another_experiment(tmp_path: Path) -> None:
    assert len(grid(tmp_path, small_cells("[fedavg, fedprox]"))) == 2
    renamed = small_cells("[{method: fedavg, label: Renamed}, fkd-rtm]")
    assert [record["label"] for record in grid(tmp_path, renamed)] == ["FKD-RTM"]
    assert [line[0] for line in ran(tmp_path)] == ["FedAvg", "FedProx", "FKD-RTM"]
    assert [record["label"] for record in ResultCache(tmp_path).records(renamed)] == ["Renamed", "FKD-RTM"]


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("one_fails", "no data at /nowhere: give an existing file"),
        ("one_has_a_bug", "ZeroDivisionError: integer division or modulo by zero (stand_in.py:"),
        ("one_dies", "its process ended with signal SIGKILL"),
    ],
)
def test_a_cell_that_fails_stops_no_other_and_is_tried_again(tmp_path: Path, what: str, error: str) -> None:
    cells = small_cells()
    errors = {record["label"]: record["error"] for record in grid(tmp_path, cells, what)}
    assert errors["FedProx"].startswith(error)
    assert (errors["FedAvg"], errors["FKD-RTM"]) == (None, None)
    assert [record["error"] for record in grid(tmp_path, cells)] == [None]
    assert all(record["error"] is None for record in ResultCache(tmp_path).records(cells))


def test_what_a_cell_prints_and_where_it_broke_is_in_its_log(tmp_path: Path) -> None:
    cells = small_cells()
    grid(tmp_path, cells, "one_has_a_bug")
    log = (tmp_path / "logs" / f"{cells[1].id}.log").read_text()
    assert log.startswith("about to divide\n")
    assert "1 // 0" in log


def test_workers_live_on_have_one_thread_and_no_settings_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FKD_DATA", "/somewhere")
    monkeypatch.setenv("FKD_ROUNDS", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)  # another test of this process may have set it
    records = grid(tmp_path, small_cells("[fedavg, fedprox]"), "tells_its_environment")
    assert [record["environment"] for record in records] == [{"OMP_NUM_THREADS": "1"}] * 2
    assert len({pid for *_, pid in ran(tmp_path)}) == 1
    assert os.environ["OMP_NUM_THREADS"] == "5"


DRIVER = """
import sys
from fkd_bench.cli import run_command
from fkd_bench.compare.cli import compare
if __name__ == "__main__":
    flags = [sys.argv[1], "--out", sys.argv[2], "--workers", "1"]
    slow = "tests.bench_compare.stand_in:slow_after_the_first"
    sys.exit(run_command(lambda: compare(flags, slow)))
"""
THREE = """
title: Three rows
data: {digits: {source: digits, extractor: pretrain, public: 300}}
seeds: [0]
methods: [{label: a}, {label: b, config: {lr: 0.1}}, {label: c, config: {lr: 0.2}}]
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [(signal.SIGKILL, -9, []), (signal.SIGINT, 130, GOES_ON), (signal.SIGTERM, 143, GOES_ON)],
)
def test_however_it_is_ended_nobody_works_on_and_the_same_command_goes_on(
    tmp_path: Path, how: signal.Signals, code: int, said: list[str]
) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "three.yaml").write_text(THREE)
    cache = tmp_path / "out" / ".cache"
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "three.yaml"), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 30
    marks = cache / "work" / stand_in.RAN
    while not (marks.exists() and len(ran(cache)) == 2) and time.monotonic() < until:
        time.sleep(0.05)
    worker = int(ran(cache)[-1][-1])
    process.send_signal(how)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code
    assert [line for line in errors.splitlines() if not line.startswith("{")] == said
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
    (cache / "work" / "go").touch()
    assert len(grid(cache, cells_of(Experiment.read(tmp_path / "three.yaml"), {}))) == 2
    assert [line[0] for line in ran(cache)] == ["a", "b", "b", "c"]


def test_a_record_is_plain_json_and_half_a_file_counts_as_none(tmp_path: Path) -> None:
    (cell,) = small_cells("[fedavg]")
    cache = ResultCache(tmp_path)
    kept = cache.keep(cell, stand_in.quick(cell, tmp_path))
    assert kept["accuracy"]["personal_full"] is None
    path = tmp_path / "cells" / f"{cell.id}.json"
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert cache.finished(cell) == kept
    path.write_text(path.read_text()[:50])
    assert cache.finished(cell) is None


def test_cells_of_an_edited_method_of_ones_own_run_again_and_it_is_said(
    tmp_path: Path, own_method: Path
) -> None:
    cells = small_cells("[fedavg, {method: mine, label: Mine}]")
    assert len(grid(tmp_path, cells)) == 2
    assert grid(tmp_path, cells) == []
    (own_method.parent / "helper.py").write_text("RATE = 2\n")
    source_sha256.cache_clear()
    out = io.StringIO()
    assert [record["label"] for record in grid(tmp_path, cells, watch=LineWatch(1, out))] == ["Mine"]
    assert (
        json.loads(out.getvalue().splitlines()[1])["what"]
        == "mine has been edited since: 1 of its cells run again"
    )
    assert [line[0] for line in ran(tmp_path)] == ["FedAvg", "Mine", "Mine"]
    source_sha256.cache_clear()
    assert grid(tmp_path, cells) == []


def test_a_full_disk_is_one_sentence_that_says_where_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = small_cells("[fedavg]")
    monkeypatch.setattr(failpoints, "_ARMED", True)
    monkeypatch.setattr(failpoints, "_NAME", "file.written")
    monkeypatch.setattr(failpoints, "_ACTION", "full")
    cache = ResultCache(tmp_path)
    said = f"the disk that has {tmp_path} is full: free some space there"
    with pytest.raises(FkdError, match=said), full_disk_said(tmp_path):
        cache.keep(cell, stand_in.quick(cell, tmp_path))
    assert list((tmp_path / "cells").iterdir()) == []
    record = record_of(f"{stand_in.HERE}:disk_is_full", cell, tmp_path)
    assert record["error"].startswith(f"the disk that has {tmp_path} is full")


# -- in which order -----------------------------------------------------------------------------------


def test_the_first_cell_of_a_division_runs_alone_and_workers_stay_with_theirs() -> None:
    cells = small_cells(seeds=[0, 1])
    schedule: Schedule[int] = Schedule(cells)
    first, second = schedule.take(1), schedule.take(2)
    assert first is not None
    assert second is not None
    assert (first.seed, second.seed) == (0, 1)
    assert schedule.take(3) is None
    schedule.done(first)
    third = schedule.take(3)
    assert third is not None
    assert third.seed == 0
    schedule.done(second)
    again = schedule.take(2)
    assert again is not None
    assert again.seed == 1


def test_a_worker_without_cells_of_its_own_helps_where_most_are_left() -> None:
    schedule: Schedule[int] = Schedule([*small_cells("[fedavg]"), *small_cells(seeds=[1])])
    order = []
    for _ in range(4):
        cell = schedule.take(1)
        assert cell is not None
        schedule.done(cell)
        order.append(cell.seed)
    assert order == [0, 1, 1, 1]
    assert schedule.take(1) is None


# -- how long -----------------------------------------------------------------------------------------


def test_time_is_foretold_from_the_same_method_on_the_same_data_by_mini_batches(tmp_path: Path) -> None:
    """2 s for 2 rounds of 5 steps at 2 of 3 clients: 0.1 s a mini-batch, and 3 s for 3 rounds."""
    (cell,) = small_cells("[fedavg]")
    (longer,) = small_cells("[{method: fedavg, config: {rounds: 3}}]")
    durations = Durations([stand_in.quick(cell, tmp_path)])
    assert durations.expected(longer) == pytest.approx(3.0)
    assert durations.all_of([cell, longer], workers=2) == pytest.approx(2.5)


def test_nothing_is_foretold_of_a_method_that_never_ran(tmp_path: Path) -> None:
    fedavg, fedprox = small_cells("[fedavg, fedprox]")
    durations = Durations([stand_in.quick(fedavg, tmp_path)])
    assert durations.expected(fedprox) is None
    assert durations.all_of([fedavg, fedprox], 1) is None


@pytest.mark.parametrize(("seconds", "said"), [(40, "40 s"), (720, "12 min"), (12600, "3.5 h")])
def test_time_is_said_as_people_do(seconds: float, said: str) -> None:
    assert as_time(seconds) == said


def test_a_program_is_told_every_event_as_one_json_object_a_line(tmp_path: Path) -> None:
    out = io.StringIO()
    grid(tmp_path, small_cells("[fedavg, fedprox]"), "one_fails", watch=LineWatch(1, out))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event["event"] for event in events] == [
        "grid_started", "cell_started", "cell_finished", "cell_started", "cell_failed", "grid_ended",
    ]  # fmt: skip
    assert events[0]["left_s"] is None
    assert (events[-1]["done"], events[-1]["of"], events[-1]["failed"]) == (2, 2, 1)
    assert events[-2]["error"] == "no data at /nowhere: give an existing file"


def test_a_person_sees_failures_and_no_estimate_before_there_is_one(tmp_path: Path) -> None:
    out = io.StringIO()
    watch = BarWatch(1, Console(file=out, force_terminal=True, width=200, color_system=None))
    grid(tmp_path, small_cells("[fedavg, fedprox]"), "one_fails", watch=watch)
    assert "failed FedProx, seed 0: no data at /nowhere" in out.getvalue()
    assert "no estimate until each method ran once" in out.getvalue()
