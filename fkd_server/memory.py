"""Keeps the coordinator's resident memory near what it uses; tunes the C allocator, nothing else."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 32 * 1024
"""Below the 64 KiB pieces in which gRPC reads: a flood of them would stay in the heap as holes."""


def return_large_buffers() -> None:
    """Give buffers of 32 KiB and more back to the system when they are freed.

    glibc raises its threshold each time a larger buffer is freed, so that after a few rounds of megabyte-sized
    chunks and uploads everything would stay in the heap. Does nothing where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for parameter, value in (
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_TRIM_THRESHOLD, _LARGE_BYTES),
        (_M_ARENA_MAX, 2),
    ):
        mallopt(parameter, value)
