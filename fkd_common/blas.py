"""BLAS on one thread for a while; how many threads a client may use for good is ``fkd_client.threads``."""

from __future__ import annotations

import threading
from types import TracebackType

import threadpoolctl


class _OneBlasThread:
    """BLAS on one thread while any block is at work: the limit is the process's, so the last one puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limits: threadpoolctl.threadpool_limits | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limits = threadpoolctl.threadpool_limits(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._limits is not None:
                self._limits.restore_original_limits()


one_blas_thread = _OneBlasThread()
"""``with one_blas_thread:`` for sums whose last bits must not depend on the number of threads; from any thread."""
