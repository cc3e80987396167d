"""One run, assembled: artifacts, method, state machine, service and records; the same with or without a network."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fkd_common.artifacts import BlobStore
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, FkdError, UsageError
from fkd_common.identifiers import new_run_id
from fkd_server.coordinator import Coordinator
from fkd_server.evaluation import Evaluator
from fkd_server.federated_method import Json
from fkd_server.fkd_rtm import FkdRtm
from fkd_server.prepare import EXTRACTOR_FILE, Cancel, load_prepared, prepare_in_child
from fkd_server.recorder import Recorder
from fkd_server.run_folder import RunFolder, bytes_per_client, process_usage
from fkd_server.run_state import RunState
from fkd_server.service import CoordinatorService, RunIdentity
from fkd_server.settings import ServerSettings
from fkd_server.spool import UploadSpool


@dataclass
class Run:
    """A run ready to be served."""

    run_id: str
    config: RunConfig
    folder: RunFolder
    method: FkdRtm
    coordinator: Coordinator
    service: CoordinatorService
    recorder: Recorder
    evaluator: Evaluator | None
    started: float

    def finish(self) -> Mapping[str, Json]:
        """Wait for evaluations, write the model, the ledger and the summary; returns the summary.

        Raises:
            FkdError: The disk does not take them.
        """
        if self.evaluator is not None:
            self.evaluator.close()
        try:
            return self._write_results()
        except OSError as error:
            raise FkdError(
                f"the run's results cannot be written to {self.folder.path}: {error.strerror or error}"
            ) from error

    def _write_results(self) -> Mapping[str, Json]:
        completed = self.coordinator.state is RunState.COMPLETED
        model_hash = self.recorder.model_hash
        if completed:
            rounds, accuracy = self.config.rounds, self.recorder.accuracy
            model_hash = self.folder.write_model(self.method.model(), self.run_id, accuracy, rounds)
        self.write_ledger()
        summary: dict[str, Json] = {
            "run_id": self.run_id,
            "state": self.coordinator.state.value,
            "detail": self.coordinator.detail,
            "accuracy": self.recorder.accuracy,
            "bytes": bytes_per_client(self.service.ledger),
            "seconds": {
                "total": round(time.monotonic() - self.started, 2),
                "phases": {
                    phase: round(seconds, 2) for phase, seconds in self.recorder.phase_seconds.items()
                },
            },
            "server": process_usage(),
            "model_hash": model_hash,
            "config_hash": self.config.sha256(),
        }
        self.folder.write_summary(summary)
        self.folder.remove_working_folders()
        return summary

    def write_ledger(self) -> None:
        """Bytes so far; again once the last client has left."""
        self.folder.write_ledger(self.service.ledger)


def assemble(settings: ServerSettings, cache: Path, cancel: Cancel | None = None) -> Run:
    """Prepare artifacts and wire up a run; `cancel` can end the preparation from another thread.

    Raises:
        DataError: Extractor, anchors or test set cannot be used.
        UsageError: The run folder exists.
    """
    config = settings.run_config()
    run_id = settings.run_id or new_run_id()
    if settings.test is not None and not settings.test.is_dir():
        raise UsageError(f"--test {settings.test}: no such shard folder")
    folder = RunFolder(settings.runs / run_id)
    try:
        return _assemble(settings, config, run_id, folder, cache, cancel or Cancel())
    except BaseException:
        folder.remove()  # nothing ran: the name is free again
        raise


def _assemble(
    settings: ServerSettings, config: RunConfig, run_id: str, folder: RunFolder, cache: Path, cancel: Cancel
) -> Run:
    blobs, uploads = BlobStore(folder.path / "blobs"), BlobStore(folder.path / "uploads")
    prepared = settings.prepared
    if prepared is None:
        prepared = folder.path / "prepared"
        anchors = _shard_folder(settings.data_folder("anchors", settings.anchors), "anchors")
        public = settings.data_folder("public", settings.public)
        if settings.extractor == "pretrain":
            _shard_folder(public, "public")
        prepare_in_child(settings.extractor, anchors, public, prepared, config.seed, settings.threads, cancel)
    artifacts = load_prepared(prepared, blobs)
    folder.write_config(config, artifacts.classes)
    method = FkdRtm(
        config, artifacts.classes, artifacts.anchor_embeddings, artifacts.extractor.sha256, blobs, uploads
    )
    recorder = Recorder(run_id, folder, method, folder.path / "evaluations")
    coordinator = Coordinator(config, method, recorder.on_event)
    identity = RunIdentity(
        run_id, artifacts.classes, {"extractor": artifacts.extractor, "anchors": artifacts.anchors}
    )
    service = CoordinatorService(
        identity, coordinator, method, blobs, uploads, UploadSpool(folder.path / "spool"), time.monotonic
    )
    evaluator = None
    if settings.test is not None:
        extractor = prepared / EXTRACTOR_FILE
        evaluator = Evaluator(
            settings.test,
            extractor,
            artifacts.extractor.sha256,
            cache,
            settings.threads,
            recorder.on_evaluated,
        )
        recorder.evaluate_with(evaluator)
    return Run(run_id, config, folder, method, coordinator, service, recorder, evaluator, time.monotonic())


def _shard_folder(folder: Path, name: str) -> Path:
    """The folder, if it looks like a shard.

    Raises:
        DataError: It does not.
    """
    if not (folder / "shard.json").is_file():
        raise DataError(
            f"no {name} shard at {folder}: make one with `fkd-shards create`, or give --{name} FOLDER"
        )
    return folder
