"""Cells for TensorBoard and MLflow: hyper-parameters, curves and final measures; both packages are optional."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fkd_bench.compare.cell import Record, as_text
from fkd_bench.compare.measures import MEASURES, number
from fkd_common.errors import UnreachableError, UsageError

Track: TypeAlias = Callable[[Sequence[Record]], None]
"""Writes finished cells down for another program; the same cell twice is written once."""

_CELL_TAG = "fkd.cell"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
"""What MLflow takes in one call."""


def tensorboard_tracker(folder: Path) -> Track:
    """Writes a run per cell below `folder`, in place of an earlier one.

    Raises:
        UsageError: The package is not installed here.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--tensorboard needs TensorBoard: pip install 'fkd[tracking]'") from error

    def track(records: Sequence[Record]) -> None:
        for record in _finished(records):
            name = re.sub(r"[^\w.=:-]+", "_", _name(record))
            own = folder / record["experiment"] / f"{name}-{record['cell'][:8]}"
            shutil.rmtree(own, ignore_errors=True)
            with SummaryWriter(str(own)) as writer:
                for metric, value, step in _curves(record):
                    writer.add_scalar(metric, value, step)
                writer.add_hparams(_hyper_parameters(record), _finals(record), run_name=".")

    return track


def mlflow_tracker(uri: str) -> Track:
    """Writes a run per cell to an MLflow server (http://HOST:PORT) or a folder; one that is there is left.

    Raises:
        UsageError: The package is not installed here.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise UsageError("--mlflow needs MLflow: pip install 'fkd[tracking]'") from error
    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")

    def track(records: Sequence[Record]) -> None:
        try:
            client = MlflowClient(tracking_uri=uri)
            for record in _finished(records):
                _log_to_mlflow(client, record)
        except MlflowException as error:
            reason = " ".join(str(error).split())[:300]
            raise UnreachableError(f"MLflow at {uri} does not take the results: {reason}") from error

    return track


def _log_to_mlflow(client: Any, record: Record) -> None:
    from mlflow.entities import Metric, Param, RunTag

    known = client.get_experiment_by_name(record["experiment"])
    experiment = known.experiment_id if known is not None else client.create_experiment(record["experiment"])
    if client.search_runs([experiment], f"tags.`{_CELL_TAG}` = '{record['cell']}' and status = 'FINISHED'"):
        return
    run = client.create_run(experiment, run_name=_name(record)).info.run_id
    params = [Param(name, str(value)) for name, value in _hyper_parameters(record).items()]
    for first in range(0, len(params), _PARAMS_AT_ONCE):
        client.log_batch(run, params=params[first : first + _PARAMS_AT_ONCE])
    now, last = int(1000 * time.time()), len(record["rounds"])
    metrics = [Metric(name, value, now, step) for name, value, step in _curves(record)]
    metrics += [Metric(name, value, now, last) for name, value in _finals(record).items()]
    for first in range(0, len(metrics), _METRICS_AT_ONCE):
        client.log_batch(run, metrics=metrics[first : first + _METRICS_AT_ONCE])
    hashes = ("cell", "config_hash", "partition_hash", "model_hash", "git")
    tags = [RunTag(f"fkd.{name}", str(record[name])) for name in hashes if record.get(name)]
    client.log_batch(run, tags=tags)
    client.set_terminated(run)


def _finished(records: Sequence[Record]) -> Iterator[Record]:
    return (record for record in records if not record.get("error"))


def _name(record: Record) -> str:
    return ", ".join([record["label"], *map(as_text, record["varied"].values()), f"seed {record['seed']}"])


def _hyper_parameters(record: Record) -> dict[str, bool | int | float | str]:
    """The configuration, and what else was chosen."""
    config = {name: value for name, value in record["config"].items() if name != "options"}
    options = {f"options.{name}": value for name, value in record["config"].get("options", {}).items()}
    facts = {name: record[name] for name in ("label", "dataset", "partition", "clients")}
    chosen = {**config, **options, **facts}
    return {n: v if isinstance(v, bool | int | float | str) else as_text(v) for n, v in chosen.items()}


def _curves(record: Record) -> Iterator[tuple[str, float, int]]:
    """Name, value and round of everything that was measured round by round."""
    for entry in record["rounds"]:
        named = {
            "round/accuracy": entry.get("accuracy"),
            "round/up": entry["up"],
            "round/down": entry["down"],
        }
        named |= {f"round/{name}": value for name, value in (entry.get("accuracies") or {}).items()}
        for name, value in named.items():
            if value is not None:
                yield name, float(value), int(entry["round"])


def _finals(record: Record) -> dict[str, float]:
    """Everything that was measured at the end."""
    found = {name: number(record, "accuracy", name) for name in record["accuracy"]}
    found |= {name: measure.read(record) for name, measure in MEASURES.items() if name not in found}
    return {f"final/{name}": value for name, value in found.items() if value is not None}
