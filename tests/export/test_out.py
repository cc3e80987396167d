"""Where `fkd-server export` writes, and what is there after it was refused, stopped or misled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fkd_common.artifacts import BlobStore, sha256_hex
from fkd_common.exported_file import decode_exported
from fkd_common.pb import admin_pb2 as pb
from fkd_server.admin import Admin
from fkd_server.chronicle import Chronicle, WrittenModel
from fkd_server.cli import main
from fkd_server.published_files import PublishedFiles
from tests.security.serving import serving
from tests.server.tiny import tiny_run

from .finished_run import FinishedRun


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FKD_OPERATOR_TLS", "FKD_SERVER"):
        monkeypatch.delenv(name, raising=False)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line.removeprefix("fkd-server: error: ")


def a_link(path: Path) -> None:
    Path("precious").write_text("mine")
    path.symlink_to("precious")


PLACES: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link": a_link,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("what", PLACES)
def test_only_a_regular_file_is_ever_replaced(
    run: FinishedRun, what: str, force: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    PLACES[what](Path("out"))
    before = os.lstat("out")
    assert main(["export", "--run", str(run.folder), "--out", "out", *force]) == 2
    assert "--out out: expected the name of a file, and this is something else" in said(capsys)
    after = os.lstat("out")
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert not Path("precious").exists() or Path("precious").read_text() == "mine"
    assert not Path("nowhere").exists()


def test_a_device_is_left_alone(run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--run", str(run.folder), "--out", os.devnull]) == 2
    assert "expected the name of a file, and this is something else" in said(capsys)


def test_standard_output_is_no_place_for_a_model(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--run", str(run.folder), "--out", "-"]) == 2
    assert said(capsys).startswith("--out -: a model is written to a file, not to standard output")
    assert not list(Path().iterdir())


def test_a_name_that_is_too_long_is_one_sentence(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for length in (250, 300):
        assert main(["export", "--run", str(run.folder), "--out", "a" * length]) == 2
        assert "cannot be written: File name too long" in said(capsys)


@pytest.mark.parametrize("flag", ["--out", "--run", "--tls"])
def test_a_variable_that_is_not_set_is_no_name_of_the_current_folder(
    flag: str, run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run.folder / "blobs", "blobs")
    shutil.copy(run.folder / "model.safetensors", ".")
    given = {"--out": "out", flag: ""} | ({"--server": "127.0.0.1:1"} if flag == "--tls" else {})
    assert main(["export", *(word for pair in given.items() for word in pair)]) == 2
    assert f"{flag}: a path expected, got nothing: is a variable not set?" in said(capsys)
    assert not Path("out").exists()


@pytest.mark.parametrize("name, code", [("int", 130), ("term", 143), ("hup", 129)])
def test_who_stops_it_finds_the_old_file_and_nothing_half_written(
    run: FinishedRun, name: str, code: int, tmp_path: Path
) -> None:
    Path("out").write_text("old")
    command = [sys.executable, "-m", "fkd_server.cli", "export", "--run", str(run.folder), "--out", "out"]
    done = subprocess.run(
        [*command, "--force"],
        env={**os.environ, "FKD_FAILPOINT": f"file.written:{name}", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "fkd-server: error: stopped on request\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert Path("out").read_text() == "old"


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;pwn\x07[/]", "../up", "", 3, None])
def test_a_foreign_summary_does_not_name_the_run_what_it_likes(
    run: FinishedRun, name: object, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, known_as in (("copied-run", "copied-run"), ("copy of \x1b[31ma run", "")):
        shutil.copytree(run.folder / "blobs", f"{folder}/blobs")
        shutil.copy(run.folder / "model.safetensors", folder)
        Path(folder, "summary.json").write_text(json.dumps({"run_id": name}))
        assert main(["export", "--run", folder, "--out", f"{folder}/out"]) == 0
        assert decode_exported(Path(folder, "out").read_bytes()).header.run_id == known_as
        told = capsys.readouterr()
        assert (told.out.replace("\n", "") + told.err).isprintable()


class _HashToCome(PublishedFiles):
    """The new model is on disk; its hash becomes known when it has been asked for so many times."""

    asked = 0

    def piece(self, part: int, offset: int, sha256: str) -> pb.ReadModelResponse:
        if part == pb.MODEL_PART_MODEL:
            self.asked += 1
            if self.asked == 3:
                self._chronicle.model = WrittenModel(sha256_hex(self._model.read_bytes()), 3, "student")
        return super().piece(part, offset, sha256)


def test_a_model_whose_hash_is_yet_to_become_known_is_fetched_anew(run: FinishedRun, tmp_path: Path) -> None:
    """A coordinator writes the file first and knows its hash a moment later."""
    blobs = BlobStore(run.folder / "blobs")
    chronicle = Chronicle(model=WrittenModel(sha256_hex(b"the one before"), 2, "student"))
    files = _HashToCome(
        run.folder / "model.safetensors", chronicle, blobs.describe(run.extractor_file.stem), blobs
    )
    tiny = tiny_run(tmp_path / "tiny")
    with serving(replace(tiny, admin=Admin(tiny.service, tiny.overview, files)), None) as address:
        assert main(["export", "--server", address, "--out", "fetched"]) == 0
    assert decode_exported(Path("fetched").read_bytes()).header.model_sha256 == sha256_hex(run.model)
    assert files.asked > 2
