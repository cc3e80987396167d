"""What a client shows while it works: a moving bar on a terminal, an occasional line and a status otherwise."""

from __future__ import annotations

import sys
import time
from typing import Protocol

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fkd_common.printable import printable
from fkd_common.service_manager import ServiceManager

SAY_EVERY_S = 10.0


class Display(Protocol):
    """Shows what a client is doing."""

    def show(self, fraction: float, activity: str, **where: object) -> None:
        """Progress of the current activity, 0...1, and for which `round` and `phase` it is, if for any."""

    def wait(self, reason: str) -> None:
        """Nothing to do, and why."""

    def close(self) -> None:
        """Nothing more will be shown."""


class TerminalDisplay:
    """One line that is redrawn."""

    def __init__(self, name: str) -> None:
        # No markup: what a run waits for contains other clients' words.
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._name = name
        self._task = self._progress.add_task(name, total=1.0)
        self._activity = self._waiting = ""
        self._progress.start()

    def show(self, fraction: float, activity: str, **where: object) -> None:
        """Redraw the bar; a new activity starts its clock anew."""
        if activity != self._activity:
            self._activity, self._waiting = activity, ""
            self._progress.reset(self._task, total=1.0, description=f"{self._name}: {activity}")
        self._progress.update(self._task, completed=fraction)

    def wait(self, reason: str) -> None:
        """Say what the run waits for."""
        self._activity = ""
        waiting = printable(f"{self._name}: waiting ({reason})")
        if waiting == self._waiting:
            return
        self._waiting = waiting
        self._progress.remove_task(self._task)  # there is no other way to a bar without a share
        self._task = self._progress.add_task(waiting, total=None)

    def close(self) -> None:
        """Remove the line."""
        self._progress.stop()


class LogDisplay:
    """A log line when an activity begins, and every ten seconds while it lasts; the service manager is told, too.

    A client that waits for a coordinator has seen that its settings, its data and its folders can be used: it counts
    as started, whether a coordinator is there or not.
    """

    def __init__(self, name: str, manager: ServiceManager) -> None:
        self._manager = manager
        self._log = structlog.get_logger().bind(client=name)
        self._said = ("", 0.0)

    def show(self, fraction: float, activity: str, **where: object) -> None:
        """Log, but not often."""
        now = time.monotonic()
        if activity != self._said[0] or now - self._said[1] >= SAY_EVERY_S:
            self._said = (activity, now)
            self._log.info("working", **where, activity=activity, percent=round(100 * fraction))
        self._manager.status(f"{activity}, {fraction:.0%}")

    def wait(self, reason: str) -> None:
        """Log what the run waits for, but not often."""
        now = time.monotonic()
        if self._said[0] != "waiting" or now - self._said[1] >= SAY_EVERY_S:
            self._said = ("waiting", now)
            self._log.info("waiting", on=reason)
        self._manager.status(f"waiting ({reason})")
        self._manager.ready()

    def close(self) -> None:
        """Say that nothing more will come."""
        self._manager.stopping()


def display_for(name: str, manager: ServiceManager) -> Display:
    """A display that suits standard error."""
    return TerminalDisplay(name) if sys.stderr.isatty() else LogDisplay(name, manager)
