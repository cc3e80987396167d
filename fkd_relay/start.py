"""A relay's run, assembled: what the upstream coordinator serves is fetched, and served on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import structlog

from fkd_client.run_info import RunInfo
from fkd_client.session import Session
from fkd_client.transfer import Transfer
from fkd_client.transport import GrpcTransport
from fkd_common.artifacts import BlobStore
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, UnreachableError
from fkd_common.logs import log_context
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import Transport
from fkd_relay.credentials import relays_words, upstream_identity
from fkd_relay.link import PATIENCE_S, Connection, Ends, UpstreamLink
from fkd_relay.method import RelayFkdRtm
from fkd_relay.pace import UpstreamPace
from fkd_relay.refusals import OWN_KEYS, check_flags, check_run, check_same_keys
from fkd_server.prepare import Preparation
from fkd_server.resume import check_blobs, folder_for
from fkd_server.run import Run, Wiring, resume_run, wire
from fkd_server.run_folder import RunFolder
from fkd_server.run_state import Position
from fkd_server.settings import ServerSettings
from fkd_server.store import RunDescription, RunStore
from fkd_server.validation import UploadRules

UPSTREAM_RUN = "upstream_run"
"""Where a run's description keeps the name of the run it is part of."""


def assemble_relay(settings: ServerSettings, cache: Path, preparation: Preparation) -> Run:
    """Learn of the upstream run and wire up one that follows it, or go on with an unfinished one.

    A run that has begun does not need the upstream coordinator to go on: its clients wait until that answers.

    Args:
        settings: Where the upstream coordinator is, and what is this relay's own to say.
        cache: Folder of cached embeddings; a relay makes none.
        preparation: For other threads, to follow and to end the wait for the upstream coordinator.

    Raises:
        UsageError: Flags or a run that a relay cannot carry.
        FkdError: The upstream coordinator refused, or the run's state cannot be used.
    """
    assert settings.upstream is not None
    check_flags(settings)
    preparation.activity = f"asking the upstream coordinator at {settings.upstream}"
    name, tls = upstream_identity(settings)
    folder = RunFolder(folder_for(settings))
    log_context(run=folder.path.name)
    open_line, connection = partial(GrpcTransport, settings.upstream, tls), None
    try:
        store = RunStore.open(folder.path)
    except BaseException:
        folder.release()
        raise
    try:
        began = store.description()
        described = began
        if described is None:
            connection, run = _connect(settings.upstream, open_line, name, store.blobs, preparation)
            described = _describe(folder.path.name, run, connection, store)
        config = RunConfig(**described.config)
        check_run(config)
        check_same_keys(settings, config)
        made = _wire(settings, described, folder, store, cache, (name, open_line, connection))
        if began is None:
            store.begin(described, Position(method=made.method.snapshot()))
        folder.write_config(config, described.classes)
        if began is not None:
            resume_run(made)
        return made
    except BaseException:
        if connection is not None:
            connection.session.leave()
        started = store.description() is not None
        store.close()
        if started:
            folder.release()
        else:
            folder.remove()
        raise


def _connect(
    upstream: str, open_line: Callable[[], Transport], name: str, blobs: BlobStore, preparation: Preparation
) -> tuple[Connection, RunInfo]:
    """Register, however long the upstream coordinator takes to answer."""
    since = time.monotonic()
    while True:
        session = Session(open_line(), name, PATIENCE_S, announce=False)
        preparation.on_cancel(lambda held=session: held.close(notify=False))  # type: ignore[misc]
        try:
            with relays_words():
                run = session.register(relay=True)
            session.begin(None)
            return Connection(session, Transfer(session, run, blobs)), run
        except UnreachableError as error:
            session.close(notify=False)
            if preparation.cancelled:
                raise
            silent = f"which has not answered for {time.monotonic() - since:.0f} s"
            preparation.activity = f"waiting for the upstream coordinator at {upstream}, {silent}"
            structlog.get_logger().warning("upstream_unreachable", upstream=upstream, detail=str(error))


def _describe(run_id: str, run: RunInfo, at: Connection, store: RunStore) -> RunDescription:
    """Fetch what the run's clients need.

    Raises:
        DataError: The anchors are none.
    """
    check_run(run.config)
    key = types.TaskKey(run_id=run.run_id, phase=types.PHASE_SETUP)
    at.session.progress(0.0, "fetching extractor and anchors")
    found = {}
    for name in ("extractor", "anchors"):
        at.transfer.fetch_kept(run.artifacts[name], key)
        found[name] = store.blobs.describe(run.artifacts[name].sha256.hex())
    _check_anchors(store.blobs, found["anchors"].sha256)
    config = run.config.model_dump(mode="json")
    return RunDescription(run_id, config, {UPSTREAM_RUN: run.run_id}, run.classes, **found)


def _check_anchors(blobs: BlobStore, sha256: str) -> None:
    embeddings = blobs.tensors(sha256).get("embeddings")
    fits = embeddings is not None and embeddings.ndim == 2 and embeddings.dtype == np.float32
    if embeddings is None or not fits or len(embeddings) < 2 or not np.isfinite(embeddings).all():
        raise DataError("the upstream coordinator's anchors have no embeddings of at least 2 images")


def _wire(
    settings: ServerSettings,
    began: RunDescription,
    folder: RunFolder,
    store: RunStore,
    cache: Path,
    line: tuple[str, Callable[[], Transport], Connection | None],
) -> Run:
    """Connect the parts; nothing runs yet."""
    name, open_line, connection = line
    assert settings.upstream is not None
    setup = {began.extractor.sha256: "the extractor", began.anchors.sha256: "the anchors"}
    check_blobs(folder.path, store.blobs, setup)
    config = RunConfig(**began.config)
    own = own_config(settings, config)
    embeddings = store.blobs.tensors(began.anchors.sha256)["embeddings"]
    method = RelayFkdRtm(
        config, began.classes, embeddings, began.extractor.sha256, store.blobs, store.uploads
    ).to_fold_as(name, own.min_cohort)
    pace = UpstreamPace(settings.upstream, method.phases)
    wiring = Wiring(method, UploadRules.of(method), own, pace)
    run = wire(settings, began, folder, store, cache, wiring)
    ends = Ends(run.service, method, pace, store, run.recorder.on_event, began.sources[UPSTREAM_RUN], name)
    run.link = UpstreamLink(ends, open_line, connection)
    return run


def own_config(settings: ServerSettings, upstream: RunConfig) -> RunConfig:
    """How a relay asks its clients: all that are ready, with a quorum and deadlines of its own."""
    own = {key: getattr(settings, key) for key in OWN_KEYS}
    if "phase_deadline_s" not in settings.model_fields_set:
        own["phase_deadline_s"] = upstream.phase_deadline_s
    return RunConfig(**{**upstream.model_dump(), **own, "clients_per_round": 1.0})
