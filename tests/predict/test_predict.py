"""`fkd-client predict`: what it says is what the model scored in the run, whatever the images look like."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fkd_client.cli import main
from fkd_client.embedding import block_inputs_cached, embed
from fkd_client.extractor import load_extractor
from fkd_client.personal_file import load_personal
from fkd_client.predictor import ExtractorSearch, open_model
from fkd_common.artifacts import sha256_hex
from fkd_common.choices import FinetuneScope
from fkd_common.method.probabilities import softmax
from fkd_common.tensors import decode, encode
from fkd_server.cli import main as server_main
from tests.export.finished_run import CLIENTS, FinishedRun


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's counts, and nothing is found by accident."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FKD_CACHE", str(tmp_path / "cache"))


def predict(*arguments: object) -> int:
    return main(["predict", *map(str, arguments), "--threads", "1", "--device", "cpu"])


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The last thing said to a person."""
    return capsys.readouterr().err.strip().splitlines()[-1].removeprefix("fkd-client: error: ")


def chosen(run: FinishedRun, client: str, candidate: str) -> Path:
    """A copy of a personal model that keeps another candidate, in a copy of its run's folder."""
    folder = Path("run") / run.folder.name / f"client-{client}"
    shutil.copytree(run.personal(client), folder)
    shutil.copytree(run.folder / "blobs", folder.parent / "blobs", dirs_exist_ok=True)
    description = json.loads((folder / "model.json").read_text())
    description["chosen"] = candidate
    (folder / "model.json").write_text(json.dumps(description))
    return folder


def replace_tensors(folder: Path, blob: bytes) -> None:
    """Put other tensors into a personal model."""
    (folder / "model.safetensors").write_bytes(blob)
    description = json.loads((folder / "model.json").read_text())
    description["tensors_sha256"] = sha256_hex(blob)
    (folder / "model.json").write_text(json.dumps(description))


