"""One cell, really run: what its record says, what it shares, and that two calls do not spoil each other's."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fkd_bench.compare import cell_run
from fkd_bench.compare.cell import Cell
from fkd_bench.compare.cell_run import run_cell
from fkd_bench.compare.experiment import Experiment
from fkd_bench.compare.grid import RUN_CELL
from fkd_bench.compare.span import cells_of
from fkd_bench.compare.worker import record_of
from fkd_client.extractor import dump_extractor
from fkd_client.pipeline import Pipeline
from fkd_client.pretrain import initial_trunk
from fkd_client.progress import silent
from fkd_common.extractor_artifact import ExtractorSpec
from fkd_common.method.metrics import accuracy


@pytest.fixture(scope="module")
def extractor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that nobody trained: random features are enough here."""
    spec = ExtractorSpec("resnet18", 8, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "small", 1)
    folder = tmp_path_factory.mktemp("extractor")
    trunk = initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict()
    (folder / "e.safetensors").write_bytes(dump_extractor(trunk, spec))
    (folder / "e.json").write_text(spec.to_json())
    return folder / "e.safetensors"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


def cells(extractor: Path, methods: str, **keys: object) -> list[Cell]:
    common = {"rounds": 2, "local_steps": 3, "teacher_trees": 5, "hidden": [8], "dropout": [0.0], **keys}
    text = f"""
title: Small
data: {{digits: {{source: digits, extractor: {extractor}, anchors: 40, limit: 300}}}}
clients: 3
seeds: [0]
common: {json.dumps(common)}
methods: {methods}
"""
    return cells_of(Experiment.parse(text, "small", "small"), {})


def test_a_record_says_what_came_out(extractor: Path, workspace: Path) -> None:
    (cell,) = cells(extractor, "[fkd-rtm]", personal=["prior", "blend"], refine_steps=1)
    record = run_cell(cell, workspace)
    assert record["cell"] == cell.id
    assert record["error"] is None
    assert [line["round"] for line in record["rounds"]] == [0, 1, 2]
    assert record["accuracy"]["global"] == record["rounds"][-1]["accuracies"]["published"]
    assert record["bytes"]["up"] == record["rounds"][-1]["up"] > 0
    assert set(record["clients_matched"]) == {"shard0", "shard1", "shard2"}
    total = sum(record["calibration"]["count"])
    assert total == 62  # test images that the division leaves
    hits = sum(n * a for n, a in zip(*(record["calibration"][k] for k in ("count", "accuracy")), strict=True))
    assert hits / total == pytest.approx(record["accuracy"]["global"], abs=1e-3)
    assert record["teacher"]["nll_after"] > 0


def test_nothing_of_a_run_stays_in_memory(extractor: Path, workspace: Path) -> None:
    def pipelines() -> list[Pipeline]:
        return [kept for kept in gc.get_objects() if type(kept) is Pipeline]

    (cell,) = cells(extractor, "[fkd-rtm]", personal=["prior"], rounds=1)
    of_other_tests = pipelines()
    gc.disable()
    try:
        run_cell(cell, workspace)
        assert not [kept for kept in pipelines() if all(kept is not other for other in of_other_tests)]
    finally:
        gc.enable()


@pytest.mark.parametrize("keys", [{}, {"kd_targets": "in_sample", "beta": 0.5}])
def test_a_whole_run_with_mlp_teachers(extractor: Path, workspace: Path, keys: dict[str, object]) -> None:
    (cell,) = cells(
        extractor, "[fkd-rtm]", teacher="mlp", teacher_epochs=30, lr=0.01, personal=["blend"], **keys
    )
    record = run_cell(cell, workspace)
    assert record["error"] is None
    assert 0 <= record["teacher"]["ece_after"] <= 1
    assert record["accuracy"]["local_only_matched"] > 0.3


def test_without_a_global_model_the_sites_own_models_are_pooled(extractor: Path, workspace: Path) -> None:
    (cell,) = cells(extractor, "[fedmd]")
    record = run_cell(cell, workspace)
    assert record["accuracy"]["global"] is None
    assert 0 < record["accuracy"]["ensemble"] <= 1
    assert record["calibration"] is None


