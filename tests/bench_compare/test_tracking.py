"""Cells in TensorBoard and MLflow: read back with their own readers, written once, and asked for politely."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fkd_bench.compare.cell import Record
from fkd_bench.compare.tracking import mlflow_tracker, tensorboard_tracker
from fkd_common.errors import UnreachableError, UsageError
from tests.tools import absent

from . import stand_in
from .conftest import small_cells


def records(tmp_path: Path) -> list[Record]:
    fedavg, fedprox = small_cells("[{method: fedavg, label: Fed/Avg}, fedprox]")
    return [{**stand_in.quick(fedavg, tmp_path), "error": None}, fedprox.failed("no data")]


def needs(package: str) -> None:
    if find_spec(package) is None:
        absent(f"{package} is not installed here")


def test_tensorboard_reads_curves_and_final_measures_once(tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    finished = records(tmp_path)
    for _ in range(2):
        tensorboard_tracker(tmp_path / "tb")(finished)
    (run,) = (tmp_path / "tb" / "small").iterdir()
    assert run.name == f"Fed_Avg_seed_0-{finished[0]['cell'][:8]}"
    events = EventAccumulator(str(run)).Reload()
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("round/accuracy")] == [
        (1, 0.47),
        (2, 0.57),
    ]
    assert [round(event.value, 3) for event in events.Scalars("final/personal_matched")] == [0.67]


def test_mlflow_has_a_run_for_every_finished_cell_and_no_second(tmp_path: Path) -> None:
    needs("mlflow")
    from mlflow.tracking import MlflowClient

    finished, folder = records(tmp_path), str(tmp_path / "ml")
    for _ in range(2):
        mlflow_tracker(folder)(finished)
    client = MlflowClient(tracking_uri=folder)
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["rounds"] == "2"
    assert run.data.metrics["final/global"] == pytest.approx(0.57)
    assert [m.step for m in client.get_metric_history(run.info.run_id, "round/accuracy")] == [1, 2]
    assert run.data.tags["fkd.cell"] == finished[0]["cell"]


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UnreachableError, match=r"MLflow at http://127\.0\.0\.1:9 does not take the results"):
        mlflow_tracker("http://127.0.0.1:9")(records(tmp_path))


@pytest.mark.parametrize(
    ("module", "tracker"), [("torch.utils.tensorboard", "tensorboard"), ("mlflow.tracking", "mlflow")]
)
def test_a_missing_package_is_one_sentence(
    module: str, tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"pip install 'fkd\[tracking\]'"):
        tensorboard_tracker(tmp_path) if tracker == "tensorboard" else mlflow_tracker(str(tmp_path))
