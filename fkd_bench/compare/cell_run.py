"""One cell of an experiment: the run of one method on one division of the data, and the record it leaves.

The run is the same as over the network (coordinator, service, ledger, clients), in one process; what several cells have
in common (shards, embeddings, teachers) is made once.
"""

from __future__ import annotations

import csv
import gc
import json
import shutil
import statistics
import subprocess
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_bench.compare.bank import EmbeddingBank
from fkd_bench.compare.cell import Cell, Division
from fkd_bench.compare.shared_folder import whole_folder
from fkd_bench.federation import Federation, FederationResult
from fkd_bench.narrator import Narrator
from fkd_bench.settings import BenchSettings
from fkd_bench.simulation import run_inprocess
from fkd_client.array_cache import sole_writer
from fkd_client.embedding import embed_cached
from fkd_client.exchange import PERSONAL_FILE
from fkd_client.extractor import load_extractor
from fkd_client.progress import Progress, silent
from fkd_client.published_scorer import scorer_of
from fkd_client.teacher import Teacher, train_teacher
from fkd_client.teacher_cache import teacher_key
from fkd_client.threads import limit_threads
from fkd_common.artifacts import sha256_hex
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.method.metrics import ReliabilityBins, accuracy, negative_log_likelihood
from fkd_common.method.probabilities import softmax
from fkd_common.model_file import decode_published
from fkd_server.evaluation import EvaluationJob, model_scores
from fkd_server.prepare import EXTRACTOR_FILE, prepare
from fkd_server.run_folder import MODEL
from fkd_shards.create import create
from fkd_shards.json_files import Manifest
from fkd_shards.shard import MANIFEST_FILE, read_shard

Record = dict[str, Any]

CALIBRATION_BINS = 10
_TEACHERS_KEPT = 128


def run_cell(cell: Cell, workspace: Path, progress: Progress = silent) -> Record:
    """Run a cell.

    Args:
        cell: What to run.
        workspace: Folder of shards, embeddings and runs that cells share.
        progress: Told what is done.

    Returns:
        The record: accuracies in 0...1, bytes per client, seconds.

    Raises:
        FkdError: It cannot be run.
    """
    limit_threads(1)
    own = workspace / "data" / cell.division.id / "cells" / cell.id
    with sole_writer(own, lambda: progress(0.0, "waiting for another process to run the same cell")):
        federation, damaged = _federation(cell, own, workspace, progress)
        # What cells share is nobody's time: whoever comes first would pay for all.
        started, cpu = time.perf_counter(), time.process_time()
        listener = _Listener()
        try:
            outcome = run_inprocess(federation, listener, _Inline, _shared_teacher)
            folder = federation.folder / "run" / outcome.summary["run_id"]
            record = _record(cell, federation, outcome, folder)
        except FkdError as error:
            raise listener.explained(error) from error
        finally:
            shutil.rmtree(federation.folder, ignore_errors=True)
            # What a run holds, hundreds of MB of arrays, refers to itself in circles, and is not many objects.
            gc.collect()
    record["seconds"]["wall"] = round(time.perf_counter() - started, 2)
    record["seconds"]["cpu"] = round(time.process_time() - cpu, 2)
    record["remarks"] = [f"{path} was damaged and has been made anew" for path in damaged]
    return record


# -- what cells share -----------------------------------------------------------------------------


def _federation(cell: Cell, own: Path, workspace: Path, progress: Progress) -> tuple[Federation, list[Path]]:
    """Shards, extractor, anchors and embeddings of a cell's data, made by whoever comes first.

    Returns:
        The federation, and what was found damaged and has been made anew.
    """
    division = cell.division
    settings = BenchSettings.model_construct(
        clients=division.clients, extractor=division.extractor, data=division.data, threads=1
    )
    shared = workspace / "data" / division.id
    shards, prepared = shared / "shards", shared / "prepared"
    with sole_writer(shared, lambda: progress(0.0, "waiting for another process to divide the same data")):
        shared.mkdir(parents=True, exist_ok=True)
        damaged = [
            *whole_folder(shards, lambda out: create(division.create_request(out))),
            *whole_folder(prepared, lambda out: _prepare(division, shards, out)),
        ]
        manifest = Manifest.read(shards / MANIFEST_FILE)
        federation = Federation(settings, cell.config, own, manifest, prepared)
        blob = (prepared / EXTRACTOR_FILE).read_bytes()
        parts = [read_shard(shards / name) for name in (*federation.client_names, "test")]
        bank = EmbeddingBank(workspace / "bank", sha256_hex(blob), division.data_sha256)
        damaged += bank.fill(shared / "cache" / "embeddings", load_extractor(blob), parts, progress)
    shutil.rmtree(own, ignore_errors=True)  # a process that was killed may have left half a run
    own.mkdir(parents=True)
    for name in ("shards", "cache"):
        (own / name).symlink_to(shared / name)
    return federation, damaged


def _prepare(division: Division, shards: Path, out: Path) -> None:
    prepare(division.extractor, shards / "anchors", shards / "public", out, division.seed, 1)


