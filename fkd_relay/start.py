"""A relay's run, assembled: what the upstream coordinator serves is fetched, and served on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fkd_client.transport import GrpcTransport
from fkd_common.config import RunConfig
from fkd_common.logs import log_context
from fkd_common.rpc import Transport
from fkd_relay.credentials import upstream_identity
from fkd_relay.learn import UPSTREAM_RUN, Upstream, learn
from fkd_relay.link import Connection, Ends, UpstreamLink
from fkd_relay.method import RelayFkdRtm
from fkd_relay.pace import UpstreamPace
from fkd_relay.refusals import OWN_KEYS, check_flags, check_not_itself, check_run, check_same_keys
from fkd_server.prepare import Preparation
from fkd_server.resume import check_blobs, folder_for
from fkd_server.run import Run, Wiring, resume_run, wire
from fkd_server.run_folder import RunFolder
from fkd_server.run_state import Position
from fkd_server.settings import ServerSettings
from fkd_server.store import RunDescription, RunStore
from fkd_server.validation import UploadRules


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
    check_not_itself(settings)
    preparation.activity = f"asking the upstream coordinator at {settings.upstream}"
    name, tls = upstream_identity(settings, preparation)
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
            upstream = Upstream(settings.upstream, name, open_line, settings.upstream_patience_s)
            connection, described = learn(upstream, folder.path.name, store, preparation)
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
    ends = Ends(
        run.service,
        method,
        pace,
        store,
        run.recorder.on_event,
        began.sources[UPSTREAM_RUN],
        name,
        settings.upstream_patience_s,
    )
    run.link = UpstreamLink(ends, open_line, connection)
    return run


def own_config(settings: ServerSettings, upstream: RunConfig) -> RunConfig:
    """How a relay asks its clients: all that are ready, with a quorum and deadlines of its own."""
    own = {key: getattr(settings, key) for key in OWN_KEYS}
    if "phase_deadline_s" not in settings.model_fields_set:
        own["phase_deadline_s"] = upstream.phase_deadline_s
    return RunConfig(**{**upstream.model_dump(), **own, "clients_per_round": 1.0})
