"""`fkd-bench reproduce`: which published row is meant, and what counts as having come out again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fkd_bench.compare.cell import Record
from fkd_bench.compare.cli import compare
from fkd_bench.compare.reproduce import agreement, chosen_row, reproduce
from fkd_bench.compare.results_folder import cells_csv, read_cells_csv
from fkd_common.errors import DataError, UsageError

from . import stand_in
from .conftest import SMALL, small_cells

QUICK = f"{stand_in.HERE}:quick"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    (folder / "small.yaml").write_text(SMALL)
    flags = ["--out", str(folder / "out"), "--workers", "1", "--publish", str(folder / "docs" / "small")]
    compare([str(folder / "small.yaml"), *flags], QUICK)
    return folder / "docs" / "small"


def row_and_record(tmp_path: Path) -> tuple[dict[str, str], Record]:
    (cell,) = small_cells("[fedavg]")
    record = stand_in.quick(cell, tmp_path)
    (tmp_path / "cells.csv").write_text(cells_csv([record]))
    return read_cells_csv(tmp_path / "cells.csv")[0], record


def test_the_same_model_is_reproduced_bit_by_bit(tmp_path: Path) -> None:
    row, record = row_and_record(tmp_path)
    found = agreement(row, {**record, "accuracy": {**record["accuracy"], "personal_full": None}}, 0.01)
    assert found.holds
    assert found.lines[0] == f"the model is bit-identical: sha256 {record['model_hash']}"
    assert found.lines[-1] == "reproduced"


@pytest.mark.parametrize(("moved", "holds"), [(0.005, True), (0.02, False)])
def test_another_model_is_if_its_accuracy_is_near(tmp_path: Path, moved: float, holds: bool) -> None:
    row, record = row_and_record(tmp_path)
    accuracy = {"global": record["accuracy"]["global"] + moved, "personal_matched": 0.66}
    found = agreement(row, {**record, "model_hash": "another", "accuracy": accuracy}, 0.01)
    assert found.holds is holds
    assert found.lines[-1].startswith("reproduced to within 0.01" if holds else "NOT reproduced")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bytes": {"up": 21, "down": 40}}, "up: 21 bytes, 20 bytes published, which is too far"),
        ({"partition_hash": "another"}, "the data are divided otherwise"),
        ({"accuracy": {"personal_matched": 0.66}}, "global: 56.00 % published, none now"),
    ],
)
def test_other_bytes_other_data_or_a_missing_accuracy_are_not(
    tmp_path: Path, change: Record, said: str
) -> None:
    row, record = row_and_record(tmp_path)
    found = agreement(row, {**record, **change}, 0.01)
    assert not found.holds
    assert any(line.startswith(said) for line in found.lines)


@pytest.mark.parametrize(("up", "holds"), [(20_080, True), (20_200, False)])
def test_bytes_of_squeezed_tensors_may_differ_a_little(tmp_path: Path, up: int, holds: bool) -> None:
    row, record = row_and_record(tmp_path)
    changed = {
        **record,
        "bytes": {"up": up, "down": 40},
        "accuracy": {**record["accuracy"], "personal_full": None},
    }
    assert agreement({**row, "up": "20000"}, changed, 0.01).holds is holds


def test_a_changed_default_or_an_added_key_is_said_and_decides_nothing(tmp_path: Path) -> None:
    row, record = row_and_record(tmp_path)
    changed = {**record, "config_hash": "another", "accuracy": {**record["accuracy"], "personal_full": None}}
    found = agreement(row, changed, 0.01)
    assert found.holds
    assert found.lines[0].startswith(
        "the run configuration is not hashed as the published one: a default has "
    )
    assert found.lines[0].endswith("or a key has been added, since")


def test_a_row_is_named_by_number_or_by_what_it_says(published: Path) -> None:
    rows = read_cells_csv(published / "cells.csv")
    assert chosen_row(rows, "3") is rows[2]
    assert chosen_row(rows, "FedProx/iid/1")["partition"] == "iid"
    assert chosen_row([{**rows[0], "seconds": "9"}, {**rows[1], "seconds": "3"}], None)["seconds"] == "3"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("0", "has rows 1 to 12"),
        ("13", "has rows 1 to 12"),
        ("FedProx/1", "rows 8, 11 all say so"),
        ("FedPro/1", "labels are FedAvg, FedProx, FKD-RTM"),
        ("FedProx", "no row says"),
    ],
)
def test_no_or_no_single_row_is_one_sentence(published: Path, asked: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen_row(read_cells_csv(published / "cells.csv"), asked)


def test_a_published_cell_is_run_again_and_compared(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert reproduce([str(published), "--cell", "FedAvg/iid/1"], QUICK) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "reproduced"
    altered = shutil.copytree(published, tmp_path / "small")
    csv = altered / "cells.csv"
    csv.write_text(csv.read_text().replace("0.561", "0.761"))
    assert reproduce([str(altered), "--cell", "FedAvg/iid/1"], QUICK) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "NOT reproduced"


def test_a_folder_without_published_results_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give a folder that `compare --publish` wrote"):
        reproduce([str(tmp_path)], QUICK)


@pytest.mark.parametrize("tolerance", ["nan", "inf", "-0.1", "1.1", "little"])
def test_a_tolerance_is_a_share(tolerance: str) -> None:
    with pytest.raises(UsageError, match="--tolerance: a number from 0 to 1 expected"):
        reproduce(["docs", f"--tolerance={tolerance}"], QUICK)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("0.561", "much", "row 7: global = 'much' is no number"),
        (",1,", ",one,", "row 7: seed = 'one' is no number"),
        (",20,40,", ",20,nan,", "row 1: down = 'nan' is no number"),
        (",20,40,", ",20,", "row 1, has more or fewer values than there are columns"),
        (",20,40,", ",20,40,7,", "row 1, has more or fewer values than there are columns"),
    ],
)
def test_words_in_the_table_of_cells_are_one_sentence(
    published: Path, tmp_path: Path, before: str, after: str, said: str
) -> None:
    text = (published / "cells.csv").read_text()
    assert before in text
    (tmp_path / "cells.csv").write_text(text.replace(before, after, 1))
    with pytest.raises(DataError, match=said):
        reproduce([str(tmp_path)], QUICK)
