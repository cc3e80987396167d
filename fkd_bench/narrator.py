"""Tells, on standard error, what a federation is doing: one line per thing worth knowing."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.markup import escape

from fkd_client.display import Display
from fkd_shards.json_files import Manifest
from fkd_shards.tables import manifest_table

_SAY_EVERY_S = 5.0
_TOLD_AS_THEY_ARE = (
    "run_completed",
    "run_aborted",
    "phase_extended",
    "evaluation_failed",
    "stand_ins_called",
    "fewer_clients",
    "disk_refuses",
)


class _NoDisplay:
    """Shows nothing: in one process the narrator speaks for all clients."""

    def show(self, fraction: float, activity: str, **where: object) -> None:
        """Nothing."""

    def wait(self, reason: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Narrator:
    """Turns the coordinator's events into a story a person can follow."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._started = time.monotonic()
        self._said = self._started
        self._log: Path | None = None

    def say(self, text: str, style: str = "") -> None:
        """One line, with the seconds since the start."""
        self._said = time.monotonic()
        elapsed = self._said - self._started
        self._console.print(
            f"[dim]{elapsed:6.1f} s[/dim]  {escape(text)}", style=style, highlight=False, soft_wrap=True
        )

    def silent_s(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._said

    def show_partition(self, manifest: Manifest) -> None:
        """The class × shard table."""
        self._console.print(manifest_table(manifest))

    def show_command(self, command: list[str]) -> None:
        """A command line as a user would type it."""
        self.say("$ " + " ".join(command), style="bold")

    def events(self, server: subprocess.Popen[str], log: Path) -> Iterator[dict[str, Any]]:
        """The coordinator's log lines until it closes standard error, kept in `log`."""
        assert server.stderr is not None
        self._log = log
        log.write_text("")
        yield from self._read(server)

    def follow(self, server: subprocess.Popen[str]) -> None:
        """Narrate the coordinator's remaining events."""
        for _ in self._read(server):
            pass

    def _read(self, server: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
        assert server.stderr is not None
        assert self._log is not None
        with self._log.open("a") as kept:
            for line in server.stderr:
                kept.write(line)
                kept.flush()
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                self.note(event)
                yield event

    def narrate_logs(self, folder: Path) -> None:
        """Narrate this process's own log lines, kept in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = (folder / "inprocess.jsonl").open("w", buffering=1)

        def narrate(logger: object, method: str, event: Any) -> str:
            self.note(event)
            return json.dumps(event, default=str)

        structlog.configure(
            processors=[structlog.processors.TimeStamper(fmt="iso"), narrate],
            logger_factory=structlog.WriteLoggerFactory(file=kept),
        )

    def quiet_display(self) -> Display:
        """A display for clients of this process."""
        return _NoDisplay()

    def note(self, event: dict[str, Any]) -> None:
        """Say what an event means, if a person would want to know."""
        name = event.get("event")
        if name == "evaluated":
            scores = "   ".join(
                f"{key} {value:.1%}" for key, value in event.items() if isinstance(value, float)
            )
            self.say(f"round {event['round']} done:  {scores}")
        elif name == "phase_closed" and "published" in event:
            name, total = event["published"], event["validation_samples"]
            label = {"student": "the plain student", "anchors": "+ anchors"}.get(name, f"+ moments ({name})")
            share = event["validation_accuracy"][name]
            self.say(f"the vote publishes {label}: {share:.1%} of {total} held-out samples right")
        elif name == "preparing" and self.silent_s() > _SAY_EVERY_S:
            self.say(f"{event['activity']}: {event['percent']} %")
        elif name == "serving":
            self.say(f"coordinator serves run {event['run']} on {event['address']}")
        elif name in ("client_ready", "client_lost", "client_failed", "client_left", "client_returned"):
            details = event.get("detail") or event.get("reason") or ""
            if "ready" in event:
                details = f"({event['ready']} so far)"
            self.say(f"{event['client']} {name.removeprefix('client_')} {details}".rstrip())
        elif name == "waiting" and "client" not in event:
            self.say(f"waiting: {event['on']}")
        elif name in _TOLD_AS_THEY_ARE:
            self.say(f"{name.replace('_', ' ')} {event.get('detail', '')}".rstrip())
