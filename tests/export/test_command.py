"""`fkd-server export` as a person or a script uses it: from a folder and from a coordinator at work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fkd_common.artifacts import BlobStore, sha256_hex
from fkd_common.exported_file import Candidate, ModelFiles, decode_exported, encode_exported
from fkd_common.method.student_layout import initial_student
from fkd_common.model_file import decode_model, encode_model
from fkd_common.pb import admin_pb2 as pb
from fkd_server.admin import Admin
from fkd_server.chronicle import Chronicle, WrittenModel
from fkd_server.cli import main
from fkd_server.published_files import PublishedFiles
from tests.security.serving import serving
from tests.server.tiny import TinyRun, tiny_run

from .finished_run import FinishedRun


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FKD_OPERATOR_TLS", "FKD_SERVER"):
        monkeypatch.delenv(name, raising=False)


def exported(run: FinishedRun, *flags: str, out: str = "model.safetensors") -> int:
    return main(["export", "--run", str(run.folder), "--out", out, *flags])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line.removeprefix("fkd-server: error: ")


def test_a_runs_folder_becomes_one_file(run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(run) == 0
    files = decode_exported(Path("model.safetensors").read_bytes())
    assert files.header.run_id == run.folder.name
    assert files.header.model_sha256 == sha256_hex(run.model)
    assert files.header.candidate == decode_model(run.model).header.published
    told = capsys.readouterr().out
    assert f"run {run.folder.name}, candidate {files.header.candidate}, 10 classes" in told
    assert sha256_hex(Path("model.safetensors").read_bytes()) in told


def test_without_a_folder_the_newest_run_with_a_model_is_taken(run: FinishedRun) -> None:
    for name in ("older", "newer"):
        folder = Path("run") / name
        (folder / "blobs").mkdir(parents=True)
        shutil.copy(run.extractor_file, folder / "blobs")
        (folder / "model.safetensors").write_bytes(run.model)
    Path("run/no-model-yet").mkdir()
    os.utime("run/older/model.safetensors", (1, 1))
    assert main(["export", "--out", "model.safetensors"]) == 0
    assert decode_exported(Path("model.safetensors").read_bytes()).header.run_id == "newer"


def test_the_candidate_can_be_chosen(run: FinishedRun) -> None:
    assert exported(run, "--candidate", "student") == 0
    assert decode_exported(Path("model.safetensors").read_bytes()).header.candidate == "student"


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_other_formats_are_a_flag(run: FinishedRun, form: str) -> None:
    assert exported(run, "--format", form, out="model") == 0
    beginning = {"onnx": b"\x08", "torchscript": b"PK"}[form]
    assert Path("model").read_bytes().startswith(beginning)
    assert [path.name for path in Path().iterdir()] == ["model"]


def test_a_file_that_is_there_is_replaced_only_with_force(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.safetensors").write_text("mine")
    assert exported(run) == 2
    assert "--out model.safetensors exists: choose another file, or replace it with --force" in said(capsys)
    assert Path("model.safetensors").read_text() == "mine"
    assert exported(run, "--force") == 0
    assert decode_exported(Path("model.safetensors").read_bytes())


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (
            ["--run", "absent"],
            3,
            "absent has no model.safetensors: no run's folder, or no vote has been held",
        ),
        ([], 2, "no run with a model in"),
        (["--out", "no/such/folder/model"], 2, "expected a file in a folder that exists"),
        (["--format", "pickle"], 2, "--format: invalid choice: 'pickle'"),
        (["--server", "nowhere"], 2, "expected HOST:PORT"),
        (["--run", "a", "--server", "b:1"], 2, "not allowed with argument --run"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--out" in arguments else ["--out", "model"]
    assert main(["export", *arguments, *out]) == code
    assert message in said(capsys)
    assert not Path("model").exists()


def test_an_extractor_that_is_gone_is_named(run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bare").mkdir()
    Path("bare/model.safetensors").write_bytes(run.model)
    assert main(["export", "--run", "bare", "--out", "model"]) == 3
    assert f"bare/blobs/{run.extractor_file.name} is missing" in said(capsys)


def test_a_damaged_extractor_is_refused(run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run-x/blobs").mkdir(parents=True)
    Path("run-x/model.safetensors").write_bytes(run.model)
    blob = bytearray(run.extractor_file.read_bytes())
    blob[-1] ^= 1
    (Path("run-x/blobs") / run.extractor_file.name).write_bytes(blob)
    assert main(["export", "--run", "run-x", "--out", "model"]) == 3
    assert "the model needs the extractor with sha256" in said(capsys)


@pytest.mark.parametrize(
    "package, form, extra",
    [("onnx", "onnx", "export"), ("onnxscript", "onnx", "export"), ("torch", "torchscript", "client")],
)
def test_a_missing_package_is_one_sentence_with_the_extra_that_brings_it(
    run: FinishedRun,
    package: str,
    form: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("onnx_file", "torchscript", "deployable"):
        monkeypatch.delitem(sys.modules, f"fkd_client.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert exported(run, "--format", form) == 2
    assert said(capsys) == f"{package} is not installed here: pip install 'fkd[{extra}]'"


def test_safetensors_needs_no_torch(run: FinishedRun) -> None:
    without = "import sys; sys.modules['torch'] = None; from fkd_server.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", without, "export", "--run", str(run.folder), "--out", "model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def tiny(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path / "tiny")


def published(run: FinishedRun, model: Path, kind: type[PublishedFiles] = PublishedFiles) -> PublishedFiles:
    """The finished run's model in a file, with its extractor, as a coordinator offers them."""
    blobs = BlobStore(run.folder / "blobs")
    chronicle = Chronicle(model=WrittenModel(sha256_hex(model.read_bytes()), 2, "moments"))
    return kind(model, chronicle, blobs.describe(run.extractor_file.stem), blobs)


