"""One client's part in one run, from registration to report; the same over gRPC and in one process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from fkd_client.display import Display
from fkd_client.exchange import ExchangePart
from fkd_client.extractor import EMBEDDING_DIM, load_extractor
from fkd_client.part import FkdRtmPart, Part, PartPlace
from fkd_client.report import Report, write_report
from fkd_client.run_info import RunInfo, pause_s
from fkd_client.session import Session, TaskClosedError
from fkd_client.site import Site, anchors_of
from fkd_client.task_inputs import check_anchors
from fkd_client.teacher import TeacherTrainer, train_teacher
from fkd_client.transfer import Transfer
from fkd_common.artifacts import BlobStore
from fkd_common.config import FKD_RTM
from fkd_common.errors import (
    ConflictError,
    CorruptTransferError,
    DataError,
    FkdError,
    ForbiddenError,
    InvalidUploadError,
    NotFoundError,
    RefusedError,
    RunAbortedError,
    StaleError,
    SupersededError,
    TooLargeError,
    UnauthenticatedError,
    UnreachableError,
    UsageError,
)
from fkd_common.ledger import PHASE_NAMES
from fkd_common.logs import log_context
from fkd_common.method_registry import exchange_method
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.privacy_accounting import require_accounting
from fkd_common.rpc import Transport
from fkd_common.tensors import decode_writeable
from fkd_common.tracing import Place, task_span
from fkd_shards.shard import Shard, check_exists, open_data, read_shard

# Refusals and lost connections: the next task would end the same way.
_ENDS_THE_RUN = (
    ConflictError,
    CorruptTransferError,
    ForbiddenError,
    InvalidUploadError,
    RefusedError,
    SupersededError,
    TooLargeError,
    UnauthenticatedError,
    UnreachableError,
    UsageError,
)


@dataclass(frozen=True)
class ClientOptions:
    """Where a client's data and caches are, and what it may use."""

    data: str
    name: str
    device: str
    threads: int
    test: Path | None
    max_bad: float
    patience_s: float
    runs: Path
    cache: Path
    artifacts: Path
    turn: Callable[[], AbstractContextManager[object]] = field(default=nullcontext)
    """Entered while computing: lets several clients of one process share its cores."""
    teach: TeacherTrainer = train_teacher
    """Trains FKD-RTM's teacher: lets runs of one process share what they would train alike."""


