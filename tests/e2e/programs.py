"""Starts this project's programs as processes and follows their log lines; asserts nothing about them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .preloaded import Forked

Event = dict[str, Any]

PATIENCE_S = 60.0
"""Longest wait for anything; many times what an idle machine needs."""


class Program:
    """One process; its standard error is read as it comes."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.events: list[Event] = []
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._output = ""
        self._process = Forked(arguments, environment)
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._follow, self._keep)]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    @property
    def stderr(self) -> str:
        """Everything written to standard error so far."""
        return "".join(self._lines)

    @property
    def said(self) -> list[str]:
        """Lines of standard error that are no events: what the program says to a person."""
        return [line.strip() for line in self._lines if not line.startswith("{")]

    @property
    def stdout(self) -> str:
        """Standard output, once the process has ended."""
        return self._output

    def now(self) -> int:
        """The number of events so far: a place to wait from."""
        return len(self.events)

    def wait_for(
        self,
        name: str,
        where: Callable[[Event], bool] = lambda event: True,
        *,
        since: int = 0,
        within_s: float = PATIENCE_S,
    ) -> Event:
        """The first event of that name ("one|another": of any) from place `since` on that satisfies `where`."""

        names = name.split("|")

        def find() -> Event | None:
            found = (event for event in self.events[since:] if event.get("event") in names and where(event))
            return next(found, None)

        deadline = time.monotonic() + within_s
        with self._news:
            while (event := find()) is None:
                left = deadline - time.monotonic()
                if left <= 0 or (self._process.poll() is not None and not self._readers[0].is_alive()):
                    raise AssertionError(f"{self.name} never said {name}; it said\n{self._tail()}")
                self._news.wait(min(left, 0.5))
        return event

    def end(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the process to end; its exit code."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"{self.name} did not end within {within_s} s; it said\n{self._tail()}"
            ) from error
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
        self.end()
        for pipe in (self._process.stdout, self._process.stderr):
            pipe.close()

    def _follow(self) -> None:
        for line in self._process.stderr:
            with self._news:
                self._lines.append(line)
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                self._news.notify_all()

    def _keep(self) -> None:
        self._output = self._process.stdout.read()

    def _tail(self) -> str:
        return "".join(self._lines[-15:])


class Launcher:
    """Starts programs that share one folder and one cache, and ends them all."""

    def __init__(self, folder: Path, cache: Path, prepared: Path) -> None:
        self.runs = folder / "run"
        self.started: list[Program] = []
        self._prepared = prepared
        own = {name: value for name, value in os.environ.items() if not name.startswith("FKD_")}
        self._environment = {**own, "FKD_CACHE": str(cache), "OMP_NUM_THREADS": "1"}

    def start(self, name: str, arguments: list[str], **environment: str) -> Program:
        program = Program(name, arguments, {**self._environment, **environment})
        self.started.append(program)
        return program

    def server(self, *flags: str, port: int = 0, failpoint: str = "") -> Program:
        """A coordinator with a small method, whose run is called "run"; called again, it goes on with that run."""
        arguments = ["fkd_server.cli", "--prepared", str(self._prepared), "--port", str(port)]
        return self.start(
            "server",
            [*arguments, "--runs", str(self.runs), "--run-id", "run", *SMALL, *flags],
            FKD_FAILPOINT=failpoint,
        )

    def relay(self, upstream: str, name: str, *flags: str, port: int = 0, failpoint: str = "") -> Program:
        """A relay of that name, which is also its run's; called again, it goes on with that run."""
        arguments = ["fkd_server.cli", "--upstream", upstream, "--upstream-name", name, "--port", str(port)]
        own = ["--runs", str(self.runs), "--run-id", name, "--min-cohort", "1", *flags]
        return self.start(name, [*arguments, *own], FKD_FAILPOINT=failpoint)

    def client(
        self, data: Path, address: str, *flags: str, name: str | None = None, failpoint: str = ""
    ) -> Program:
        """A client, called like its data if it is given no name."""
        arguments = ["fkd_client.cli", "--data", str(data), "--server", address, "--threads", "1"]
        named = ["--name", name] if name else []
        return self.start(
            name or data.name,
            [*arguments, "--runs", str(self.runs), *named, *flags],
            FKD_FAILPOINT=failpoint,
        )

    def stop(self) -> None:
        for program in self.started:
            program.stop()


SMALL = [
    "--min-cohort", "1", "--hidden", "32,16", "--dropout", "0.1,0.1", "--local-steps", "3", "--batch-size", "16",
    "--teacher-trees", "5", "--residual-trees", "3", "--lambda-grid", "1,100", "--clients-per-round", "1",
    "--refine-steps", "2",
    "--personal", "closed_form,prior,blend", "--heartbeat-s", "0.3", "--heartbeat-limit-s", "3",
]  # fmt: skip
"""A method so small that a round takes a fraction of a second."""


def address_of(server: Program) -> str:
    """Where a coordinator listens, once it does."""
    return str(server.wait_for("serving")["address"])


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
