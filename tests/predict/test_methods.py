"""`fkd-client predict` with models of other methods than FKD-RTM: global or personal, heads or whole networks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fkd_client.cli import main
from fkd_client.embedding import embed
from fkd_client.exchange import PERSONAL_FILE
from fkd_client.extractor import load_extractor
from fkd_client.predictor import ExtractorSearch, Predictor, open_model
from fkd_client.published_scorer import method_alone
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, ExitCode
from fkd_common.exchange_method import ExchangeMethod
from fkd_common.method.probabilities import softmax
from fkd_common.model_file import ExchangeHeader, ExchangeModel, encode_model
from fkd_common.tensors import Tensors
from tests.export.finished_run import IMAGE_SIZE, FinishedRun

CLASSES = ("cat", "dog", "owl")
D = 512


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's counts, and nothing is found by accident."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FKD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def images(run: FinishedRun) -> np.ndarray:
    """(20, s, s, 3) test images, as they are read from their files."""
    files = sorted(run.images.iterdir())[:20]
    size = (IMAGE_SIZE, IMAGE_SIZE)
    return np.stack([
        np.asarray(Image.open(path).convert("RGB").resize(size, Image.Resampling.BILINEAR)) for path in files
    ])  # fmt: skip


def method_of(run: FinishedRun, **config: Any) -> ExchangeMethod:
    """A method whose small head scores three classes."""
    small = {"hidden": (8,), "dropout": (0.0,), **config}
    return method_alone(RunConfig(**small), len(CLASSES), run.extractor_file.read_bytes())


def fed3r(rng: np.random.Generator) -> Tensors:
    W = rng.normal(size=(D + 1, len(CLASSES))).astype(np.float32)
    return {"W": W, "mean": rng.normal(size=D), "std": rng.uniform(1, 2, size=D)}


def written(run: FinishedRun, method: ExchangeMethod, tensors: Tensors, file: Path) -> Path:
    """A model's file in a run's folder that has the extractor among its blobs."""
    header = ExchangeHeader(classes=CLASSES, config=method.config, extractor_sha256=run.extractor_file.stem)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_model(ExchangeModel(header, tensors)))
    shutil.copytree(run.extractor_file.parent, Path("run/r/blobs"), dirs_exist_ok=True)
    return file


def opened(path: Path) -> Predictor:
    return open_model(path, ExtractorSearch(None, Path("nowhere")), "cpu")


def test_a_global_models_probabilities_are_its_methods(run: FinishedRun, images: np.ndarray) -> None:
    method, tensors = method_of(run, method="fed3r"), fed3r(np.random.default_rng(0))
    file = written(run, method, tensors, Path("run/r/model.safetensors"))
    expected = softmax(method.scores(tensors, embed(load_extractor(run.extractor_file), images)))
    for path in (file, file.parent):
        predictor = opened(path)
        np.testing.assert_allclose(predictor.probabilities(images), expected, atol=1e-5)
        assert predictor.about == "published global model of fed3r"
        assert predictor.classes == CLASSES


def test_a_personal_model_is_scored_with_what_is_its_own(run: FinishedRun, images: np.ndarray) -> None:
    method, tensors = method_of(run, method="fed3r"), fed3r(np.random.default_rng(0))
    tensors["log_prior"] = np.array([0.0, -1e6, -1e6], np.float32)
    file = written(run, method, tensors, Path("run/r/client-x", PERSONAL_FILE))
    for path in (file, file.parent):
        predictor = opened(path)
        assert (predictor.probabilities(images).argmax(axis=1) == 0).all()
        assert predictor.about == "personal model of fed3r"


def test_a_whole_network_takes_images_and_not_the_frozen_extractors_embeddings(
    run: FinishedRun, images: np.ndarray
) -> None:
    method = method_of(run, method="fedavg", model="full")
    tensors = dict(method.start()["model"])
    tensors["fc.weight"] = np.random.default_rng(0).normal(size=(len(CLASSES), D)).astype(np.float32)
    tensors["trunk.layer4.1.conv2.weight"] = tensors["trunk.layer4.1.conv2.weight"] * np.float32(2.0)
    expected = softmax(method.scores(tensors, images))
    frozen = embed(load_extractor(run.extractor_file), images) @ tensors["fc.weight"].T
    assert np.abs(softmax(frozen) - expected).max() > 1e-3
    for file in (Path("run/r/model.safetensors"), Path("run/r/client-x", PERSONAL_FILE)):
        found = opened(written(run, method, tensors, file)).probabilities(images)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_without_a_model_the_newest_personal_one_of_any_method_is_taken(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run.personal("shard0"), "run/r/client-shard0")
    method, tensors = method_of(run, method="fed3r"), fed3r(np.random.default_rng(0))
    file = written(run, method, tensors, Path("run/r/client-x", PERSONAL_FILE))
    image = str(run.images / "000.png")
    for age, taken in ((1, "personal model of shard0"), (None, "personal model of fed3r")):
        os.utime(file, None if age is None else (age, age))
        assert main(["predict", image, "--json", "--threads", "1", "--device", "cpu"]) == ExitCode.OK
        said = capsys.readouterr()
        assert taken in said.err
        assert json.loads(said.out)["class"]


def test_tensors_that_are_not_the_methods_are_one_sentence(run: FinishedRun) -> None:
    method, tensors = method_of(run, method="fed3r"), fed3r(np.random.default_rng(0))
    file = Path("run/r/model.safetensors")
    about = "the published global model of fed3r does not fit together"
    for wrong, why in (
        ({name: array for name, array in tensors.items() if name != "W"}, "it lacks 'W'"),
        ({**tensors, "W": tensors["W"][:-1]}, ""),
        ({**tensors, "W": tensors["W"][:, :2]}, ""),
        ({**tensors, "mean": tensors["mean"][:-1]}, ""),
    ):
        with pytest.raises(DataError, match=f"{about}: {why}"):
            opened(written(run, method, wrong, file))


def test_trees_that_cannot_be_read_are_one_sentence(run: FinishedRun) -> None:
    from fkd_bench.methods.local import Local
    from fkd_common.exchange_method import Labelled, Site

    rng, method = np.random.default_rng(0), method_of(run, method="local", teacher_trees=2)
    assert isinstance(method, Local)
    part = Labelled(rng.normal(size=(12, D)).astype(np.float32), np.arange(12) % len(CLASSES))
    tensors = method.personal_model(Site("x", part, part, 0), {})
    opened(written(run, method, tensors, Path("run/r/client-x", PERSONAL_FILE)))
    tensors["booster"] = np.frombuffer(b"no trees", np.uint8)
    with pytest.raises(DataError, match="the personal model of local does not fit together"):
        opened(written(run, method, tensors, Path("run/r/client-x", PERSONAL_FILE)))


def test_a_method_that_is_not_installed_here_is_named(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    method = method_of(run, method="fed3r")
    other = method_of(run, method="fed3r")
    other.config = method.config.model_copy(update={"method": "their-own"})
    file = written(run, other, fed3r(np.random.default_rng(0)), Path("run/r/model.safetensors"))
    assert main(["predict", str(run.images / "000.png"), "--model", str(file)]) == ExitCode.USAGE
    assert "method 'their-own' is not installed here: expected one of fkd-rtm" in capsys.readouterr().err
