"""One run, assembled: artifacts, method, state machine, service and records; the same with or without a network."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from fkd_common.config import FKD_RTM, RunConfig
from fkd_common.errors import DataError, FkdError, UsageError
from fkd_common.exchange_method import Federation
from fkd_common.logs import log_context
from fkd_common.method_registry import check_codecs, exchange_method, ignored_keys, method_of
from fkd_server.admin import Admin
from fkd_server.coordinator import Coordinator
from fkd_server.evaluation import Evaluation, Evaluator
from fkd_server.method.exchange import Exchange, ExchangeRules
from fkd_server.method.federated_method import FederatedMethod, Json
from fkd_server.method.fkd_rtm import method_for
from fkd_server.overview import Overview
from fkd_server.pace import AtOnce, Pace
from fkd_server.prepare import Preparation, load_prepared, prepare_in_child
from fkd_server.published_files import PublishedFiles
from fkd_server.recorder import Recorder
from fkd_server.resume import (
    check_blobs,
    check_same,
    folder_for,
    put_back_setup,
    sources_of,
    whole_uploads,
)
from fkd_server.run_folder import MODEL, RunFolder, bytes_per_client, process_usage
from fkd_server.run_state import PhaseKey, Position, RunState
from fkd_server.service import CoordinatorService, RunIdentity
from fkd_server.settings import ServerSettings
from fkd_server.spool import UploadSpool
from fkd_server.store import RunDescription, RunStore
from fkd_server.validation import UploadRules


class EvaluatorMaker(Protocol):
    """Makes an evaluation of models on a test shard; see :class:`Evaluator`."""

    def __call__(
        self,
        test: Path,
        extractor: Path,
        extractor_sha256: str,
        cache: Path,
        threads: int,
        on_result: Callable[[int, dict[str, Json]], None],
    ) -> Evaluation:
        """The evaluation, at work."""
        ...


class Link(Protocol):
    """Carries a run along with another coordinator's."""

    failure: FkdError | None
    """Why this process cannot go on, though the run can: another one may."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """Say goodbye and end."""


@dataclass(frozen=True)
class Wiring:
    """What differs between a run of its own and one that follows another coordinator's."""

    method: FederatedMethod
    rules: UploadRules
    config: RunConfig
    """How clients are asked: the run's configuration, or that with keys of this coordinator's own."""
    pace: Pace
    evaluator: EvaluatorMaker | None = None


@dataclass
class Run:
    """A run ready to be served."""

    run_id: str
    config: RunConfig
    folder: RunFolder
    method: FederatedMethod
    coordinator: Coordinator
    service: CoordinatorService
    recorder: Recorder
    store: RunStore
    evaluator: Evaluation | None
    overview: Overview
    admin: Admin
    started: float
    link: Link | None = None
    """To the coordinator whose run this one is part of."""

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
        if self.coordinator.state is RunState.COMPLETED:
            self.recorder.write_model(self.config.rounds)
        else:
            self.recorder.note_stop(self.coordinator.detail)
        model = self.recorder.model
        self.write_ledger()
        summary: dict[str, Json] = {
            "run_id": self.run_id,
            "state": self.coordinator.state.value,
            "detail": self.coordinator.detail,
            "accuracy": self.recorder.accuracies.get(model.round, {}) if model else {},
            "bytes": bytes_per_client(self.service.ledger),
            "seconds": {
                "total": round(time.monotonic() - self.started, 2),
                "phases": {
                    phase: round(seconds, 2) for phase, seconds in self.recorder.phase_seconds.items()
                },
            },
            "server": process_usage(),
            "model_hash": model.sha256 if model else None,
            "config_hash": self.config.sha256(),
        }
        self.folder.write_summary(summary)
        self.folder.remove_working_folders()
        return summary

    def write_ledger(self) -> None:
        """Bytes so far; again once the last client has left."""
        self.folder.write_ledger(self.service.ledger)

    def close(self) -> None:
        """Let go of the run; unless it is finished, a coordinator started as this one was goes on with it.

        Models that are not scored yet are scored then.
        """
        if self.link is not None:
            self.link.close()
        if self.evaluator is not None:
            self.evaluator.kill()
        with contextlib.suppress(OSError):
            self.write_ledger()
        self.store.close()
        self.folder.release()


def assemble(
    settings: ServerSettings,
    cache: Path,
    preparation: Preparation | None = None,
    evaluator: EvaluatorMaker = Evaluator,
) -> Run:
    """Prepare and wire up a run, or go on with an unfinished one.

    Args:
        settings: What to run.
        cache: Folder of cached embeddings.
        preparation: For other threads, to follow the preparation and to end it.
        evaluator: Makes what scores models on the test set.

    Raises:
        DataError: Extractor, anchors, test set or the run's state cannot be used.
        RefusedError: The unfinished run began with other settings.
        UsageError: The run is finished, another coordinator serves it, or its method is not installed here.
    """
    config = settings.run_config()
    if config.method != FKD_RTM:
        _check_method(config)
    if settings.test is not None and not settings.test.is_dir():
        raise UsageError(f"--test {settings.test}: no such shard folder")
    folder = RunFolder(folder_for(settings))
    log_context(run=folder.path.name)
    try:
        store = RunStore.open(folder.path)
    except BaseException:
        folder.release()
        raise
    began, run = store.description(), None
    try:
        if began is None:
            described = _prepare(settings, folder, store, preparation or Preparation())
        else:
            described = began
            check_same(described, settings)
            put_back_setup(described, store.blobs, settings.prepared, folder.path / "prepared")
        setup = {described.extractor.sha256: "the extractor", described.anchors.sha256: "the anchors"}
        check_blobs(folder.path, store.blobs, setup)
        method, rules = _method_of(settings.run_config(), described, store)
        wiring = Wiring(method, rules, settings.run_config(), AtOnce(), evaluator)
        run = wire(settings, described, folder, store, cache, wiring)
        if began is None:
            store.begin(described, Position(method=run.method.snapshot()))
        folder.write_config(run.config, described.classes)
        if began is not None:
            resume_run(run)
        return run
    except BaseException:
        if run is not None and run.evaluator is not None:
            run.evaluator.kill()
        started = store.description() is not None
        store.close()
        if started:
            folder.release()
        else:
            folder.remove()  # nothing ran: the name is free again
        raise