class Client:
    """Takes part in one run."""

    def __init__(self, options: ClientOptions, transport: Transport, display: Display) -> None:
        self.session = Session(transport, options.name, options.patience_s)
        self._options = options
        self._display = display
        self._where: dict[str, object] = {}
        """Round and phase of the task at work."""
        self._log = structlog.get_logger().bind(client=options.name)

    def run(self) -> Report:
        """Register, prepare, do every task, keep the personal model and the report.

        Returns:
            The report, which is also in the run's folder.

        Raises:
            RunAbortedError: The run ended without a result.
            UsageError: Its method is not installed here.
            FkdError: The data cannot be used, or the coordinator refused this client or went away.
        """
        options = self._options
        test = self._test_shard()
        check_exists(options.data)
        artifacts = self._own_folders()
        self._display.wait("for the coordinator to answer")
        run = self.session.register()
        log_context(run=run.run_id)
        self._log.info("registered", run=run.run_id, config=run.config.sha256()[:12])
        if run.config.noise_multiplier > 0:
            require_accounting()
        if run.config.method != FKD_RTM:
            exchange_method(run.config)  # before anything is fetched for a method that is not installed here
        transfer = Transfer(self.session, run, artifacts)
        self.session.begin(None)
        with options.turn():
            part = self._prepare(run, transfer)
        self.session.end()
        finished = self._work(run, part)
        self.session.leave()
        if not finished.completed:
            raise RunAbortedError(f"the run was aborted: {finished.detail}")
        with options.turn():
            report = part.conclude(test, self._display.show)
        write_report(part.folder, report, self.session.ledger)
        self._log.info("finished", run=run.run_id, folder=str(part.folder))
        return report

    def close(self, reason: str = "") -> None:
        """Leave the run, whatever state it is in; the coordinator is told the kind of error, if any."""
        self.session.leave(reason)
        self._display.close()

    def _own_folders(self) -> BlobStore:
        """Make the folders this client will write to: one that cannot be written is refused before any work.

        Raises:
            UsageError: Naming the folder and the setting.
        """
        options = self._options
        places = {"--runs": options.runs, "--cache": options.cache, "--artifacts": options.artifacts}
        for flag, folder in places.items():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                raise UsageError(f"{flag} {folder} cannot be written: {error.strerror or error}") from error
        return BlobStore(options.artifacts)

    def _test_shard(self) -> Shard | None:
        """The test shard, if any: a wrong one is refused now rather than after the last round."""
        if self._options.test is None:
            return None
        test = read_shard(self._options.test)
        if test.labels is None:
            raise DataError(f"--test {self._options.test} has no labels to score against")
        return test

    def _prepare(self, run: RunInfo, transfer: Transfer) -> Part:
        options = self._options
        key = types.TaskKey(run_id=run.run_id, phase=types.PHASE_SETUP)
        self._progress(0.0, "fetching extractor and anchors")
        blob = transfer.fetch_kept(run.artifacts["extractor"], key)
        anchor_images, anchor_embeddings = anchors_of(
            decode_writeable(transfer.fetch_kept(run.artifacts["anchors"], key))
        )
        extractor = load_extractor(blob)
        check_anchors(anchor_images, anchor_embeddings, EMBEDDING_DIM)
        self._progress(0.0, "reading data")
        size = extractor.spec.input_size
        shard = open_data(options.data, classes=run.classes, image_size=size, max_bad=options.max_bad)
        for bad in shard.bad:
            self._log.warning("image_skipped", detail=str(bad))
        site = Site(
            options.name,
            shard,
            extractor.to(options.device),
            run.artifacts["extractor"].sha256.hex(),
            anchor_images,
            anchor_embeddings,
            len(run.classes),
            options.cache,
            options.device,
            options.threads,
        )
        folder = options.runs / run.run_id / f"client-{options.name}"
        place = PartPlace(run, self.session, transfer, folder, self._progress)
        part: Part
        if run.config.method == FKD_RTM:
            part = FkdRtmPart(site, place, options.teach)
        else:
            part = ExchangePart(site, place, blob)
        self._log.info("prepared", **part.prepare())
        return part

    def _work(self, run: RunInfo, part: Part) -> pb.Finished:
        """Poll and do tasks until the run is over."""
        self._display.wait("for the first task")
        while True:
            try:
                answer = self.session.next_task()
                if answer.HasField("finished"):
                    return answer.finished
                if answer.HasField("wait"):
                    self._display.wait(answer.wait.reason)
                    time.sleep(pause_s(answer.wait))
                else:
                    self._do(part, answer.task)
            except UnreachableError as error:
                if part.personal_round < run.config.rounds:
                    raise
                # The last private model is made; the coordinator had waited long enough and is gone.
                self._log.warning("coordinator_gone", detail=str(error))
                return pb.Finished(completed=True, detail="the coordinator is gone")

    def _do(self, part: Part, task: pb.Task) -> None:
        where: dict[str, object] = {
            "round": task.key.round,
            "phase": PHASE_NAMES.get(task.key.phase, "unknown"),
        }
        self._where = where
        self.session.begin(task.key)
        try:
            place = Place(task.key.run_id, task.key.round, str(where["phase"]))
            with self._options.turn(), task_span(place, self.session.name):
                part.run(task)
        except (TaskClosedError, StaleError, NotFoundError) as error:
            self._log.warning("task_overtaken", **where, detail=str(error))
        except _ENDS_THE_RUN:
            raise
        except FkdError as error:
            self._log.error("task_failed", **where, detail=str(error))
            self.session.report_failure(task.key, str(error))
        finally:
            self.session.end()
            self._where = {}

    def _progress(self, fraction: float, activity: str) -> None:
        self._display.show(fraction, activity, **self._where)
        self.session.progress(fraction, activity)
