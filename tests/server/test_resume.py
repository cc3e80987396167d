"""Which run a coordinator goes on with, and when it refuses; scenarios 26 and 30."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog

from fkd_common.artifacts import Artifact
from fkd_common.errors import DataError, RefusedError, UnreachableError, UsageError
from fkd_server.doctor import examine
from fkd_server.resume import folder_for, sources_of, unfinished_runs
from fkd_server.run import Run, assemble
from fkd_server.run_state import RunState
from fkd_server.settings import ServerSettings
from fkd_server.store import RunDescription

from .test_run_folder import settings
from .tiny import STUDENT, Site, filled


def start(prepared: Path, **changes: Any) -> Run:
    return assemble(settings(prepared, **changes), prepared.parent / "cache")


def test_an_unfinished_run_goes_on_and_a_finished_one_does_not(prepared: Path) -> None:
    runs = prepared.parent / "runs"
    first = start(prepared, run_id=None)
    name = first.run_id
    first.close()
    again = start(prepared, run_id=None)
    assert again.run_id == name
    again.coordinator.abort("enough")
    again.finish()
    again.close()
    assert unfinished_runs(runs) == []
    assert start(prepared, run_id=None).run_id != name
    with pytest.raises(UsageError, match="is finished"):
        start(prepared, run_id=name)


def test_a_finished_run_is_shown_when_asked_for_and_stays_as_it_is(prepared: Path) -> None:
    """A service that is started again after its run was over has something to serve, and does not begin another."""
    first = start(prepared)
    a = Site("a", lambda method, raw: first.service.handle(method, raw) or b"")
    first.coordinator.abort("enough")
    first.finish()
    first.close()
    summary = (first.folder.path / "summary.json").read_bytes()
    again = start(prepared, serve=True)
    assert again.folder.finished
    assert again.overview.status().state == "aborted"
    a.answer = lambda method, raw: again.service.handle(method, raw) or b""
    assert a.poll().finished.detail == "enough"
    again.close()
    assert (first.folder.path / "summary.json").read_bytes() == summary


def test_a_run_that_ended_without_its_summary_is_finished_by_the_next_process(prepared: Path) -> None:
    first = start(prepared)
    first.coordinator.abort("the disk was full for the rest")
    first.close()
    again = start(prepared)
    assert again.coordinator.state is RunState.ABORTED
    again.finish()
    again.close()
    assert (again.folder.path / "summary.json").exists()


def test_a_new_run_is_begun_when_asked_for(prepared: Path) -> None:
    first = start(prepared, run_id=None)
    first.close()
    second = start(prepared, run_id=None, new_run=True)
    assert second.run_id != first.run_id
    with pytest.raises(UsageError, match="exists: choose another --run-id"):
        start(prepared, run_id=first.run_id, new_run=True)


def test_the_run_active_last_goes_on(prepared: Path) -> None:
    for name in ("old", "new"):
        start(prepared, run_id=name).close()
    runs = prepared.parent / "runs"
    (runs / "old" / "state.db").touch()
    assert folder_for(settings(prepared, run_id=None)) == runs / "old"


@pytest.mark.scenario(26)
def test_a_run_is_served_once(prepared: Path) -> None:
    """Scenario 26."""
    first = start(prepared)
    with pytest.raises(UsageError, match="is served by another fkd-server"):
        start(prepared)
    first.close()
    start(prepared).close()


@pytest.mark.scenario(30)
def test_every_difference_is_listed(prepared: Path) -> None:
    """Scenario 30."""
    start(prepared).close()
    with pytest.raises(
        RefusedError,
        match=r"dropout: 0.0 → 0.1,0.1; hidden: 2 → 4,3; tau_r: 0.1 → 0.2",
    ):
        start(prepared, hidden=(4, 3), dropout=(0.1, 0.1), tau_r=0.2)


@pytest.mark.scenario(30)
def test_another_extractor_is_a_difference_and_a_prepared_folder_that_is_gone_is_none(
    prepared: Path,
) -> None:
    """Scenario 30."""
    start(prepared).close()
    file = prepared / "extractor.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\x01")
    with pytest.raises(RefusedError, match=r"extractor: [0-9a-f]{12}… → [0-9a-f]{12}…"):
        start(prepared)
    file.unlink()
    start(prepared).close()


def test_a_key_this_release_has_anew_is_no_difference_at_its_default(prepared: Path) -> None:
    """An upgrade between two starts of a run."""
    first = start(prepared)
    description = first.store.description()
    assert description is not None
    older = {name: value for name, value in description.config.items() if name != "min_cohort"}
    database = first.store._database
    database.execute(
        "UPDATE run SET description = json_replace(description, '$.config', json(?))", (json.dumps(older),)
    )
    first.close()
    with pytest.raises(RefusedError, match="min_cohort: 2 → 1"):
        start(prepared)


@pytest.mark.parametrize("name", ["../x", "", "a b", ".hidden"])
def test_a_run_id_that_is_no_name_is_refused(prepared: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--run-id: run id"):
        start(prepared, run_id=name)


def test_a_failed_start_removes_nothing_it_did_not_make(prepared: Path) -> None:
    runs = prepared.parent / "runs"
    for name, file in {"thesis": "chapter1.tex", "old run": "lock"}.items():
        (runs / name).mkdir(parents=True)
        (runs / name / file).write_text("mine")
    with pytest.raises(UsageError, match="holds other files than a run's"):
        start(prepared, run_id="thesis")
    run = start(prepared, run_id="interrupted")
    run.close()
    for file in run.folder.path.glob("state*"):
        file.unlink()
    (run.folder.path / "config.yaml").unlink()
    with pytest.raises(DataError, match="is not a folder made by"):
        start_unprepared(prepared, "interrupted")
    assert (runs / "thesis" / "chapter1.tex").read_text() == "mine"
    assert (run.folder.path / "blobs").exists()
    with pytest.raises(DataError):
        start_unprepared(prepared, "fresh")
    assert not (runs / "fresh").exists(), "what this process made goes"


def start_unprepared(prepared: Path, run_id: str) -> Run:
    nowhere = settings(prepared, run_id=run_id).model_copy(update={"prepared": prepared / "nowhere"})
    return assemble(nowhere, prepared.parent / "cache")


@pytest.mark.scenario(29)
@pytest.mark.parametrize("what", ["empty", "missing", "without its log"])
@pytest.mark.parametrize("copy", [True, False])
def test_a_run_whose_state_is_gone_is_not_begun_anew(prepared: Path, what: str, copy: bool) -> None:
    """Scenario 29."""
    run = start(prepared)
    a, b = (Site(name, lambda *call: run.service.handle(*call)) for name in "ab")  # type: ignore[arg-type, return-value]
    for site in (a, b):
        site.poll()
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    run.close()
    folder = run.folder.path
    if what == "empty":
        (folder / "state.db").write_bytes(b"")
    elif what == "missing":
        (folder / "state.db").unlink()
    else:
        (folder / "state.db").write_bytes((folder / "state.db").read_bytes()[:4096])
    if not copy:
        (folder / "state.previous.db").unlink()
        with pytest.raises(DataError, match=rf"state.db is damaged .*fkd-server doctor {folder}"):
            start(prepared)
        assert troubles(folder) == {"state"}
        return
    assert troubles(folder) == {"state"}
    resumed = start(prepared)
    assert resumed.coordinator.round == 1
    assert [record["round"] for record, _ in resumed.store.rounds()] == [1]
    resumed.close()


def troubles(folder: Path) -> set[str]:
    return {finding.what for finding in examine(folder) if finding.trouble}


def test_damage_of_the_coordinators_own_files_is_not_the_clients(prepared: Path) -> None:
    """Its student is damaged: whoever fetches it hears that the coordinator is in trouble, and tries again."""
    run = start(prepared)
    a, b = (Site(name, lambda *call: run.service.handle(*call)) for name in "ab")  # type: ignore[arg-type, return-value]
    a.poll()
    b.poll()
    reference = a.poll().task.inputs[0]
    path = run.store.blobs.path(reference.sha256.hex())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\xff")
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(UnreachableError, match="lost a file it needs"),
    ):
        a.fetch(reference, a.key(1, STUDENT))
    assert [log["event"] for log in logs] == ["disk_refuses"]
    assert str(path) in logs[0]["detail"]
    path.write_bytes(whole)
    assert a.fetch(reference, a.key(1, STUDENT)) == whole


def test_anchors_are_known_by_what_they_are_and_not_by_where(tmp_path: Path) -> None:
    """A run that is restored on another host finds its shards under another path."""
    first = tmp_path / "here" / "anchors"
    first.mkdir(parents=True)
    (first / "shard.json").write_text("{}")
    (first / "images.npy").write_bytes(b"12345")

    def sources(anchors: Path, stored: dict[str, str] | None = None) -> dict[str, str]:
        artifact = Artifact("ab" * 32, 10, 8)
        began = RunDescription("run-1", {}, stored, ("cat", "dog"), artifact, artifact) if stored else None
        return sources_of(ServerSettings(anchors=anchors), began)

    began = sources(first)
    again = shutil.copytree(first, tmp_path / "there" / "anchors")
    assert sources(again, began) == began
    assert sources(tmp_path / "gone", began) == began
    (again / "images.npy").write_bytes(b"12346")
    assert sources(again, began) != began
    earlier = {"extractor": "resnet18", "anchors": str(first)}
    assert sources(first, earlier) == earlier
    assert sources(again, earlier) != earlier
