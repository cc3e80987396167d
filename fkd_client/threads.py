"""How many threads a process may use; call it before torch or lightgbm are imported for the first time."""

from __future__ import annotations

import os


def limit_threads(threads: int) -> None:
    """Keep torch and OpenMP to this many threads (0: all cores) that sleep while they wait.

    OpenMP threads spin by default, so that several processes on the same cores slow each other down several
    times over. BLAS stays at one thread: its limit is the process's and a sum's last bits depend on it, so that
    clients simulated as threads would disturb each other's results.
    """
    threads = threads or os.cpu_count() or 1
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import threadpoolctl
    import torch

    torch.set_num_threads(threads)
    threadpoolctl.threadpool_limits({"openmp": threads, "blas": 1})