def _check_method(config: RunConfig) -> None:
    """Notice a mistyped name or option before a preparation of minutes, and say which keys do nothing.

    Raises:
        UsageError: The method is not installed here, or does not take its options or a codec.
    """
    exchange_method(config)
    check_codecs(config)
    if ignored := ignored_keys(config):
        names = ", ".join(ignored)
        structlog.get_logger().warning(
            "keys_ignored",
            keys=names,
            detail=f"only {FKD_RTM} reads them: they change nothing for {config.method}",
        )


def _prepare(
    settings: ServerSettings, folder: RunFolder, store: RunStore, preparation: Preparation
) -> RunDescription:
    """Make what a new run serves."""
    config = settings.run_config()
    prepared = settings.prepared
    if prepared is None:
        prepared = folder.path / "prepared"
        anchors = _shard_folder(settings.data_folder("anchors", settings.anchors), "anchors")
        public = settings.data_folder("public", settings.public)
        if settings.extractor == "pretrain":
            _shard_folder(public, "public")
        prepare_in_child(
            settings.extractor, anchors, public, prepared, config.seed, settings.threads, preparation
        )
    artifacts = load_prepared(prepared, store.blobs)
    return RunDescription(
        folder.path.name,
        config.model_dump(mode="json"),
        sources_of(settings),
        artifacts.classes,
        artifacts.extractor,
        artifacts.anchors,
    )


def wire(
    settings: ServerSettings,
    began: RunDescription,
    folder: RunFolder,
    store: RunStore,
    cache: Path,
    wiring: Wiring,
) -> Run:
    """Connect the parts; nothing runs yet.

    Args:
        settings: What to run.
        began: What the run was started with.
        folder: Its folder.
        store: Its state.
        cache: Folder of cached embeddings.
        wiring: Its method, and how it is driven.
    """
    method, run_id = wiring.method, began.run_id
    recorder = Recorder(run_id, folder, method, store, folder.path / "evaluations")
    coordinator = Coordinator(wiring.config, method, store, recorder.on_event, time.perf_counter, wiring.pace)
    identity = RunIdentity(run_id, began.classes, {"extractor": began.extractor, "anchors": began.anchors})
    spool = UploadSpool(folder.path / "spool", settings.upload_ttl_s)
    service = CoordinatorService(
        identity, coordinator, method, wiring.rules, store, spool, time.monotonic, settings.relays
    )
    evaluator = None
    if settings.test is not None and wiring.evaluator is not None and not folder.finished:
        evaluator = wiring.evaluator(
            settings.test,
            store.blobs.path(began.extractor.sha256),
            began.extractor.sha256,
            cache,
            settings.threads,
            recorder.on_evaluated,
        )
        recorder.evaluate_with(evaluator)
    overview = Overview(service, recorder.chronicle, store, method.embedding_dim)
    files = PublishedFiles(folder.path / MODEL, recorder.chronicle, began.extractor, store.blobs)
    return Run(
        run_id,
        method.config,
        folder,
        method,
        coordinator,
        service,
        recorder,
        store,
        evaluator,
        overview,
        Admin(service, overview, files),
        time.monotonic(),
    )


def _method_of(
    config: RunConfig, began: RunDescription, store: RunStore
) -> tuple[FederatedMethod, UploadRules]:
    """The server half of the run's method, before round 1, and what its uploads must satisfy.

    Raises:
        UsageError: The method is not installed here.
        MethodError: Its own code fails.
    """
    anchors = store.blobs.tensors(began.anchors.sha256)
    if config.method == FKD_RTM:
        method = method_for(config)(
            config,
            began.classes,
            anchors["embeddings"],
            began.extractor.sha256,
            store.blobs,
            store.uploads,
        )
        return method, UploadRules.of(method)
    federation = Federation(
        config,
        len(began.classes),
        anchors["images"],
        anchors["embeddings"],
        lambda: store.blobs.read(began.extractor.sha256),
    )
    exchange = Exchange(
        method_of(federation), began.classes, began.extractor.sha256, store.blobs, store.uploads
    )
    return exchange, ExchangeRules.of_exchange(exchange)


def resume_run(run: Run) -> None:
    """Take up the run where its last durable step left it.

    Raises:
        DataError: A file that is needed is missing or damaged.
    """
    at, uploads = run.store.position(), {}
    if at.open is not None:
        uploads = whole_uploads(run.store, PhaseKey(at.round, at.open.phase))
    run.coordinator.resume(at, run.store.clients(), uploads, time.monotonic())
    check_blobs(
        run.folder.path, run.store.blobs, dict.fromkeys(run.method.in_use(), "part of the global model")
    )
    run.recorder.resume(at)
    run.store.sweep(at, run.method.in_use())


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
