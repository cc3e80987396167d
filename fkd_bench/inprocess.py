"""A transport without sockets: the same bytes, handed to the service of the same process."""

from __future__ import annotations

import threading
import time

from fkd_common.errors import UnreachableError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.rpc import Method
from fkd_server.service import CoordinatorService


class InProcessTransport:
    """Calls a :class:`CoordinatorService` directly; a long poll waits for a change."""

    def __init__(self, service: CoordinatorService, heartbeat_s: float) -> None:
        self._service = service
        self._heartbeat_s = heartbeat_s
        self._changed = threading.Event()
        service.on_change(self._changed.set)

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        """Answer one call; see :class:`fkd_common.rpc.Transport`."""
        wait_s = pb.NextTaskRequest.FromString(request).wait_s if method.name == "NextTask" else 0.0
        until = time.monotonic() + wait_s
        while True:
            self._changed.clear()
            left = until - time.monotonic()
            try:
                answer = self._service.handle(method, request, hold=left > 0)
            except UnreachableError:
                self._service.trouble.tell()  # a coordinator of this process is not started again
                raise
            if answer is not None:
                return answer
            self._changed.wait(min(left, self._heartbeat_s))

    def close(self) -> None:
        """Nothing to release."""