@pytest.mark.usefixtures("own_method")
def test_an_error_in_a_method_of_ones_own_names_its_line_and_the_site(
    extractor: Path, workspace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (cell,) = cells(extractor, "[mine]")
    record = record_of(RUN_CELL, cell, workspace)
    assert record["label"] == "My own"
    assert re.search(r"shard\d: .*my_methods/mine\.py:9.*TypeError: no shard\d", record["error"])
    assert "my_methods/mine.py:9" in capfd.readouterr().out


def test_damage_to_what_cells_share_is_made_good_and_told(extractor: Path, workspace: Path) -> None:
    (cell,) = cells(extractor, "[fedavg]")
    own = workspace / "data" / cell.division.id / "cells" / cell.id

    def damaged() -> list[Path]:
        return cell_run._federation(cell, own, workspace, silent)[1]

    assert damaged() == []
    shared = workspace / "data" / cell.division.id
    files = [
        shared / "shards" / "shard1" / "labels.npy",
        shared / "prepared" / "extractor.safetensors",
        min((shared / "cache" / "embeddings").glob("*.npy")),
        next((workspace / "bank").glob("*.npy")),
    ]
    held = [file.read_bytes() for file in files]
    for file, content in zip(files, held, strict=True):
        file.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
    assert damaged() == files
    assert [file.read_bytes() for file in files[:3]] == held[:3]
    assert damaged() == []


def test_what_cells_share_is_nobodys_time(
    extractor: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = cell_run._federation

    def slow(*given: object) -> object:
        time.sleep(3.0)
        return shared(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(cell_run, "_federation", slow)
    (cell,) = cells(extractor, "[fed3r]")
    began = time.perf_counter()
    record = run_cell(cell, workspace)
    assert record["seconds"]["wall"] <= time.perf_counter() - began - 3.0


def test_two_calls_for_one_cell_come_one_after_the_other(
    extractor: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, most, lock = 0, 0, threading.Lock()
    alone = cell_run.run_inprocess

    def counted(*given: object) -> object:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        try:
            time.sleep(0.5)
            return alone(*given)  # type: ignore[arg-type]
        finally:
            with lock:
                at_work -= 1

    monkeypatch.setattr(cell_run, "run_inprocess", counted)
    (cell,) = cells(extractor, "[fedavg]")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: run_cell(cell, workspace), range(2))
    assert most == 1
    assert first["model_hash"] == second["model_hash"]
    assert first["accuracy"] == second["accuracy"]


@pytest.mark.slow
def test_teachers_are_trained_once_for_cells_that_need_the_same(
    extractor: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    train = cell_run.train_teacher

    def counted(*given: object, **how: object) -> object:
        trained.append(1)
        return train(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(cell_run, "train_teacher", counted)
    monkeypatch.setattr(cell_run, "_teachers", type(cell_run._teachers)())
    rows = """
  - {label: a, config: {refine_steps: 0}}
  - {label: b, config: {refine_steps: 1}}
  - {label: c, config: {teacher_trees: 6}}"""
    for cell, total in zip(cells(extractor, rows, personal=["prior"]), (3, 3, 6), strict=True):
        run_cell(cell, workspace)
        assert len(trained) == total


def test_the_mean_of_probabilities_decides(tmp_path: Path) -> None:
    class Test:
        labels = torch.tensor([0, 1]).numpy()

        def probabilities(self, path: Path) -> object:
            sure = {"a": [[0.9, 0.1], [0.6, 0.4]], "b": [[0.2, 0.8], [0.1, 0.9]]}
            return torch.tensor(sure[path.name], dtype=torch.float64).numpy()

    models = [tmp_path / "a", tmp_path / "b"]
    assert cell_run._ensemble_accuracy(models, Test()) is None  # type: ignore[arg-type]
    for path in models:
        path.touch()
    assert cell_run._ensemble_accuracy(models, Test()) == 1.0  # type: ignore[arg-type]
    assert accuracy(Test().probabilities(models[0]), Test.labels) == 0.5  # type: ignore[arg-type]
