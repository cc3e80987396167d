"""Signals that end a process, as an exception: what is half done is put in order before it goes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Those that Python leaves to the system, which ends the process where it stands; Ctrl-C is an exception anyway."""


class StopSignal(KeyboardInterrupt):
    """Somebody ends this process, who may not sit at its terminal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number
        """As shells say that a signal ended a process."""


@contextmanager
def stop_signals_raised() -> Iterator[None]:
    """While the block is at work, SIGTERM and SIGHUP raise :class:`StopSignal` in it; a second one ends at once.

    What is ignored (as `nohup` does with SIGHUP), or handled by others, stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may decide over signals
        yield
        return
    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise StopSignal(number)
