"""How a new relay learns of the upstream run: registers, fetches what its clients need, and waits for both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog

from fkd_client.run_info import RunInfo
from fkd_client.session import Session
from fkd_client.transfer import Transfer
from fkd_common.artifacts import BlobStore
from fkd_common.errors import DataError, UnreachableError
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import Transport
from fkd_relay.absence import Absence
from fkd_relay.credentials import relays_words
from fkd_relay.link import PATIENCE_S, Connection
from fkd_relay.refusals import check_run
from fkd_server.prepare import Preparation
from fkd_server.store import RunDescription, RunStore

UPSTREAM_RUN = "upstream_run"
"""Where a run's description keeps the name of the run it is part of."""

SAY_AGAIN_S = 60.0
"""What has not changed is said again this often."""


@dataclass(frozen=True)
class Upstream:
    """Where the upstream coordinator is, and how it is asked."""

    address: str
    """HOST:PORT."""
    name: str
    """This relay's, there."""
    open_line: Callable[[], Transport]
    """Opens a channel to it."""
    patience_s: float
    """How long it may be silent before it is given up, in seconds."""


def learn(
    upstream: Upstream, run_id: str, store: RunStore, preparation: Preparation
) -> tuple[Connection, RunDescription]:
    """Register, and fetch extractor and anchors; an upstream coordinator that does not answer is asked again.

    Args:
        upstream: Whom to ask.
        run_id: This relay's run.
        store: Of that run; receives what is fetched.
        preparation: Is told what is waited for, and may end the wait.

    Raises:
        UsageError: A relay cannot carry the upstream run.
        UnreachableError: It was silent for too long, or the wait was ended.
        FkdError: It refused this relay.
    """
    wait = _Wait(upstream, preparation)
    while True:
        session = Session(upstream.open_line(), upstream.name, PATIENCE_S, announce=False)
        preparation.on_cancel(lambda held=session: held.close(notify=False))  # type: ignore[misc]
        try:
            with relays_words():
                run = session.register(relay=True)
            wait.answered()
            session.begin(None)
            connection = Connection(session, Transfer(session, run, store.blobs))
            preparation.activity = f"fetching extractor and anchors from {upstream.address}"
            return connection, _describe(run_id, run, connection, store)
        except UnreachableError as error:
            session.close(notify=False)
            if preparation.cancelled:
                raise
            wait.say(error)
        except BaseException:
            session.leave()
            raise


class _Wait:
    """For an upstream coordinator that does not answer, or has nothing to serve yet."""

    def __init__(self, upstream: Upstream, preparation: Preparation) -> None:
        self._upstream = upstream
        self._preparation = preparation
        self.answered()

    def answered(self) -> None:
        """It is there."""
        self._absence, self._said_at = Absence(self._upstream.address), -SAY_AGAIN_S

    def say(self, error: UnreachableError) -> None:
        """Say what is waited for: always to whoever asks, and every so often to the log.

        Raises:
            UnreachableError: It has been silent for too long.
        """
        upstream, absence = self._upstream, self._absence
        news = absence.note(error)
        if absence.silent_s > upstream.patience_s:
            raise UnreachableError(
                f"no coordinator answered at {upstream.address} within {upstream.patience_s:.0f} s (is fkd-server "
                "running there, is the tunnel up? see --upstream and --upstream-patience-s)"
            )
        self._preparation.activity = absence.words
        if news or time.monotonic() - self._said_at >= SAY_AGAIN_S:
            self._said_at = time.monotonic()
            structlog.get_logger().warning(
                "upstream_unreachable", upstream=upstream.address, on=absence.words, detail=str(error)
            )


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
