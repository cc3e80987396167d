from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..client_network.coordinator import write_prepared
from ..e2e.programs import Launcher, Program, address_of
from .bystander import Bystander

RUN = [
    "--min-clients", "1", "--min-cohort", "1", "--rounds", "1", "--hidden", "1024", "--dropout", "0.1",
    "--correction", "", "--personal", "", "--heartbeat-limit-s", "60", "--phase-deadline-s", "600",
    "--update-codec", "fp32", "--model-codec", "fp32",
]  # fmt: skip
"""One client starts the run; its student is 2.2 MB: three chunks."""


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prepared(tmp_path_factory.mktemp("faults") / "prepared")


@pytest.fixture
def launch(prepared: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Starts programs that end with the test."""
    launcher = Launcher(tmp_path, tmp_path / "cache", prepared)
    try:
        yield launcher
    finally:
        launcher.stop()


@pytest.fixture
def start_server(launch: Launcher, prepared: Path) -> Callable[..., Program]:
    """Starts coordinators in processes of their own, each with a run of its own."""

    def start_server(*flags: str, run_id: str = "run") -> Program:
        places = ["--prepared", str(prepared), "--runs", str(launch.runs), "--run-id", run_id, "--port", "0"]
        program = launch.start("server", ["fkd_server.cli", *places, *RUN, *flags])
        address_of(program)
        return program

    return start_server


@pytest.fixture
def server(start_server: Callable[..., Program]) -> Program:
    return start_server()


@pytest.fixture
def join() -> Iterator[Callable[..., Bystander]]:
    """Clients of a coordinator that go with the test."""
    with ExitStack() as stack:

        def join(address: str, name: str = "bystander") -> Bystander:
            bystander = Bystander(address, name)
            stack.callback(bystander.close)
            return bystander

        yield join


@pytest.fixture
def attack() -> Iterator[Callable[[str, int], None]]:
    """Starts attackers, and returns once they are at work; they end with the test."""
    started: list[subprocess.Popen[str]] = []

    def attack(name: str, port: int) -> None:
        arguments = [sys.executable, "-m", "tests.faults.attackers", name, str(port)]
        started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        output = started[-1].stdout
        assert output is not None and output.readline() == "at work\n"

    try:
        yield attack
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
