"""Turns the run's events into log lines, round records and evaluation jobs; decides nothing about the run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import structlog

from fkd_common.artifacts import sha256_hex, write_atomically
from fkd_common.model_file import encode_model
from fkd_server.evaluation import EvaluationJob, Evaluator
from fkd_server.method.federated_method import Json
from fkd_server.method.fkd_rtm import FkdRtm
from fkd_server.run_folder import RunFolder
from fkd_server.run_state import Event
from fkd_server.store import RunStore

# Fields too long for a log line; the round's record has them.
_ONLY_IN_RECORD = frozenset({"weights", "reliability", "samples", "student", "phases", "clients", "returned"})


class Recorder:
    """Writes what happens; with an evaluator, a round's record waits for its accuracy."""

    def __init__(
        self, run_id: str, folder: RunFolder, method: FkdRtm, store: RunStore, evaluations: Path
    ) -> None:
        self.model_hash: str | None = None
        """Of the model written last."""
        self.accuracy: dict[str, Json] = {}
        self.phase_seconds: dict[str, float] = {}
        self._run_id = run_id
        self._folder = folder
        self._method = method
        self._store = store
        self._evaluations = evaluations
        self._evaluator: Evaluator | None = None
        self._waiting: dict[int, Mapping[str, Json]] = {}
        self._unwritten: list[Mapping[str, Json]] = []
        self._lock = threading.Lock()
        self._log = structlog.get_logger()

    def evaluate_with(self, evaluator: Evaluator) -> None:
        """Score the global model after every round from now on."""
        self._evaluations.mkdir(parents=True, exist_ok=True)
        self._evaluator = evaluator

    def resume(self) -> None:
        """Take up what an earlier process had recorded: lines, sums, and evaluations it had not finished."""
        done: list[Mapping[str, Json]] = []
        if (model := self._folder.path / "model.safetensors").exists():
            self.model_hash = sha256_hex(model.read_bytes())
        for record, accuracy in self._store.rounds():
            for phase, summary in record["phases"].items():
                self._count_seconds(phase, summary["seconds"])
            path = self._evaluated_file(record["round"])
            if accuracy is None and self._evaluator is not None and path.exists():
                self._waiting[record["round"]] = record
                self._evaluator.submit(EvaluationJob(record["round"], path))
            else:
                done.append(record if accuracy is None else {**record, "accuracy": accuracy})
                self.accuracy = accuracy or self.accuracy
        self._folder.write_rounds(done)

    def on_event(self, event: Event) -> None:
        """Note one event."""
        shown = {name: value for name, value in event.fields.items() if name not in _ONLY_IN_RECORD}
        self._log.info(
            event.name,
            **{key: _rounded(value) for key, value in shown.items() if value not in ({}, [], None)},
        )
        if event.name == "phase_closed":
            phase, seconds = event.fields["phase"], event.fields["seconds"]
            assert isinstance(phase, str)
            assert isinstance(seconds, float)
            self._count_seconds(phase, seconds)
        if event.name == "round_closed":
            self._record_round(event.fields)

    def _count_seconds(self, phase: str, seconds: float) -> None:
        self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds

    def _evaluated_file(self, round_number: int) -> Path:
        return self._evaluations / f"round-{round_number}.safetensors"

    def _record_round(self, record: Mapping[str, Json]) -> None:
        round_number = record["round"]
        assert isinstance(round_number, int)
        phases = record["phases"]
        assert isinstance(phases, Mapping)
        path = self._evaluated_file(round_number)
        try:
            if "votes" in phases or self._evaluator is not None:
                self._write_models(round_number, voted="votes" in phases, evaluated=path)
        except OSError as error:
            self._log.error("model_not_written", round=round_number, detail=str(error))
        if self._evaluator is None or not path.exists():
            self._append(record)
            return
        with self._lock:
            self._waiting[round_number] = record
        self._evaluator.submit(EvaluationJob(round_number, path))

    def _write_models(self, round_number: int, *, voted: bool, evaluated: Path) -> None:
        model = self._method.model()
        if voted:
            # A run that is stopped later still leaves the model of its last vote.
            self.model_hash = self._folder.write_model(model, self._run_id, {}, round_number)
        if self._evaluator is not None:
            write_atomically(evaluated, encode_model(model))

    def _append(self, record: Mapping[str, Json]) -> None:
        """Write a record, and those before it that a full disk refused."""
        with self._lock:
            self._unwritten.append(record)
            try:
                while self._unwritten:
                    self._folder.append_round(self._unwritten[0])
                    self._unwritten.pop(0)
            except OSError as error:
                self._log.error("record_not_written", waiting=len(self._unwritten), detail=str(error))

    def on_evaluated(self, round_number: int, accuracy: dict[str, Json]) -> None:
        """A round's accuracies are known."""
        with self._lock:
            record = self._waiting.pop(round_number)
        phases = record["phases"]
        assert isinstance(phases, Mapping)
        if "votes" not in phases and self._method.config.correction:
            accuracy = {name: value for name, value in accuracy.items() if name != "published"}
        try:
            self._store.set_accuracy(round_number, accuracy)
        except OSError as error:
            self._log.error("accuracy_not_kept", round=round_number, detail=str(error))
        self._append({**record, "accuracy": accuracy})
        if accuracy:
            self.accuracy = accuracy
            shown = {name: round(value, 4) for name, value in accuracy.items() if isinstance(value, float)}
            self._log.info("evaluated", round=round_number, **shown)


def _rounded(value: Json) -> Json:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return value
