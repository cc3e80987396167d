"""Turns the run's events into log lines, round records and evaluation jobs; decides nothing about the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from fkd_common.artifacts import sha256_hex, write_atomically
from fkd_common.errors import DataError, FkdError
from fkd_common.model_file import PublishedModel, decode_published, encode_model
from fkd_server.chronicle import Chronicle, WrittenModel
from fkd_server.evaluation import Evaluation, EvaluationJob
from fkd_server.method.federated_method import FederatedMethod, Json
from fkd_server.model_card import Origin, model_card
from fkd_server.run_folder import MODEL, RunFolder
from fkd_server.run_state import Event, Position
from fkd_server.store import RunStore

# Fields too long for a log line; the round's record has them.
_ONLY_IN_RECORD = frozenset(
    {"weights", "reliability", "samples", "student", "phases", "clients", "returned", "class_counts"}
)


class Recorder:
    """Writes what happens; with an evaluator, a round's record waits for its accuracy."""

    def __init__(
        self, run_id: str, folder: RunFolder, method: FederatedMethod, store: RunStore, evaluations: Path
    ) -> None:
        self.chronicle = Chronicle()
        """For those who look on."""
        self.accuracies: dict[int, dict[str, Json]] = {}
        """By round, of those that were scored."""
        self.phase_seconds: dict[str, float] = {}
        self._run_id = run_id
        self._folder = folder
        self._method = method
        self._store = store
        self._evaluations = evaluations
        self._evaluator: Evaluation | None = None
        self._watchers: list[Callable[[Event], None]] = []
        self._waiting: dict[int, Mapping[str, Json]] = {}
        self._unwritten: list[Mapping[str, Json]] = []
        self._lock = threading.Lock()
        self._log = structlog.get_logger()

    @property
    def model(self) -> WrittenModel | None:
        """The model written last."""
        return self.chronicle.model

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Tell another of every event of the run from now on."""
        self._watchers.append(watcher)

    def evaluate_with(self, evaluator: Evaluation) -> None:
        """Score the global model after every round from now on."""
        self._evaluations.mkdir(parents=True, exist_ok=True)
        self._evaluator = evaluator

    def resume(self, at: Position) -> None:
        """Take up what an earlier process had recorded: lines, sums, models, and evaluations it had not finished.

        Args:
            at: Where the run stands; the method stands there already.
        """
        done: list[Mapping[str, Json]] = []
        jobs: list[EvaluationJob] = []
        rounds = self._store.rounds()
        if made := [record["round"] for record, _ in rounds if self._method.publishes(record["phases"])]:
            self.chronicle.model = self._model_on_disk(made[-1])
        for record, accuracy in rounds:
            self.chronicle.history.add(record, accuracy)
            round_number, published = record["round"], self._method.publishes(record["phases"])
            for phase, summary in record["phases"].items():
                self._count_seconds(phase, summary["seconds"])
            if _is_as_after(round_number, at):
                # The process may have ended after the round was closed and before its files were written.
                self._write_models(round_number, published=published, evaluated=accuracy is None)
            path = self._evaluated_file(round_number)
            if accuracy is None and self._evaluator is not None and path.exists():
                self._waiting[round_number] = record
                jobs.append(EvaluationJob(round_number, path))
            else:
                done.append(record if accuracy is None else {**record, "accuracy": accuracy})
                if accuracy:
                    self.accuracies[round_number] = accuracy
        self._folder.write_rounds(done)
        for job in jobs:  # from here on lines are added by the evaluator too
            assert self._evaluator is not None
            self._evaluator.submit(job)

    def _model_on_disk(self, round_number: int) -> WrittenModel | None:
        path = self._folder.path / MODEL
        try:
            blob = path.read_bytes()
            return WrittenModel(sha256_hex(blob), round_number, decode_published(blob).header.published)
        except FileNotFoundError:
            return None
        except (OSError, DataError) as error:
            self._log.error("model_damaged", file=str(path), detail=str(error))
            return None

    def on_event(self, event: Event) -> None:
        """Note one event."""
        self._say(
            event.name,
            {
                name: _rounded(value)
                for name, value in event.fields.items()
                if name not in _ONLY_IN_RECORD and value not in ({}, [], None)
            },
        )
        for watcher in self._watchers:
            watcher(event)
        if event.name == "phase_closed":
            phase, seconds = event.fields["phase"], event.fields["seconds"]
            assert isinstance(phase, str)
            assert isinstance(seconds, float)
            self._count_seconds(phase, seconds)
        if event.name == "round_closed":
            self.chronicle.history.add(event.fields)
            self._record_round(event.fields)

    def _say(self, name: str, fields: Mapping[str, Json]) -> None:
        """One event, for the log and for those who look on."""
        self.chronicle.events.add(name, fields)
        self._log.info(name, **fields)

    def _count_seconds(self, phase: str, seconds: float) -> None:
        self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds

    def _evaluated_file(self, round_number: int) -> Path:
        return self._evaluations / f"round-{round_number}.safetensors"

    def _record_round(self, record: Mapping[str, Json]) -> None:
        round_number = record["round"]
        assert isinstance(round_number, int)
        phases = record["phases"]
        assert isinstance(phases, Mapping)
        self._write_models(round_number, published=self._method.publishes(phases), evaluated=True)
        path = self._evaluated_file(round_number)
        if self._evaluator is None or not path.exists():
            self._append(record)
            return
        with self._lock:
            self._waiting[round_number] = record
        self._evaluator.submit(EvaluationJob(round_number, path))

    def _write_models(self, round_number: int, *, published: bool, evaluated: bool) -> None:
        """Write the global model where it is wanted; a disk that refuses costs the files, not the round's record."""
        evaluated = evaluated and self._evaluator is not None
        if not (published or evaluated):
            return
        try:
            model = self._method.model()
            if model is None:
                return
            if published:  # a run that is stopped later still leaves the last model it published
                self._put(model, round_number)
            if evaluated:
                write_atomically(self._evaluated_file(round_number), encode_model(model))
        except (OSError, FkdError) as error:
            self._log.error("model_not_written", round=round_number, detail=str(error))

    def write_model(self, round_number: int) -> None:
        """Put the global model, as it is after a round, into the run's folder, if the method has one.

        Raises:
            OSError: The disk does not take it.
            FkdError: A part of the model is lost.
        """
        if (model := self._method.model()) is not None:
            self._put(model, round_number)

    def _put(self, model: PublishedModel, round_number: int) -> None:
        blob = encode_model(model)
        sha256 = sha256_hex(blob)
        self._folder.write_model(blob, self._card(model, sha256, round_number))
        self.chronicle.model = WrittenModel(sha256, round_number, model.header.published)

    def _card(self, model: PublishedModel, sha256: str, round_number: int, stopped: str = "") -> str:
        accuracy = self.accuracies.get(round_number, {})
        made = Origin(self._run_id, round_number, self._method.sent_by_a_site(), stopped)
        return model_card(model, sha256, made, accuracy)

    def note_stop(self, why: str) -> None:
        """Say on the card of the last model, if there is one, what is known of it now and why the run ended.

        Raises:
            OSError: The disk does not take it.
            FkdError: The model's file is damaged.
        """
        if self.model is not None:
            model = decode_published((self._folder.path / MODEL).read_bytes())
            self._folder.write_card(self._card(model, self.model.sha256, self.model.round, stopped=why))

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
        if not self._method.publishes(phases) and self._method.config.correction:
            accuracy = {name: value for name, value in accuracy.items() if name != "published"}
        try:
            self._store.set_accuracy(round_number, accuracy)
            self._evaluated_file(round_number).unlink(missing_ok=True)
        except OSError as error:
            self._log.error("accuracy_not_kept", round=round_number, detail=str(error))
        self._append({**record, "accuracy": accuracy})
        if accuracy:
            self.accuracies[round_number] = accuracy
            self.chronicle.history.score(round_number, accuracy)
            shown = {name: round(value, 4) for name, value in accuracy.items() if isinstance(value, float)}
            self._say("evaluated", {"round": round_number, **shown})


def _is_as_after(round_number: int, at: Position) -> bool:
    """Whether the global model is still the one that a closed round left: no phase has been folded since."""
    if at.record:
        return at.round == round_number + 1 and not at.record["phases"]
    return at.round == round_number


def _rounded(value: Json) -> Json:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return value
