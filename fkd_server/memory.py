"""Keeps the coordinator's resident memory near what it uses; tunes the C allocator, nothing else."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ROOMY, _TIGHT = 2 << 20, 32 << 10
"""Buffers from these sizes on are mapped one by one, and given back when they are freed. In a roomy heap chunks of
uploads are not: mapping them would cost more page faults than everything else. In a tight one even the pieces of 64 KiB
in which gRPC reads are: a flood of them would stay in the heap as holes."""
_ROOM_BYTES = 160 << 20
"""Resident memory from which on the heap is a tight one."""
_HOLES_BYTES = 8 << 20
"""Growth after which a tight heap is searched for pages that nobody uses."""
_LOOK_S = 0.05
_STATM = Path("/proc/self/statm")


class Heap:
    """The C heap of this process; does nothing where there is no glibc."""

    def __init__(self) -> None:
        """Fix what glibc adapts: it raises its threshold with every larger buffer that is freed."""
        self._is_tight = False
        self._mallopt, self._trim = _of_glibc("mallopt"), _of_glibc("malloc_trim")
        if self._mallopt is None or self._trim is None:
            return
        self._mallopt(_M_ARENA_MAX, 1)
        self._map_from(_ROOMY)

    async def watch(self) -> None:
        """For ever: make the heap tight while it is large, and roomy again."""
        if self._mallopt is None or self._trim is None or not _STATM.exists():
            return
        trimmed = 0
        with _STATM.open("rb", buffering=0) as statm:  # opened once: a look costs microseconds
            while True:
                resident = _resident_bytes(statm)
                tight = resident > _ROOM_BYTES
                if tight != self._is_tight:
                    self._map_from(_TIGHT if tight else _ROOMY)
                    self._is_tight = tight
                if tight and resident - trimmed > _HOLES_BYTES:
                    await asyncio.get_running_loop().run_in_executor(None, self._trim, 0)
                    trimmed = _resident_bytes(statm)
                trimmed = min(trimmed, resident)
                await asyncio.sleep(_LOOK_S)

    def _map_from(self, size: int) -> None:
        assert self._mallopt is not None
        self._mallopt(_M_MMAP_THRESHOLD, size)
        self._mallopt(_M_TRIM_THRESHOLD, 2 * size)


def trim_heap() -> None:
    """Give free pages of all the C heap's arenas back: those of threads that have ended stay as they were left."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function


def _resident_bytes(statm: BinaryIO) -> int:
    statm.seek(0)
    return int(statm.read().split()[1]) * resource.getpagesize()
