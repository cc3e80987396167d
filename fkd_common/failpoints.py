"""Named places where a test ends the process or makes the disk refuse; they do nothing unless a test asks.

``FKD_FAILPOINT=NAME[@PHASE]:ACTION[:N]`` acts when the place NAME is passed for the Nth time (default: the first),
only counting while PHASE is at work if one is given: ``kill``, ``term``, ``hup`` and ``int`` are the signals of those
names; ``full`` raises what a full disk raises. ``FKD_FAILPOINT_TRACE=FILE`` appends NAME@PHASE of every place passed
to a file, so that a test can learn which there are.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

_PLACE, _, _REST = os.environ.get("FKD_FAILPOINT", "").partition(":")
_NAME, _, _PHASE = _PLACE.partition("@")
_ACTION, _, _NTH = _REST.partition(":")
_TRACE = os.environ.get("FKD_FAILPOINT_TRACE")
_ARMED = bool(_NAME or _TRACE)

_SIGNALS = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "hup": signal.SIGHUP,
    "int": signal.SIGINT,
}

_at_work = ""
_passed = 0


def during(phase: str) -> None:
    """Say which phase is at work in this process."""
    global _at_work
    _at_work = phase


def failpoint(name: str) -> None:
    """Pass a named place.

    Raises:
        OSError: A test asked for a full disk here.
    """
    if _ARMED:
        _pass(name)


def _pass(name: str) -> None:
    global _passed
    if _TRACE:
        with Path(_TRACE).open("a") as file:
            file.write(f"{name}@{_at_work}\n")
    if name != _NAME or _PHASE not in ("", _at_work):
        return
    _passed += 1
    if _passed != int(_NTH or 1):
        return
    if _ACTION in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[_ACTION])
    if _ACTION == "full":
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (failpoint {name})")
