"""How many threads a process may use: for good, and BLAS for a while."""

from __future__ import annotations

import os
import threading
from types import TracebackType

import threadpoolctl


def limit_threads(threads: int) -> None:
    """Keep torch and OpenMP to this many threads (0: all cores) that sleep while they wait.

    Call it before torch or lightgbm are imported for the first time.

    OpenMP threads spin by default, so that several processes on the same cores slow each other down several
    times over. BLAS stays at one thread: its limit is the process's and a sum's last bits depend on it, so that
    clients simulated as threads would disturb each other's results.
    """
    threads = threads or os.cpu_count() or 1
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(threads)
    threadpoolctl.threadpool_limits({"openmp": threads, "blas": 1})


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