@pytest.fixture
def address(run: FinishedRun, tiny: TinyRun) -> Iterator[str]:
    files = published(run, run.folder / "model.safetensors")
    with serving(replace(tiny, admin=Admin(tiny.service, tiny.overview, files)), None) as address:
        yield address


def test_a_coordinator_at_work_gives_the_same_file(run: FinishedRun, address: str) -> None:
    assert main(["export", "--server", address, "--out", "fetched"]) == 0
    expected = ModelFiles.of("run-1", run.model, run.extractor_file.read_bytes(), Candidate.PUBLISHED)
    assert Path("fetched").read_bytes() == encode_exported(expected)


def test_before_the_first_vote_there_is_nothing_to_export(
    tiny: TinyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tiny, None) as address:
        assert main(["export", "--server", address, "--out", "fetched"]) == 4
    assert "no model has been published yet" in capsys.readouterr().err
    assert not Path("fetched").exists()


def test_what_arrives_damaged_is_not_written(
    run: FinishedRun, tiny: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(run.model)
    files = published(run, model)
    model.write_bytes(run.model[:-1] + bytes([run.model[-1] ^ 1]))
    with serving(replace(tiny, admin=Admin(tiny.service, tiny.overview, files)), None) as address:
        assert main(["export", "--server", address, "--out", "fetched"]) == 5
    assert "does not match its sha256" in capsys.readouterr().err
    assert not Path("fetched").exists()


def large_model(run: FinishedRun, seed: int) -> bytes:
    """A model of more than one piece."""
    parts = decode_model(run.model)
    config = parts.header.config.model_copy(update={"hidden": (600, 16)})
    header = parts.header.model_copy(update={"config": config, "published": "student"})
    student = initial_student(seed, 512, config.hidden, 10, config.norm)
    model = replace(parts, header=header, student=student, anchor_correction=None, moment_solution=None)
    return encode_model(model)


class _Replaced(PublishedFiles):
    """Publishes a newer model as soon as the first piece of the first has been read."""

    newer: bytes

    def piece(self, part: int, offset: int, sha256: str) -> pb.ReadModelResponse:
        answer = super().piece(part, offset, sha256)
        if part == pb.MODEL_PART_MODEL and answer.sha256 != sha256_hex(self.newer):
            self._model.write_bytes(self.newer)
            self._chronicle.model = WrittenModel(sha256_hex(self.newer), 3, "student")
        return answer


def test_a_model_that_is_replaced_meanwhile_is_fetched_anew(
    run: FinishedRun, tiny: TinyRun, tmp_path: Path
) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(large_model(run, 0))
    _Replaced.newer = large_model(run, 1)
    files = published(run, model, _Replaced)
    with serving(replace(tiny, admin=Admin(tiny.service, tiny.overview, files)), None) as address:
        assert main(["export", "--server", address, "--out", "fetched"]) == 0
    assert decode_exported(Path("fetched").read_bytes()).header.model_sha256 == sha256_hex(_Replaced.newer)


@pytest.mark.parametrize(
    ("name", "beginning"), [("model.onnx", b"\x08"), ("model.pt", b"PK"), ("model.bin", None)]
)
def test_the_ending_says_the_format_where_no_flag_does(
    run: FinishedRun, name: str, beginning: bytes | None
) -> None:
    assert exported(run, out=name) == 0
    blob = Path(name).read_bytes()
    if beginning is None:
        decode_exported(blob)
    else:
        assert blob.startswith(beginning)


def test_an_unknown_format_is_answered_with_the_known_ones(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(run, "--format", "onx") == 2
    assert "choose from 'safetensors', 'onnx', 'torchscript'" in said(capsys)