@pytest.mark.parametrize("candidate", ["global", "prior", "closed_form", "blend", "finetune"])
def test_the_accuracy_over_the_test_images_is_the_one_in_the_report(
    run: FinishedRun, candidate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = run.test.labels
    assert labels is not None
    for client in CLIENTS:
        assert predict(run.images, "--model", chosen(run, client, candidate), "--json") == 0
        predicted = [int(line["class"]) for line in lines(capsys)]
        reported = run.report(client)["personal"]["test_accuracy"][candidate]["full"]
        assert np.mean(np.array(predicted) == labels) == reported


def test_a_fine_tuned_tail_is_used_as_the_run_used_it(run: FinishedRun, tmp_path: Path) -> None:
    """With weights that differ from the extractor's own, so that leaving them out would show."""
    folder = chosen(run, CLIENTS[0], "finetune")
    tensors = decode((folder / "model.safetensors").read_bytes())
    for name in [name for name in tensors if name.startswith("tail.") and name.endswith("conv1.weight")]:
        tensors[name] = tensors[name] * np.float32(1.5)
    replace_tensors(folder, encode(tensors))
    model, extractor = load_personal(folder), load_extractor(run.extractor_file)
    assert model.finetuned is not None
    assert model.finetuned.scope is not FinetuneScope.HEAD
    inputs = block_inputs_cached(tmp_path / "cache", "x", extractor, run.test, model.finetuned.scope)
    h = embed(extractor, run.test.images)
    expected = softmax(model.scores("finetune", h, np.asarray(inputs)))
    search = ExtractorSearch(run.extractor_file, tmp_path)
    images = np.stack([np.asarray(Image.open(path).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))
                       for path in sorted(run.images.iterdir())])  # fmt: skip
    found = open_model(folder, search, "cpu").probabilities(images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(softmax(model.scores("global", h)) - expected).max() > 1e-3


def test_an_exported_model_and_the_runs_own_say_the_same(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(["export", "--run", str(run.folder), "--out", "exported.safetensors"]) == 0
    capsys.readouterr()
    assert predict(run.images, "--model", "exported.safetensors", "--json") == 0
    exported = lines(capsys)
    assert predict(run.images, "--model", run.folder / "model.safetensors", "--json") == 0
    assert lines(capsys) == exported
    assert predict(run.images, "--model", run.folder, "--json") == 0
    assert lines(capsys) == exported
    labels = run.test.labels
    summary = json.loads((run.folder / "summary.json").read_text())
    assert np.mean([int(line["class"]) for line in exported] == labels) == summary["accuracy"]["published"]


def test_without_a_model_the_newest_personal_one_is_taken_and_named(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for client in CLIENTS:
        chosen(run, client, "global")
    os.utime(f"run/{run.folder.name}/client-shard0/model.json", (1, 1))
    assert predict(run.images / "000.png") == 0
    assert f"personal model of shard1, run {run.folder.name} (global)" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_and_the_others_are_predicted(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    os.mkfifo("pipe.png")
    names = ["broken.png", run.images / "000.png", "absent.png", "pipe.png", run.images / "001.png"]
    assert predict(*names, "--model", run.personal("shard0"), "--json") == 3
    told = capsys.readouterr()
    assert [json.loads(line)["image"] for line in told.out.splitlines()] == [str(names[1]), str(names[4])]
    problems = told.err.splitlines()
    assert "fkd-client: absent.png cannot be read: no such file" in problems
    assert "fkd-client: pipe.png cannot be read: not a regular file" in problems
    assert any(line.startswith("fkd-client: broken.png cannot be read: ") for line in problems)
    assert problems[-1] == "fkd-client: error: 3 of 5 images could not be read, as said above"


def test_names_come_from_standard_input_too(
    run: FinishedRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(path) for path in sorted(run.images.iterdir())]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(names) + "\n\n"))
    assert predict("-", "--model", run.personal("shard0"), "--json") == 0
    assert [line["image"] for line in lines(capsys)] == names


def test_folders_are_searched_and_an_empty_one_is_no_success(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a/b").mkdir(parents=True)
    shutil.copy(run.images / "000.png", "a/b/deep.png")
    Path("a/notes.txt").write_text("no image")
    assert predict("a", "--model", run.personal("shard0"), "--json") == 0
    assert [line["image"] for line in lines(capsys)] == ["a/b/deep.png"]
    Path("empty").mkdir()
    assert predict("empty", "--model", run.personal("shard0")) == 3
    assert sentence(capsys) == "no images in what was given"


def test_any_mode_and_size_is_read(run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    image = Image.open(run.images / "000.png")
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image.convert(mode).save(f"{mode}.png")
    image.convert("CMYK").save("CMYK.jpg")
    Image.fromarray(np.asarray(image).astype(np.uint16) << 8).save("16bit.png")
    image.resize((37, 90)).save("upright.webp")
    image.resize((1, 1)).save("one.gif")
    assert predict(".", "--model", run.personal("shard0"), "--json") == 0
    found = {line["image"]: line for line in lines(capsys)}
    assert len(found) == 10
    plain = {key: value for key, value in found["L.png"].items() if key != "image"}
    for same in ("RGB.png", "RGBA.png", "LA.png", "P.png", "16bit.png"):
        assert {key: value for key, value in found[same].items() if key != "image"} == plain


def test_csv_has_a_heading_and_as_many_classes_as_asked_for(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run.images / "000.png", 'a, "b".png')
    assert predict('a, "b".png', "--model", run.personal("shard0"), "--csv", "--top", "2") == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert list(row) == ["image", "class", "probability", "class_2", "probability_2"]
    assert row["image"] == 'a, "b".png'
    assert float(row["probability"]) >= float(row["probability_2"])


def test_more_classes_than_there_are_are_all_classes(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(run.images / "000.png", "--model", run.personal("shard0"), "--json", "--top", "99") == 0
    (line,) = lines(capsys)
    assert sorted(entry["class"] for entry in line["top"]) == [str(digit) for digit in range(10)]
    assert sum(entry["probability"] for entry in line["top"]) == pytest.approx(1.0, abs=1e-5)
    assert line["top"][0] == {"class": line["class"], "probability": line["probability"]}


def test_the_extractor_is_found_where_the_client_keeps_what_it_received(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = Path("elsewhere/client-shard0")
    shutil.copytree(run.personal("shard0"), alone)
    assert predict(run.images / "000.png", "--model", alone) == 3
    missing = sentence(capsys)
    assert f"needs the extractor with sha256 {run.extractor_file.stem}, which is not in" in missing
    assert "give its file with --extractor" in missing
    Path("cache/artifacts").mkdir(parents=True)
    shutil.copy(run.extractor_file, "cache/artifacts")
    assert predict(run.images / "000.png", "--model", alone) == 0
    capsys.readouterr()
    with (Path("cache/artifacts") / run.extractor_file.name).open("ab") as file:
        file.write(b"!")
    assert predict(run.images / "000.png", "--model", alone) == 3
    assert "is damaged: its content does not match its name" in sentence(capsys)
    assert predict(run.images / "000.png", "--model", alone, "--extractor", run.extractor_file) == 0


def test_another_extractor_is_refused(run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run.extractor_file, "other.safetensors")
    with Path("other.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    flags = ["--model", run.personal("shard0"), "--extractor", "other.safetensors"]
    assert predict(run.images / "000.png", *flags) == 3
    assert "--extractor other.safetensors: the model needs the extractor with sha256" in sentence(capsys)


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["x.png"], 2, "no personal model in"),
        ([], 2, "the following arguments are required: IMAGE"),
        (["x.png", "--model", "absent"], 3, "absent: a file expected, got none"),
        (["x.png", "--top", "0"], 2, "--top: invalid number value: '0'"),
        (["x.png", "--json", "--csv"], 2, "--csv: not allowed with argument --json"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(*arguments) == code
    assert message in sentence(capsys)


def test_an_unknown_verb_is_met_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predcit", "x.png"]) == 2
    assert sentence(capsys) == "unknown command predcit: did you mean predict?"
    assert main(["frobnicate"]) == 2
    assert sentence(capsys).startswith("unknown command frobnicate: expected predict, check")


def test_a_personal_model_that_does_not_say_its_classes_is_refused(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = chosen(run, "shard0", "global")
    description = json.loads((folder / "model.json").read_text())
    del description["origin"]
    (folder / "model.json").write_text(json.dumps(description))
    assert predict(run.images / "000.png", "--model", folder) == 3
    assert "does not say which classes and extractor its model has: it lacks 'origin'" in sentence(capsys)


def test_parts_that_do_not_fit_together_are_refused(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = chosen(run, "shard0", "global")
    description = json.loads((folder / "model.json").read_text())
    description["origin"]["classes"] = ["a", "b"]
    (folder / "model.json").write_text(json.dumps(description))
    assert predict(run.images / "000.png", "--model", folder) == 3
    assert "scores (10,) classes and names 2" in sentence(capsys)


def test_only_safetensors_are_opened_never_what_could_run_code(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(["export", "--run", str(run.folder), "--format", "torchscript", "--out", "m.pt"]) == 0
    Path("pickle").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    for name in ("m.pt", "pickle"):
        assert predict(run.images / "000.png", "--model", name) == 3
        assert f"{name} is no model: expected a personal model's folder" in sentence(capsys)
    assert not Path("ran").exists()