_teachers: OrderedDict[str, Teacher] = OrderedDict()


def _shared_teacher(
    h_train: NDArray[np.float32],
    y_train: NDArray[np.int64],
    h_val: NDArray[np.float32],
    y_val: NDArray[np.int64],
    num_classes: int,
    config: RunConfig,
    *,
    seed: int,
    **how: Any,
) -> Teacher:
    """A teacher, trained once per data and configuration in this process; see ``train_teacher``."""
    data = (h_train, y_train, h_val, y_val)
    key = teacher_key(data, num_classes, config, seed)
    if key not in _teachers:
        _teachers[key] = train_teacher(*data, num_classes, config, seed=seed, **how)
        while len(_teachers) > _TEACHERS_KEPT:
            _teachers.popitem(last=False)
    return _teachers[key]


class _Listener(Narrator):
    """Keeps the log, and what went wrong at sites; says nothing else: the grid speaks."""

    def __init__(self) -> None:
        super().__init__()
        self._failures: dict[str, str] = {}

    def say(self, text: str, style: str = "") -> None:
        """Nothing."""

    def note(self, event: dict[str, Any]) -> None:
        """Remember what each site's first failed task said."""
        if event.get("event") == "task_failed":
            print(f"{event['client']}, round {event['round']}: {event['detail']}", flush=True)
            self._failures.setdefault(event["client"], event["detail"])

    def explained(self, error: FkdError) -> FkdError:
        """What a run ended with, and what the site that failed first had said."""
        return next((FkdError(f"{error}; {site}: {said}") for site, said in self._failures.items()), error)


