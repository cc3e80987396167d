"""`fkd-client predict` with models and names that somebody made to do harm."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fkd_client.cli import main
from fkd_client.extractor import dump_extractor
from fkd_client.predictor import ExtractorSearch, open_model
from fkd_client.pretrain import initial_trunk
from fkd_common.errors import DataError
from fkd_common.extractor_artifact import (
    MAX_IMAGE_BYTES,
    ExtractorSpec,
    join_safetensors,
    split_safetensors,
)
from fkd_server.cli import main as server_main
from tests.export.finished_run import FinishedRun

FORMULA = "=HYPERLINK(evil)"
NAMES = (f"{FORMULA}.png", "-1+1.png", "\x1b[2J\x1b]0;pwn\x07ansi.png", "new\nline.png", "\u202egnp.png")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def exported(run: FinishedRun) -> Path:
    assert server_main(["export", "--run", str(run.folder), "--out", "exported.safetensors"]) == 0
    return Path("exported.safetensors")


@pytest.fixture
def named(run: FinishedRun) -> Path:
    """A folder of images with names that are traps."""
    Path("named").mkdir()
    for name in (*NAMES, "\udcff\udcfe.png"):
        shutil.copy(run.images / "000.png", Path("named", name))
    return Path("named")


def predict(*arguments: object) -> int:
    return main(["predict", *map(str, arguments), "--threads", "1", "--device", "cpu"])


def changed(model: Path, **changes: Callable[[Any], None]) -> Path:
    """The same tensors under descriptions that were changed; keys are given with underscores for dots."""
    header, body = split_safetensors(model.read_bytes(), name="test")
    metadata = dict(header["__metadata__"])
    for key, change in changes.items():
        description = json.loads(metadata[key.replace("_", ".", 1)])
        change(description)
        metadata[key.replace("_", ".", 1)] = json.dumps(description)
    path = Path("changed.safetensors")
    path.write_bytes(join_safetensors(header, body, metadata))
    return path


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("form", [[], ["--top", "3"], ["--csv"], ["--json"]])
def test_no_name_reaches_the_terminal_as_an_order(
    exported: Path, named: Path, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    (named / "\x1b[31mbroken.png").write_bytes(b"none")
    assert predict(named, "--model", exported, *form) == 3
    told = capsys.readouterr()
    assert harmless(told.out)
    assert harmless(told.err)
    assert "broken.png" in told.err
    assert "ansi.png" in told.out


def test_programs_get_every_name_as_it_is(
    exported: Path, named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert predict(named, "--model", exported, "--json") == 0
    told = [json.loads(line)["image"] for line in capsys.readouterr().out.splitlines()]
    assert set(told) == {str(path) for path in named.iterdir()}


def test_neither_file_nor_class_is_a_formula_to_a_spreadsheet(
    exported: Path, named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rename(description: Any) -> None:
        description["classes"] = [f"{FORMULA}{place}" for place in range(len(description["classes"]))]

    model = changed(exported, fkd_export=rename, fkd_model=rename)
    capsys.readouterr()
    os.chdir(named)
    assert predict(".", "--model", Path("..", model), "--csv", "--top", "2") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == len(NAMES) + 1
    for row in rows:
        assert row["class"].startswith(f"'{FORMULA}")
        assert row["class_2"].startswith(f"'{FORMULA}")
        assert not row["image"].startswith(("=", "+", "-", "@"))
    assert {f"'{FORMULA}.png", "'-1+1.png", r"\udcff\udcfe.png"} <= {row["image"] for row in rows}


def test_a_run_that_calls_itself_an_escape_sequence_does_not_reach_the_terminal(
    run: FinishedRun, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rename(description: Any) -> None:
        description["run_id"] = "\x1b]0;pwn\x07\x1b[2J"

    capsys.readouterr()
    assert predict(run.images / "000.png", "--model", changed(exported, fkd_export=rename)) == 0
    told = capsys.readouterr()
    assert harmless(told.out + told.err)


@pytest.mark.parametrize("arguments", [["", "x.png"], ["x.png", "--model", ""], ["x.png", "--extractor", ""]])
def test_a_variable_that_is_not_set_is_no_name_of_the_current_folder(
    arguments: list[str], run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run.images / "000.png", "x.png")
    assert predict(*arguments) == 2
    told = capsys.readouterr()
    assert "a path expected, got nothing: is a variable not set?" in told.err
    assert told.out == ""


def enlarged(description: Any, side: int) -> None:
    if "stem_stride" in description:
        description["input"]["size"], description["stem_stride"] = side, 1
    else:
        description["input"]["shape"] = ["N", 3, side, side]


def test_a_small_file_cannot_ask_for_gigabytes(
    run: FinishedRun, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = changed(
        exported,
        fkd_export=lambda description: enlarged(description, 4096),
        fkd_extractor=lambda description: enlarged(description, 4096),
    )
    assert model.stat().st_size < 30e6
    assert predict(run.images / "000.png", "--model", model) == 3
    sentence = capsys.readouterr().err.strip().splitlines()[-1]
    assert "inputs of 4096×4096 pixels and stem stride 1 needs 17.7 GB of memory for one image" in sentence


def test_large_images_are_decoded_and_scored_few_at_a_time(exported: Path, tmp_path: Path) -> None:
    predictor = open_model(exported, ExtractorSearch(None, tmp_path), "cpu")
    assert predictor.images_at_once(64) == 64
    large = ExtractorSpec("resnet18", 700, (0.2, 0.3, 0.4), (0.3, 0.25, 0.2), stem="small", stem_stride=1)
    assert replace(predictor, spec=large).images_at_once(64) == 4


TAKEN = """
import pathlib, re, sys
import numpy, torch
from fkd_client.embedding import embed
from fkd_client.extractor import load_extractor

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

torch.set_num_threads(1)
extractor = load_extractor(pathlib.Path("extractor").read_bytes())
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = peak()
size = int(sys.argv[1])
embed(extractor, numpy.zeros((1, size, size, 3), numpy.uint8))
print(peak() - before)
"""


@pytest.mark.parametrize("size, stem, stride", [(512, "small", 1), (1024, "imagenet", 2)])
def test_the_memory_that_is_reckoned_with_is_the_memory_that_is_taken(
    size: int, stem: str, stride: int
) -> None:
    """At least what is taken, and no more than a few times as much."""
    spec = ExtractorSpec("resnet18", size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), stem=stem, stem_stride=stride)
    weights = initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict()
    Path("extractor").write_bytes(dump_extractor(weights, spec))
    command = [sys.executable, "-c", TAKEN, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    weights_again = 50e6  # torch's libraries keep them in their own order, too
    assert spec.image_bytes / 4 < int(done.stdout) < spec.image_bytes + weights_again


def test_the_usual_batches_are_as_large_as_ever() -> None:
    usual = ExtractorSpec("resnet18", 224, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert usual.images_within(4 << 30) >= 256
    assert usual.images_within(MAX_IMAGE_BYTES) >= 64
    with pytest.raises(DataError, match="GB of memory for one image"):
        ExtractorSpec("resnet18", 4096, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
