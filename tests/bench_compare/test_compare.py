"""`fkd-bench compare` from flags to a folder of results, with workers that make their records up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fkd_bench.compare.cli import compare
from fkd_bench.compare.results_folder import cells_csv, read_cells_csv
from fkd_bench.compare.settings import compare_parser, compare_settings
from fkd_common.errors import DataError, FkdError, UsageError

from . import stand_in
from .conftest import SMALL, small_cells


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FKD_DATA", raising=False)


RECORD = (
    '{"cell": "c", "experiment": "small", "method": "fedavg", "label": "FedAvg", "dataset": "digits", '
    '"partition": "iid", "clients": 3, "seed": 0, "varied": {"partition": "iid"}, "config": {}, "accuracy": {}, '
    '"rounds": [], "bytes": {}, "seconds": {}}'
)


def run(small: Path, *more: str, what: str = "quick") -> int:
    out = str(small.parent / "out")
    return compare([str(small), "--out", out, "--workers", "1", *more], f"{stand_in.HERE}:{what}")


def results(small: Path) -> list[dict[str, Any]]:
    lines = (small.parent / "out" / "small" / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_results_tables_and_report_are_written(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(small) == 0
    folder = small.parent / "out" / "small"
    assert {path.name for path in folder.iterdir()} >= {
        "results.jsonl", "experiment.yaml", "table.md", "table.tex", "report.html", "figures",
    }  # fmt: skip
    assert (folder / "experiment.yaml").read_text() == small.read_text()
    records = results(small)
    assert len(records) == 12
    assert records[0]["varied"] == {"partition": "dirichlet:0.1"}
    printed = capsys.readouterr()
    assert "| FedAvg | 56.05 (0.07) | 66.05 (0.07) |" in printed.out
    assert f"report: {folder / 'report.html'}" in printed.err


def test_some_cells_alone_are_run_and_all_that_is_known_is_reported(small: Path) -> None:
    assert run(small, "--methods", "FedAvg", "--seeds", "0", "--only", "partition=iid") == 0
    assert [(record["label"], record["seed"], record["partition"]) for record in results(small)] == [
        ("FedAvg", 0, "iid")
    ]
    assert run(small, "--methods", "fedprox", "--seeds", "7") == 0
    assert [(record["label"], record["seed"]) for record in results(small)] == [
        ("FedAvg", 0), ("FedProx", 7), ("FedProx", 7),
    ]  # fmt: skip


def test_a_failure_is_reported_and_the_exit_code_says_so(small: Path) -> None:
    with pytest.raises(
        FkdError, match=r"4 of 12 cells failed.*FedProx, seed 0: no data at /nowhere"
    ) as raised:
        run(small, what="one_fails")
    assert raised.value.exit_code == 1
    assert sum(record["error"] is not None for record in results(small)) == 4
    assert "no data at …/nowhere: give" in (small.parent / "out" / "small" / "table.md").read_text()


def test_a_dry_run_lists_cells_and_writes_nothing(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(small, "--dry-run", "--seeds", "0") == 0
    assert not (small.parent / "out").exists()
    printed = capsys.readouterr().out
    assert "6 cells, 0 of them finished: how long the others take is not known" in printed
    run(small, "--seeds", "0", "--only", "partition=iid")
    capsys.readouterr()
    assert run(small, "--dry-run", "--seeds", "0") == 0
    assert "6 cells, 3 of them finished: about 6 s for the others with 1 at once" in capsys.readouterr().out


def test_a_report_is_made_anew_from_results_alone(small: Path) -> None:
    run(small, "--seeds", "0")
    table = small.parent / "out" / "small" / "table.md"
    before = table.read_text()
    table.unlink()
    (small.parent / "out" / ".cache").rename(small.parent / "gone")
    assert run(small, "--report-only") == 0
    assert table.read_text() == before


def test_a_report_without_results_is_refused(small: Path) -> None:
    with pytest.raises(DataError, match=r"no results in .*: run the experiment first"):
        run(small, "--report-only")


def test_ready_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["e01-cifar10", "108"] for line in lines)


def test_published_results_are_small_and_complete(small: Path) -> None:
    target = small.parent / "docs"
    (target / "figures").mkdir(parents=True)
    (target / "figures" / "stale.svg").touch()
    assert run(small, "--publish", str(target)) == 0
    assert {path.name for path in target.iterdir()} == {
        "cells.csv", "experiment.yaml", "table.md", "table.tex", "report.html", "figures",
    }  # fmt: skip
    assert not (target / "figures" / "stale.svg").exists()
    rows = read_cells_csv(target / "cells.csv")
    assert len(rows) == 12
    record = results(small)[1]
    assert rows[1]["model_hash"] == record["model_hash"]
    assert float(rows[1]["global"]) == record["accuracy"]["global"]
    assert (rows[1]["up"], rows[1]["down"], rows[1]["personal_full"]) == ("20", "40", "")


def test_a_label_in_the_csv_is_no_formula(tmp_path: Path) -> None:
    (cell,) = small_cells("[{method: fedavg, label: '=1+1'}]")
    assert "\n'=1+1," in cells_csv([stand_in.quick(cell, tmp_path)])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--methods", "fedavgg"], "has no fedavgg: did you mean fedavg"),
        (["--only", "partitio=iid"], "cells have no partitio: did you mean partition"),
        (["--only", "partition=sites"], "no cell has it: partition is dirichlet:0.1 or iid"),
        (["--only", "label=FedAvg", "--methods", "fedprox"], "no cell has all that"),
        (["--only", "iid"], "KEY=VALUE expected"),
        (["--seeds", "a"], "whole numbers as in 0,1,2 expected"),
        (["--workers", "0"], "at least 1 expected"),
        (["--data-folder", "/nowhere"], "/nowhere is no folder"),
        (["--dry-run", "--report-only"], "give one of them"),
        (["--worker", "2"], "did you mean --workers"),
        (["--out", "{file}"], "--out: a folder expected, and {file} is none"),
        (["--out", "{file}/below"], "--out: a folder expected, and {file} is none"),
        (["--publish", "{file}"], "--publish: a folder expected, and {file} is none"),
        (["--tensorboard", "{file}"], "--tensorboard: a folder expected, and {file} is none"),
    ],
)
def test_a_wrong_flag_is_one_sentence(small: Path, flags: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said.format(file=small)):
        run(small, *(flag.format(file=small) for flag in flags))


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_what_cannot_be_run_is_refused_by_a_dry_run_as_by_the_run(small: Path, flags: list[str]) -> None:
    small.write_text(SMALL.replace("mu: 0.1", "mu: abc"))
    with pytest.raises(UsageError, match=f"experiment {small}: FedProx, .*: options of fedprox: mu"):
        run(small, *flags)
    assert not (small.parent / "out").exists()


@pytest.mark.parametrize(
    "odd",
    [
        "[1]",
        "{}",
        "[" * 100_000,
        '{"cell": NaN}',
        "half a li",
        RECORD.replace('"seed": 0', '"seed": "zero"'),
        RECORD.replace('"accuracy": {}', '"accuracy": {"global": 1e300}'),
        RECORD.replace('"label": "', '"label": "\\ud800'),
        RECORD.replace('"rounds": []', '"rounds": [{"round": "first"}]'),
        RECORD.replace('"config": {}', '"config": {"options": 1}'),
    ],
)
def test_odd_results_are_one_sentence_that_names_the_line(small: Path, odd: str) -> None:
    path = small.parent / "out" / "small" / "results.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(f"{RECORD}\n{odd}\n")
    with pytest.raises(
        DataError, match=f"{path}, line 2, is no record .*: the same command without"
    ) as raised:
        run(small, "--report-only")
    assert len(str(raised.value)) < 500
    path.write_text(RECORD)
    assert run(small, "--report-only") == 0


def test_what_is_published_names_no_place_of_this_machine(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "docs"
    with pytest.raises(FkdError, match="4 of 12 cells failed"):
        run(small, "--publish", str(target), what="one_dies")
    for file in filter(Path.is_file, target.rglob("*")):
        assert str(tmp_path) not in file.read_text()
    assert "its process ended with signal SIGKILL" in (target / "table.md").read_text()
    small.write_text(SMALL.replace("source: digits", f"source: 'npz:{tmp_path}/a.npz'"))
    with pytest.raises(
        UsageError, match=r"data\.digits\.source = .* to publish, write \$\{FKD_DATA\}/a\.npz"
    ):
        run(small, "--publish", str(target))


def test_no_experiment_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="which experiment"):
        compare([])


def test_one_worker_per_core_unless_told_otherwise() -> None:
    def workers(*flags: str) -> int:
        return compare_settings(compare_parser().parse_args(["x", *flags])).local_workers

    assert workers("--workers", "3") == 3
    assert workers() == len(os.sched_getaffinity(0))


def test_the_command_in_a_report_names_no_place_of_this_machine(tmp_path: Path) -> None:
    flags = compare_parser().parse_args(["digits", "--data-folder", str(tmp_path), "--workers", "3"])
    assert compare_settings(flags).command == "fkd-bench compare digits --data-folder DIR"