@dataclass
class _Inline:
    """Scores models at once, in this process."""

    test: Path
    extractor: Path
    extractor_sha256: str
    cache: Path
    threads: int
    on_result: Callable[[int, dict[str, Any]], None]
    _score: Callable[[Path], dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._score = model_scores(self.test, self.extractor, self.extractor_sha256, self.cache, silent)

    def submit(self, job: EvaluationJob) -> None:
        """Score it."""
        self.on_result(job.round, self._score(job.model))

    def waiting_for(self) -> str:
        """Never for anything."""
        return ""

    def close(self) -> None:
        """Nothing is queued."""

    def kill(self) -> None:
        """Nothing runs."""


# -- the record -----------------------------------------------------------------------------------


def _record(cell: Cell, federation: Federation, outcome: FederationResult, folder: Path) -> Record:
    summary, reports = outcome.summary, outcome.reports
    if summary["state"] != "completed":
        raise FkdError(f"the run ended as {summary['state']}: {summary['detail']}")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    final = summary["accuracy"]
    matched = {report["client"]: _of_chosen(report, "matched") for report in reports}
    known = [value for value in matched.values() if value is not None]
    test = _TestSet(federation)
    own_models = [folder / f"client-{name}" / PERSONAL_FILE for name in federation.client_names]
    accuracies = {
        "global": final.get("published"),
        **{name: value for name, value in final.items() if isinstance(value, float) and name != "published"},
        "personal_full": _mean([_of_chosen(report, "full") for report in reports]),
        "personal_matched": _mean(list(matched.values())),
        "personal_matched_worst": min(known, default=None),
        "ensemble": None if final else _ensemble_accuracy(own_models, test),
    }
    teachers = [report["teacher"] for report in reports if report["teacher"] is not None]
    for view in ("full", "matched"):
        alone = [r["personal"]["test_accuracy"].get("teacher", {}).get(view) for r in reports]
        accuracies["local_only" if view == "full" else "local_only_matched"] = _mean(alone)
    phases: dict[str, float] = defaultdict(float)
    for report in reports:
        for phase, seconds in report["seconds"].items():
            phases[phase] += seconds / len(reports)
    if teachers:
        phases["teacher"] = statistics.fmean(teacher["seconds"] for teacher in teachers)
    model = folder / MODEL
    setup = summary["bytes"]["by_phase"].get("setup", {"payload": {"up": 0, "down": 0}})["payload"]
    payload, message = summary["bytes"]["payload"], summary["bytes"]["message"]
    last: Record = next((line for line in reversed(lines) if _weights(line)), {})
    return {
        **cell.head(),
        "config": federation.config.model_dump(mode="json"),
        "config_hash": summary["config_hash"],
        "partition_hash": outcome.manifest.partition_sha256,
        "git": _commit(),
        "model_hash": summary["model_hash"],
        "accuracy": accuracies,
        "rounds": _curve(lines, folder, len(reports)),
        "recall": final.get("recall"),
        "class_names": list(outcome.manifest.classes),
        "class_counts": [report["class_counts"] for report in reports],
        "weights": _weights(last),
        "reliability": _phase_value(last, "reliability"),
        "calibration": _calibration(model, test) if model.exists() else None,
        "teacher": {
            name: _mean([teacher[name] for teacher in teachers])
            for name in ("ece_before", "ece_after", "nll_before", "nll_after")
        }
        if teachers
        else None,
        "correction": _corrections(lines),
        "clients_matched": matched,
        "personal_kinds": _by_kind(reports),
        "bytes": {
            "up": payload["up"] - setup["up"],
            "down": payload["down"] - setup["down"],
            "setup": setup["down"],
            "message_up": message["up"],
            "message_down": message["down"],
        },
        "excluded": sorted({name for line in lines for name in (_phase_value(line, "excluded") or {})}),
        "seconds": {
            "phases": {phase: round(seconds, 3) for phase, seconds in phases.items()},
            "coordinator": summary["seconds"]["phases"],
        },
        "error": None,
    }


def _of_chosen(report: Record, view: str) -> float | None:
    """Accuracy of the personal model that the site keeps."""
    personal = report["personal"]
    scores = personal["test_accuracy"].get(personal["chosen"], {})
    value: float | None = scores.get(view)
    return value


def _by_kind(reports: Sequence[Record]) -> dict[str, float | None]:
    """Matched accuracy of every kind of personal model, mean over clients."""
    kinds = {kind for report in reports for kind in report["personal"]["test_accuracy"]}
    return {
        kind: _mean([report["personal"]["test_accuracy"].get(kind, {}).get("matched") for report in reports])
        for kind in sorted(kinds - {"teacher"})
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and value == value]
    return statistics.fmean(known) if known else None


def _phase_value(line: Mapping[str, Any], name: str) -> Any:
    """A value of the phase of a round in which models were combined."""
    for phase in ("student", "exchange"):
        if name in line.get("phases", {}).get(phase, {}):
            return line["phases"][phase][name]
    return None


def _weights(line: Mapping[str, Any]) -> Any:
    return _phase_value(line, "weights")


def _corrections(lines: Sequence[Mapping[str, Any]]) -> Record | None:
    """What stage 2 of FKD-RTM says about its last anchor correction."""
    for line in reversed(lines):
        if "residuals" in line["phases"]:
            phase = line["phases"]["residuals"]
            return {name: phase.get(name) for name in ("anchor_lambda", "loo_r2")}
    return None


def _curve(lines: Sequence[Mapping[str, Any]], folder: Path, clients: int) -> list[Record]:
    """Accuracy and cumulative payload bytes per client after every round, without what is sent once at the start."""
    sent: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    with (folder / "ledger.csv").open() as file:
        for row in csv.DictReader(file):
            if row["phase"] != "setup":
                sent[int(row["round"])][0] += int(row["payload_up"])
                sent[int(row["round"])][1] += int(row["payload_down"])
    curve, up, down = [], 0, 0
    for line in lines:
        round_number = line["round"]
        for number in sorted(sent):
            if number <= round_number:
                more_up, more_down = sent.pop(number)
                up, down = up + more_up, down + more_down
        accuracies = {n: v for n, v in line.get("accuracy", {}).items() if isinstance(v, float)}
        best = accuracies.get("published", accuracies.get("student"))
        curve.append(
            {
                "round": round_number,
                "accuracy": best,
                "accuracies": accuracies,
                "up": up // clients,
                "down": down // clients,
                "seconds": round(sum(phase["seconds"] for phase in line["phases"].values()), 3),
            }
        )
    return curve


class _TestSet:
    """Scores model files on the test set; what several models need is read once."""

    def __init__(self, federation: Federation) -> None:
        assert federation.prepared is not None
        self._shard = read_shard(federation.shards / "test")
        self._artifact = (federation.prepared / EXTRACTOR_FILE).read_bytes()
        self._cache = federation.cache / "embeddings"

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n,) classes."""
        assert self._shard.labels is not None
        return self._shard.labels

    @cached_property
    def _embeddings(self) -> NDArray[np.float32]:
        extractor = load_extractor(self._artifact)
        return embed_cached(self._cache, sha256_hex(self._artifact), extractor, self._shard)

    def probabilities(self, model: Path) -> NDArray[np.float64]:
        """(n, C) of the published candidate of a model file of any method."""
        scorer = scorer_of(decode_published(model.read_bytes()), self._artifact)
        inputs = self._shard.images if scorer.takes_images else self._embeddings
        return softmax(scorer.candidate_logits(inputs)[scorer.published])


def _calibration(model: Path, test: _TestSet) -> Record:
    """Confidence against accuracy of the published model on the test set, in bins of equal width."""
    p = test.probabilities(model)
    bins = ReliabilityBins.of(p, test.labels, CALIBRATION_BINS)
    some = np.maximum(bins.count, 1)
    return {
        "confidence": (bins.confidence / some).round(4).tolist(),
        "accuracy": (bins.hits / some).round(4).tolist(),
        "count": bins.count.tolist(),
        "ece": bins.expected_error,
        "nll": negative_log_likelihood(p, test.labels),
    }


def _ensemble_accuracy(models: Sequence[Path], test: _TestSet) -> float | None:
    """Accuracy of the mean of all clients' probabilities, for a method whose clients keep models of their own."""
    if not all(path.exists() for path in models):
        return None
    total = sum(test.probabilities(path) for path in models)
    return accuracy(np.asarray(total), test.labels)


def _commit() -> str:
    """The commit this package is at, where it is a checkout."""
    told = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return told.stdout.strip() if told.returncode == 0 else ""
