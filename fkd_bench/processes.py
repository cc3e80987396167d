"""A federation as real processes: one `fkd-server`, one `fkd-client` per shard, gRPC on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fkd_bench.federation import SAY_WAITING_S, Federation, FederationResult, collect_result
from fkd_bench.narrator import Narrator
from fkd_common.errors import DataError, ExitCode, FkdError


@dataclass(frozen=True)
class ClientProgram:
    """The `fkd-client` that is started."""

    checkout: Path | None = None
    """The working tree it is run from; None: the one that this program is of."""
    cache: Path | None = None
    """The clients' cache; None: the federation's."""


def run_processes(
    federation: Federation, narrator: Narrator, program: ClientProgram | None = None
) -> FederationResult:
    """Start `fkd-server` and one `fkd-client` per shard, and wait for all of them.

    Args:
        federation: What to run, its folder an absolute path if the clients are of another checkout.
        narrator: Told what happens.
        program: The `fkd-client` to start.

    Raises:
        FkdError: One of them failed; the message is its own.
    """
    program = program or ClientProgram()
    started = time.monotonic()
    logs = federation.folder / "logs"
    logs.mkdir(exist_ok=True)
    # The run configuration is complete; an FKD_... variable must not change it a second time.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FKD_")}
    environment |= {"FKD_CACHE": str(federation.cache), "OMP_NUM_THREADS": str(federation.settings.threads)}
    configuration = federation.write_config()
    with _children() as children:
        server_command = [
            "fkd-server",
            "--port",
            "0",
            "--config",
            str(configuration),
            *federation.server_flags,
        ]
        narrator.show_command(server_command)
        server = children.start(server_command, environment, stderr=subprocess.PIPE)
        address, run_id = _follow_server(server, logs / "server.jsonl", narrator)
        for name in federation.client_names:
            command = ["fkd-client", *federation.client_flags(name, address)]
            narrator.show_command(command)
            own = {**environment, "FKD_ARTIFACTS": str(federation.artifacts(run_id, name))}
            if program.cache is not None:
                own["FKD_CACHE"] = str(program.cache)
            if program.checkout is not None:
                own["PYTHONPATH"] = str(program.checkout)
            log = (logs / f"{name}.jsonl").open("w")
            children.start(command, own, stderr=log, folder=program.checkout)
        narrator.follow(server)
        children.wait(logs, narrator)
    return collect_result(federation, run_id, time.monotonic() - started)


class _Children:
    """Processes that end with us, whatever happens."""

    def __init__(self) -> None:
        self._started: list[tuple[str, subprocess.Popen[str]]] = []

    def start(
        self, command: list[str], environment: dict[str, str], stderr: Any, folder: Path | None = None
    ) -> subprocess.Popen[str]:
        module = command[0].replace("-", "_") + ".cli"
        arguments = [sys.executable, "-m", module, *command[1:], "--log-format", "json"]
        child = subprocess.Popen(
            arguments, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, text=True, cwd=folder
        )
        if stderr is not subprocess.PIPE:
            stderr.close()
        self._started.append((command[0] if command[0] == "fkd-server" else Path(command[2]).name, child))
        return child

    def wait(self, logs: Path, narrator: Narrator) -> None:
        """Wait for every process to end.

        Raises:
            FkdError: One of them failed.
        """
        said = time.monotonic()
        while working := [name for name, child in self._started if child.poll() is None]:
            if time.monotonic() - said > SAY_WAITING_S:
                said = time.monotonic()
                narrator.say(f"{', '.join(working)} still at the personal model")
            time.sleep(0.2)
        failed: list[str] = []
        for name, child in self._started:
            if child.wait() != ExitCode.OK:
                log = logs / ("server.jsonl" if name == "fkd-server" else f"{name}.jsonl")
                failed.append(f"{name} ended with status {child.returncode}: {_last_line(log)}")
        if failed:
            raise FkdError("; ".join(failed))

    def stop(self) -> None:
        for _, child in self._started:
            if child.poll() is None:
                child.terminate()
        for _, child in self._started:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()


@contextmanager
def _children() -> Iterator[_Children]:
    children = _Children()
    try:
        yield children
    finally:
        children.stop()


def _follow_server(server: subprocess.Popen[str], log: Path, narrator: Narrator) -> tuple[str, str]:
    """Read the coordinator's events until it serves; its address and run id."""
    for event in narrator.events(server, log):
        if event.get("event") == "serving":
            return str(event["address"]), str(event["run"])
    raise DataError(f"the coordinator did not start: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text().strip().splitlines() if log.exists() else []
    said = next(
        (line for line in reversed(lines) if "error: " in line), lines[-1] if lines else "it said nothing"
    )
    return said.split("error: ", 1)[-1]
