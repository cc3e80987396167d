"""What operators see and steer, as a plain object: bytes in, bytes out; knows rights, not sockets.

With TLS an operator is who holds an operator's certificate. Without, it is whoever calls from this machine:
that includes clients that come through a tunnel, which is one more reason for TLS. Every call leaves a line in
the log, allowed or not.
"""

from __future__ import annotations

import structlog
from google.protobuf.message import DecodeError

from fkd_common.access.certificates import OPERATOR_COMMAND
from fkd_common.addresses import is_loopback
from fkd_common.errors import ForbiddenError, InvalidUploadError
from fkd_common.pb import admin_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import Method
from fkd_server.access.identity import UNPROVEN, Peer, Role
from fkd_server.coordinator import WAITING, Coordinator
from fkd_server.run_state import ClientRecord
from fkd_server.service import CoordinatorService


class Admin:
    """Answers fkd.v1.Admin."""

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self._log = structlog.get_logger()

    def answer(self, method: Method, raw: bytes, who: str) -> bytes:
        """Answer one call.

        Args:
            method: Which call.
            raw: The serialised request.
            who: The operator, from :meth:`operator`.

        Raises:
            InvalidUploadError: The request is not one.
        """
        try:
            method.request_type.FromString(raw)
        except DecodeError as error:
            raise InvalidUploadError(f"not a {method.name} request: {error}", reason="MALFORMED") from error
        answer = self._stop(who) if method.name == "Stop" else self._service.look(self._status)
        return answer.SerializeToString()

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
            self._log.warning("admin_denied", who=who, method=method.name, address=address)
            raise ForbiddenError(
                f"{method.name} is for operators: expected the certificate of one, made by {OPERATOR_COMMAND}, "
                f"got {peer.role.value + ' ' + who if peer.role else 'none'}",
                reason="NOT_AN_OPERATOR",
            )
        self._log.info("admin", who=who, method=method.name, address=address)
        return peer.name or f"at {address}"

    def _stop(self, who: str) -> pb.StopResponse:
        self._service.abort(f"stopped by operator {who}")
        over = self._service.look(lambda coordinator, now: coordinator.outcome())
        assert over is not None
        return pb.StopResponse(detail=over.detail)

    def _status(self, coordinator: Coordinator, now: float) -> pb.StatusResponse:
        return pb.StatusResponse(
            run_id=self._service.run_id,
            state=coordinator.state.value,
            round=coordinator.round,
            rounds=coordinator.config.rounds,
            phase=types.Phase.Name(
                coordinator.open.key.phase if coordinator.open else types.PHASE_UNSPECIFIED
            ),
            waiting_for=coordinator.waiting_for(now),
            clients=[
                pb.ClientStatus(
                    name=client.name,
                    alive=client.alive,
                    ready=waits,
                    activity="" if waits or client.activity == WAITING else client.activity,
                    progress=client.progress,
                )
                for _, client in sorted(coordinator.attendance.clients.items())
                for waits in [_waits(client, coordinator)]
            ],
        )


def _waits(client: ClientRecord, coordinator: Coordinator) -> bool:
    """Whether a client waits for a task: its last sign of life was a poll, and it is not asked for anything now."""
    phase = coordinator.open
    asked = (
        phase is not None
        and client.name in coordinator.participants
        and client.name not in (*phase.uploads, *phase.failed)
    )
    return client.alive and client.activity == WAITING and not asked
