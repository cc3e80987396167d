"""One run of two rounds with every phase, three client processes and a coordinator process."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fkd_bench.load.programs import Proxy, programs
from fkd_common.addresses import split_address
from fkd_common.artifacts import sha256_hex
from fkd_common.config import RunConfig

from .conftest import CORRUPT, World
from .programs import Launcher, Program, address_of

pytestmark = pytest.mark.e2e

CLIENTS = ("pictures", "one_class", "one_sample")
BEFORE_ROUND_1 = {"moments", "refine_1", "refine_2", "votes"}
PHASES = {"student", "residuals", "personal"} | BEFORE_ROUND_1


@dataclass(frozen=True)
class FinishedRun:
    """What a run left behind."""

    folder: Path
    exit_codes: dict[str, int]
    programs: list[Program]
    wire_up: int
    wire_down: int
    mapped: str

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="module")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """The client "pictures" reaches the coordinator through a counting proxy, with an empty artifact cache."""
    folder = tmp_path_factory.mktemp("whole")
    launch = Launcher(folder, world.cache, world.prepared)
    try:
        # Nobody is to be lost here, however busy the machine.
        server = launch.server(
            "--rounds", "2", "--min-clients", "3", "--heartbeat-s", "1", "--heartbeat-limit-s", "30"
        )
        with programs(folder) as beside:
            proxy = Proxy(beside, split_address(address_of(server))[1])
            artifacts = ("--artifacts", str(folder / "artifacts"), "--max-bad", "0.1")
            launch.client(world.sites / "pictures", f"127.0.0.1:{proxy.port}", *artifacts)
            for name in CLIENTS[1:]:
                launch.client(world.sites / name, address_of(server))
            server.wait_for("run_completed")
            mapped = Path(f"/proc/{server.pid}/maps").read_text()
            exit_codes = {program.name: program.end() for program in launch.started}
            yield FinishedRun(launch.runs / "run", exit_codes, launch.started, *proxy.passed(), mapped)
    finally:
        launch.stop()


def test_what_a_site_logs_of_its_work_names_round_and_phase(run: FinishedRun) -> None:
    for program in run.programs[1:]:
        begun = next(n for n, event in enumerate(program.events) if event["event"] == "prepared")
        working = [event for event in program.events[begun:] if event["event"] == "working"]
        # The last is of the report.
        named = {(event.get("round"), event.get("phase")) for event in working[:-1]}
        assert {phase for _, phase in named} - {None} <= PHASES
        assert {number for number, _ in named} >= {0, 1, 2}


def test_everyone_ends_with_exit_code_0_and_without_a_traceback(run: FinishedRun) -> None:
    assert run.exit_codes == dict.fromkeys(["server", *CLIENTS], 0)
    for program in run.programs:
        assert "Traceback" not in program.stderr


def test_the_run_folder_has_configuration_rounds_ledger_model_card_and_summary(run: FinishedRun) -> None:
    config = RunConfig(**yaml.safe_load((run.folder / "config.yaml").read_text()))
    summary = run.json("summary.json")
    assert summary["state"] == "completed"
    assert summary["config_hash"] == config.sha256()
    model = (run.folder / "model.safetensors").read_bytes()
    assert summary["model_hash"] == sha256_hex(model)
    assert sha256_hex(model) in (run.folder / "MODEL_CARD.md").read_text()
    rounds = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in rounds] == [0, 1, 2]
    assert [set(record["phases"]) for record in rounds] == [BEFORE_ROUND_1, {"student"}, PHASES]
    for record in rounds:
        for phase in record["phases"].values():
            assert phase["returned"] == sorted(CLIENTS)


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_keeps_its_report_and_a_personal_model(run: FinishedRun, name: str) -> None:
    report = run.json(f"client-{name}/report.json")
    assert report["run_id"] == "run"
    assert report["client"] == name
    assert report["personal"]["chosen"] in report["personal"]["validation_accuracy"]
    assert (run.folder / f"client-{name}" / "model.safetensors").stat().st_size > 0
    assert run.json(f"client-{name}/model.json")


@pytest.mark.parametrize("name", CLIENTS)
def test_both_ledgers_agree_row_by_row(run: FinishedRun, name: str) -> None:
    of_client = _rows(run.folder / f"client-{name}" / "ledger.csv")
    of_server = [row for row in _rows(run.folder / "ledger.csv") if row["client"] == name]
    assert {row["phase"] for row in of_client} == PHASES | {"setup", "control"}
    assert of_client == of_server


def test_the_coordinators_ledger_knows_no_other_callers(run: FinishedRun) -> None:
    assert {row["client"] for row in _rows(run.folder / "ledger.csv")} == set(CLIENTS)


def test_message_bytes_are_within_two_percent_of_the_bytes_on_the_wire(run: FinishedRun) -> None:
    rows = _rows(run.folder / "client-pictures" / "ledger.csv")
    for wire, direction in ((run.wire_up, "message_up"), (run.wire_down, "message_down")):
        booked = sum(int(row[direction]) for row in rows)
        assert booked <= wire <= 1.02 * booked


@pytest.mark.scenario(40)
def test_a_corrupt_image_is_named_counted_and_skipped(run: FinishedRun) -> None:
    report = run.json("client-pictures/report.json")
    assert len(report["bad_images"]) == 1
    assert report["bad_images"][0].startswith(CORRUPT)
    assert sum(report["samples"].values()) == 23
    client = next(program for program in run.programs if program.name == "pictures")
    assert CORRUPT in client.wait_for("image_skipped")["detail"]


@pytest.mark.scenario(37, 38)
def test_sites_with_one_class_and_one_sample_count_like_any_other(run: FinishedRun) -> None:
    one_class, one_sample = (
        run.json("client-one_class/report.json"),
        run.json("client-one_sample/report.json"),
    )
    assert sum(count > 0 for count in one_class["class_counts"]) == 1
    assert one_sample["samples"] == {"train": 1, "validation": 0}
    student = json.loads((run.folder / "rounds.jsonl").read_text().splitlines()[1])["phases"]["student"]
    assert student["samples"]["one_sample"] == 1
    assert all(weight > 0 for weight in student["weights"].values())


def test_the_coordinator_never_loads_torch_and_stays_within_150_mb(run: FinishedRun) -> None:
    assert "libtorch" not in run.mapped
    assert "lib_lightgbm" not in run.mapped
    assert run.json("summary.json")["server"]["peak_rss_mb"] <= 150


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))
