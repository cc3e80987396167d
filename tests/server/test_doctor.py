"""What the doctor finds in a run's folder, and what it mends; scenario 29."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog

from fkd_common.errors import DataError, ExitCode, UsageError
from fkd_server.doctor import examine, main
from fkd_server.prepare import ANCHORS_FILE, EXTRACTOR_FILE
from fkd_server.run import Run, assemble
from fkd_server.run_folder import RunFolder
from fkd_server.store import DATABASE, PREVIOUS

from .test_restart import damage
from .test_run_folder import settings
from .tiny import Site, filled

pytestmark = pytest.mark.scenario(29)


@pytest.fixture
def folder(prepared: Path) -> Path:
    """A run that was interrupted in round 2, with one upload in."""
    run = assemble(settings(prepared), prepared.parent / "cache")
    a, b = (Site(name, answer_of(run)) for name in "ab")
    for site in (a, b):
        site.poll()
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    a.submit_student(2, filled(run.method, 2.0))
    run.close()
    return run.folder.path


def answer_of(run: Run) -> Any:
    def answer(method: Any, request: bytes) -> bytes:
        response = run.service.handle(method, request)
        assert response is not None
        return response

    return answer


def again(folder: Path, prepared: Path) -> Run:
    return assemble(settings(prepared), folder.parent / "cache")


def troubles(folder: Path, *, repair: bool = False) -> dict[str, tuple[str, bool]]:
    return {f.what: (f.trouble, f.mended) for f in examine(folder, repair=repair) if f.trouble}


def test_a_whole_run_has_no_trouble_and_exit_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "--json"]) == ExitCode.OK
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [finding["what"] for finding in found] == [
        "state", "extractor", "anchors", "student", "a's upload for round 2, student",
    ]  # fmt: skip
    assert main([str(folder)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok      state"
    assert lines[-1] == "5 things looked at, all whole"
    assert max(len(line) for line in lines) < 80


@pytest.mark.parametrize("by", ["the doctor", "a restart"])
def test_a_damaged_upload_is_forgotten_and_its_site_asked_again(
    folder: Path, prepared: Path, by: str
) -> None:
    (path,) = (folder / "uploads").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    if by == "the doctor":
        assert troubles(folder) == {"a's upload for round 2, student": ("damaged", False)}
        assert troubles(folder, repair=True) == {"a's upload for round 2, student": ("damaged", True)}
    with structlog.testing.capture_logs() as logs:
        run = again(folder, prepared)
    assert [log["client"] for log in logs if log["event"] == "upload_lost"] == (
        ["a"] if by == "a restart" else []
    )
    assert "0 of 2 in, waiting for a, b" in run.coordinator.waiting_for(0.0)
    run.close()


@pytest.mark.parametrize("file", [EXTRACTOR_FILE, ANCHORS_FILE])
def test_a_damaged_artifact_comes_back_from_where_it_came(folder: Path, prepared: Path, file: str) -> None:
    name = file.removesuffix(".safetensors")
    artifact = {f.what: Path(f.path) for f in examine(folder)}[name]
    artifact.write_bytes(b"")
    assert troubles(folder, repair=True) == {name: ("damaged", False)}, "nothing to put in its place"
    assert artifact.exists()
    whole = (prepared / file).read_bytes()
    (prepared / file).unlink()
    with pytest.raises(DataError, match=f"the {name} of run run-1 is lost: .*fkd-server doctor"):
        again(folder, prepared)
    (prepared / file).write_bytes(whole)
    again(folder, prepared).close()
    assert not troubles(folder)

    artifact.unlink()
    (folder / "prepared").mkdir()
    (folder / "prepared" / file).write_bytes(whole)
    assert troubles(folder, repair=True) == {name: ("missing", True)}
    assert not troubles(folder)


def test_a_damaged_model_is_named(folder: Path, prepared: Path) -> None:
    """The copy refers to the same student: there is nothing whole to go back to."""
    student = {f.what: Path(f.path) for f in examine(folder)}["student"]
    student.write_bytes(b"\0" + student.read_bytes()[1:])
    with pytest.raises(
        DataError, match=f"part of the global model of run run-1 is lost: {student} is damaged"
    ):
        again(folder, prepared)
    assert main([str(folder), "--repair"]) == ExitCode.DATA


def test_a_run_whose_new_student_is_damaged_can_go_back_to_the_round_before(prepared: Path) -> None:
    changes: dict[str, Any] = {"correction": ("anchors",), "residual_every": 2}
    run = assemble(settings(prepared, **changes), prepared.parent / "cache")
    sites = [Site(name, answer_of(run)) for name in "ab"]
    for site in sites:
        site.poll()
    for round_number in (1, 2):
        for site in sites:
            site.submit_student(round_number, filled(run.method, float(round_number)))
    assert "round 2, residuals" in run.coordinator.waiting_for(0.0)
    run.close()
    folder = run.folder.path
    student = {f.what: Path(f.path) for f in examine(folder)}["student"]
    student.write_bytes(b"\0" + student.read_bytes()[1:])
    (finding,) = (f for f in examine(folder) if f.trouble)
    assert finding.remedy == "--repair goes back to the end of round 1, from where the run goes on"
    assert troubles(folder, repair=True) == {"student": ("damaged", True)}
    resumed = assemble(settings(prepared, **changes), prepared.parent / "cache")
    resumed.service.tick()
    assert "round 2, student: 0 of 2 in" in resumed.coordinator.waiting_for(0.0)
    resumed.close()


def test_a_damaged_database_gives_way_to_its_copy(folder: Path) -> None:
    damage(folder / DATABASE)
    assert "state" in troubles(folder)
    assert main([str(folder)]) == ExitCode.DATA
    assert main([str(folder), "--repair"]) == ExitCode.OK
    assert not troubles(folder)


def test_without_a_copy_the_state_is_lost_and_the_doctor_says_so(folder: Path) -> None:
    damage(folder / DATABASE)
    (folder / PREVIOUS).unlink()
    (finding,) = examine(folder, repair=True)
    assert (finding.mended, "--new-run" in finding.remedy) == (False, True)


def test_a_run_that_is_being_served_is_left_alone(folder: Path) -> None:
    held = RunFolder(folder)
    with pytest.raises(UsageError, match="is served by another fkd-server"):
        examine(folder)
    held.release()


@pytest.mark.parametrize("what", ["nothing", "an empty folder"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    if what != "nothing":
        place.mkdir()
    with pytest.raises(UsageError, match=r"no run"):
        main([str(place)])
