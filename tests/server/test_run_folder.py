"""What a run leaves on disk: the same run assembled from a prepared folder, recorded, finished and read back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fkd_common.artifacts import sha256_hex
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, UsageError
from fkd_common.model_file import decode_model
from fkd_common.tensors import encode
from fkd_server.method.federated_method import Json
from fkd_server.model_card import Origin, model_card
from fkd_server.prepare import ANCHORS_FILE, CLASSES_KEY, EXTRACTOR_FILE
from fkd_server.recorder import Recorder
from fkd_server.run import Run, assemble
from fkd_server.run_folder import RunFolder
from fkd_server.run_state import Event
from fkd_server.settings import ServerSettings

from .tiny import ANCHORS, Site, filled, tiny_config, tiny_run


def settings(prepared: Path, **changes: Any) -> ServerSettings:
    keys = {**tiny_config(rounds=2).model_dump(), "prepared": prepared, "runs": prepared.parent / "runs"}
    return ServerSettings(**{**keys, "run_id": "run-1", **changes})


def finished(prepared: Path) -> tuple[Run, dict[str, Any]]:
    """A run of two rounds with two clients."""
    run = assemble(settings(prepared), prepared.parent / "cache")

    def answer(method: Any, request: bytes) -> bytes:
        response = run.service.handle(method, request)
        assert response is not None
        return response

    sites = [Site(name, answer) for name in "ab"]
    for site in sites:
        site.poll()
    for round_number in (1, 2):
        for site in sites:
            site.submit_student(round_number, filled(run.method, float(round_number)))
    return run, dict(run.finish())


def test_a_run_leaves_these_files(prepared: Path) -> None:
    run, _ = finished(prepared)
    run.close()
    files = {path.name for path in run.folder.path.iterdir() if path.is_file()}
    assert files == {
        "config.yaml", "rounds.jsonl", "ledger.csv", "model.safetensors", "MODEL_CARD.md", "summary.json",
        "state.db", "lock",
    }  # fmt: skip


def test_every_round_is_one_line(prepared: Path) -> None:
    run, _ = finished(prepared)
    lines = [json.loads(line) for line in (run.folder.path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert lines[0].keys() == {"round", "clients", "cohort", "phases", "seconds"}
    student = lines[0]["phases"]["student"]
    assert (student["returned"], student["missing"], student["failed"]) == (["a", "b"], [], {})
    assert student["weights"] == {"a": 0.5, "b": 0.5}
    assert lines[1]["phases"]["student"]["student"] == run.method.state.student.sha256


def test_the_ledger_on_disk_is_the_one_in_memory(prepared: Path) -> None:
    run, _ = finished(prepared)
    text = (run.folder.path / "ledger.csv").read_text()
    assert text == run.service.ledger.to_csv()
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["client"] for row in rows} == {"a", "b"}


def test_the_summary_says_how_it_went(prepared: Path) -> None:
    run, summary = finished(prepared)
    assert json.loads((run.folder.path / "summary.json").read_text()) == summary
    assert summary.keys() == {
        "run_id", "state", "detail", "accuracy", "bytes", "seconds", "server", "model_hash", "config_hash",
    }  # fmt: skip
    assert (summary["run_id"], summary["state"]) == ("run-1", "completed")
    assert summary["config_hash"] == run.config.sha256()
    assert summary["bytes"].keys() == {"payload", "message", "wasted", "by_phase"}
    assert summary["seconds"].keys() == {"total", "phases"}
    assert summary["server"].keys() == {"peak_rss_mb", "cpu_s"}


def test_the_model_and_its_card_belong_together(prepared: Path) -> None:
    run, summary = finished(prepared)
    blob = (run.folder.path / "model.safetensors").read_bytes()
    model, card = decode_model(blob), (run.folder.path / "MODEL_CARD.md").read_text()
    assert summary["model_hash"] == sha256_hex(blob)
    for fact in (
        "run-1", sha256_hex(blob), "cat, dog", "model after round 2 of 2.\n", run.config.sha256(),
        model.header.extractor_sha256, "Not evaluated", "## Intended use",
    ):  # fmt: skip
        assert fact in card
    assert model.student["output.bias"].tolist() == [2.0, 2.0]


def test_the_configuration_on_disk_starts_the_same_run(prepared: Path) -> None:
    run, _ = finished(prepared)
    text = (run.folder.path / "config.yaml").read_text()
    assert text.startswith(f"# sha256 {run.config.sha256()}\n# classes: cat, dog\n")
    assert RunConfig(**yaml.safe_load(text)).sha256() == run.config.sha256()


def test_equal_runs_publish_equal_models(prepared: Path, tmp_path: Path) -> None:
    _, first = finished(prepared)
    other = tmp_path / "elsewhere" / "prepared"
    other.parent.mkdir()
    prepared.rename(other)
    _, second = finished(other)
    assert first["model_hash"] == second["model_hash"]


def test_an_aborted_run_publishes_no_model_but_says_why(prepared: Path) -> None:
    run = assemble(settings(prepared), prepared.parent / "cache")
    run.service.abort("stopped")
    summary = run.finish()
    assert (summary["state"], summary["detail"], summary["model_hash"]) == ("aborted", "stopped", None)
    assert not (run.folder.path / "model.safetensors").exists()


def test_accuracies_enter_card_and_round(prepared: Path, tmp_path: Path) -> None:
    run, _ = finished(prepared)
    folder, model = RunFolder(tmp_path / "evaluated"), run.method.model()
    accuracy: dict[str, Json] = {"student": 0.5, "published": 0.5, "recall": [0.5]}
    folder.write_card(model_card(model, "0" * 64, Origin("run-2", 3, ""), accuracy))
    card = (folder.path / "MODEL_CARD.md").read_text()
    assert "| student | 0.5000 |" in card
    assert "| class | recall |\n|---|---|\n| cat | 0.5000 |\n" in card


def test_a_run_folder_is_never_written_into_twice(prepared: Path) -> None:
    finished(prepared)
    with pytest.raises(UsageError, match="choose another --run-id"):
        assemble(settings(prepared), prepared.parent / "cache")


def test_a_missing_test_set_is_noticed_before_anything_is_made(prepared: Path) -> None:
    with pytest.raises(UsageError, match="no such shard folder"):
        assemble(settings(prepared, test=prepared / "none"), prepared.parent / "cache")
    assert not (prepared.parent / "runs").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / ANCHORS_FILE).unlink(),
        lambda folder: (folder / EXTRACTOR_FILE).unlink(),
        lambda folder: (folder / EXTRACTOR_FILE).write_bytes(b"not tensors"),
        lambda folder: (folder / ANCHORS_FILE).write_bytes(encode({"embeddings": ANCHORS})),
        lambda folder: (folder / ANCHORS_FILE).write_bytes(
            encode({"embeddings": ANCHORS[:1]}, {CLASSES_KEY: '["a", "b"]'})
        ),
        lambda folder: (folder / ANCHORS_FILE).write_bytes(
            encode({"embeddings": ANCHORS}, {CLASSES_KEY: '["a"]'})
        ),
        lambda folder: (folder / ANCHORS_FILE).write_bytes(
            encode({"embeddings": ANCHORS}, {CLASSES_KEY: "3"})
        ),
    ],
    ids=["no anchors", "no extractor", "no tensors", "no classes", "1 anchor", "1 class", "classes a number"],
)
def test_a_folder_that_was_not_prepared_is_refused_by_name(prepared: Path, change: Any) -> None:
    change(prepared)
    with pytest.raises(DataError, match=r"prepare|expected at least 2"):
        assemble(settings(prepared), prepared.parent / "cache")


@pytest.mark.scenario(28)
def test_records_a_full_disk_refused_are_written_with_the_next_one(tmp_path: Path) -> None:
    """Scenario 28."""
    run = tiny_run(tmp_path / "method")
    folder = RunFolder(tmp_path / "run")
    recorder = Recorder("r", folder, run.method, run.store, tmp_path / "evaluations")
    away = tmp_path / "away"
    folder.path.rename(away)
    recorder.on_event(Event("round_closed", {"round": 1, "cohort": [], "seconds": 1.0, "phases": {}}))
    away.rename(folder.path)
    recorder.on_event(Event("round_closed", {"round": 2, "cohort": [], "seconds": 1.0, "phases": {}}))
    lines = (folder.path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
