"""What operators see and steer, as a plain object: bytes in, bytes out; knows rights, not sockets.

With TLS an operator is who holds an operator's certificate. Without, it is whoever calls from this machine:
that includes clients that come through a tunnel, which is one more reason for TLS. Every order leaves a line in
the log; what is not allowed leaves some.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from google.protobuf.message import DecodeError, Message

from fkd_common.access.roles import OPERATOR_COMMAND
from fkd_common.addresses import is_loopback
from fkd_common.errors import ForbiddenError, InvalidUploadError
from fkd_common.pb import admin_pb2 as pb
from fkd_common.rpc import Method
from fkd_server.access.identity import UNPROVEN, Peer, Role
from fkd_server.complaints import Complaints
from fkd_server.disk_trouble import storage_error
from fkd_server.overview import Overview
from fkd_server.published_files import PublishedFiles
from fkd_server.run_state import RunState
from fkd_server.service import CoordinatorService

ORDERS = ("Pause", "Resume", "Stop")
"""Calls that leave a line in the log every time."""
SAY_LOOKS_S = 600.0
"""Whoever looks on asks every few seconds: that leaves a line this often."""
WATCHES_S = 5.0
"""Who has asked for a status so lately probably asks again."""


class Admin:
    """Answers fkd.v1.Admin."""

    def __init__(self, service: CoordinatorService, overview: Overview, files: PublishedFiles) -> None:
        self._service = service
        self._overview = overview
        self._watching: dict[str, float] = {}
        self._looked: dict[tuple[str, str], float] = {}
        self._answers: Mapping[str, Callable[[Any, str], Message]] = {
            "Status": self._status,
            "Rounds": lambda request, who: overview.rounds(request.first),
            "Ledger": lambda request, who: overview.ledger(request.offset),
            "Events": lambda request, who: overview.events(request.after),
            "Pause": self._pause,
            "Resume": self._resume,
            "Stop": self._stop,
            "ReadModel": lambda request, who: files.piece(request.part, request.offset, request.sha256),
        }
        self._complaints = Complaints()
        self._log = structlog.get_logger()

    def answer(self, method: Method, raw: bytes, who: str) -> bytes:
        """Answer one call.

        Args:
            method: Which call.
            raw: The serialised request.
            who: The operator, from :meth:`operator`.

        Raises:
            FkdError: The request is not one, or what it asks for is not there.
        """
        try:
            request = method.request_type.FromString(raw)
        except DecodeError as error:
            raise InvalidUploadError(f"not a {method.name} request: {error}", reason="MALFORMED") from error
        try:
            return self._answers[method.name](request, who).SerializeToString()
        except OSError as error:
            raise storage_error(error, ", so nothing has changed") from error

    def operator(self, method: Method, peer: Peer, address: str) -> str:
        """The caller's name, if it may call; asked before anything of the request is read.

        Args:
            method: Which call.
            peer: Who calls, as far as the connection proves it.
            address: Where the call comes from, without port.

        Raises:
            ForbiddenError: The caller is no operator.
        """
        allowed = is_loopback(address) if peer == UNPROVEN else peer.role is Role.OPERATOR
        who = peer.name or "unproven"
        if not allowed:
            self._complaints.warning("admin_denied", address, who=who, method=method.name)
            raise ForbiddenError(
                f"{method.name} is for operators: expected the certificate of one, made by {OPERATOR_COMMAND}, "
                f"got {peer.role.value + ' ' + who if peer.role else 'none'}",
                reason="NOT_AN_OPERATOR",
            )
        if (
            method.name in ORDERS
            or self._looked.get((who, method.name), -math.inf) < time.monotonic() - SAY_LOOKS_S
        ):
            self._looked[who, method.name] = time.monotonic()
            self._log.info("admin", who=who, method=method.name, address=address)
        return peer.name or f"at {address}"

    def somebody_watches(self) -> bool:
        """Whether an operator who asks again and again has yet to hear that the run is over."""
        now = time.monotonic()
        return any(now - asked < WATCHES_S for asked in list(self._watching.values()))

    def _status(self, request: pb.StatusRequest, who: str) -> pb.StatusResponse:
        answer = self._overview.status()
        if RunState(answer.state) in (RunState.COMPLETED, RunState.ABORTED):
            self._watching.pop(who, None)
        else:
            self._watching[who] = time.monotonic()
        return answer

    def _pause(self, request: pb.PauseRequest, who: str) -> pb.PauseResponse:
        self._service.pause(f"operator {who}")
        return pb.PauseResponse(detail=self._service.waiting_for())

    def _resume(self, request: pb.ResumeRequest, who: str) -> pb.ResumeResponse:
        self._service.unpause(f"operator {who}")
        return pb.ResumeResponse(detail=self._service.waiting_for())

    def _stop(self, request: pb.StopRequest, who: str) -> pb.StopResponse:
        self._service.abort(f"stopped by operator {who}")
        over = self._service.look(lambda coordinator, now: coordinator.outcome())
        assert over is not None
        return pb.StopResponse(detail=over.detail)
