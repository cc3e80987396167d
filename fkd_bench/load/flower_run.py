"""Runs Flower's programs from a virtual environment of its own, on the same tensors, clients and rounds."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fkd_bench.load.figures import Json, Mark, Measured, describe
from fkd_bench.load.programs import Program, Programs, Proxy, programs
from fkd_bench.load.settings import LoadSettings
from fkd_bench.load.usage import ProcessTree
from fkd_bench.narrator import Narrator
from fkd_common.errors import FkdError, UsageError
from fkd_common.tensors import Tensors

_PARTS = Path(__file__).parents[2] / "benchmarks" / "flower"
_HOW = (
    "make one with `benchmarks/flower/install '1.28.*' bench/flower-1.28` and give "
    "--flower-python bench/flower-1.28/bin/python"
)
_HOST = "127.0.0.1"
_READY_S = 120.0
"""For its programs to be there, each."""
_SILENCE_S = 300.0
"""A round that takes longer has failed."""
_LOOK_S = 0.05
_VERSIONS = (
    "import importlib.metadata as m, json, platform; print(json.dumps({'python': platform.python_version(), "
    "**{name: m.version(name) for name in ('flwr', 'grpcio', 'numpy', 'protobuf')}}))"
)


@dataclass(frozen=True)
class Flower:
    """One installation."""

    python: Path
    versions: Json
    over_http: bool
    """One port and HTTP, rather than three and gRPC."""

    @classmethod
    def installed(cls, settings: LoadSettings) -> list[Flower]:
        """The installations that the settings name.

        Raises:
            UsageError: There are none, or one is no Flower; says how to make one.
        """
        if not settings.flower_python:
            raise UsageError(f"--against flower needs Flower in a virtual environment of its own: {_HOW}")
        if not (_PARTS / "nodes.py").is_file():
            raise UsageError(f"--against flower needs {_PARTS}, which only a clone of the repository has")
        return [cls._at(python.absolute()) for python in settings.flower_python]

    @classmethod
    def _at(cls, python: Path) -> Flower:
        try:
            asked = subprocess.run(
                [python, "-c", _VERSIONS], capture_output=True, text=True, timeout=_READY_S
            )
            asked.check_returncode()
            helped = subprocess.run(
                [python.parent / "flower-superlink", "--help"],
                capture_output=True,
                text=True,
                timeout=_READY_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(f"--flower-python {python}: no flwr is installed there; {_HOW}") from error
        return cls(python, json.loads(asked.stdout), "--host" in helped.stdout)

    @property
    def name(self) -> str:
        """With its version."""
        return f"flwr {self.versions['flwr']}"

    def command(self, program: str) -> str:
        """One of its programs."""
        return str(self.python.parent / program)


def measure_flower(settings: LoadSettings, tensors: Tensors, flower: Flower, narrator: Narrator) -> Json:
    """Measure an installation as our own programs are measured.

    Raises:
        FkdError: A program failed or came to no end.
    """
    narrator.say(f"{flower.name}, the same tensors, clients and rounds")
    timed, wired = _run(settings, tensors, flower, narrator, proxied=False), None
    if settings.wire_rounds:
        narrator.say(f"{settings.wire_rounds} more rounds through a proxy that counts bytes")
        short = settings.model_copy(update={"rounds": settings.wire_rounds})
        wired = _run(short, tensors, flower, narrator, proxied=True)
    return {**describe(settings, tensors, timed, wired), "versions": flower.versions}


def _run(
    settings: LoadSettings, tensors: Tensors, flower: Flower, narrator: Narrator, *, proxied: bool
) -> Measured:
    with tempfile.TemporaryDirectory(prefix="fkd-load-") as name, programs(Path(name)) as running:
        return _FlowerRun(settings, flower, Path(name), running, narrator).measured(tensors, proxied=proxied)


class _FlowerRun:
    """One run at work."""

    def __init__(
        self, settings: LoadSettings, flower: Flower, folder: Path, running: Programs, narrator: Narrator
    ) -> None:
        self._settings = settings
        self._flower = flower
        self._folder = folder
        self._running = running
        self._narrator = narrator
        self._events_file = folder / "events.jsonl"

    def measured(self, tensors: Tensors, *, proxied: bool) -> Measured:
        """Start its server, its clients and its app; wait for the last round."""
        arrays: dict[str, Any] = dict(tensors)
        np.savez(self._folder / "model.npz", **arrays)
        shutil.copytree(_PARTS / "app", self._folder / "app")
        started = time.time()
        server, fleet, control = self._start_server()
        proxy = Proxy(self._running, fleet) if proxied else None
        nodes = self._start_nodes(proxy.port if proxy else fleet)
        with ProcessTree(server.process.pid) as hub, ProcessTree(nodes.process.pid) as sites:
            self._submit(control)
            marks: dict[int, Mark] = {}
            for event in self._events():
                passed = sum(proxy.passed()) if proxy else 0
                marks[event["round"]] = Mark(event["at_s"], hub.cpu_s(), sites.cpu_s(), passed)
                if event["round"] == self._settings.rounds:
                    break
        return Measured(started, marks[0], marks[self._settings.rounds], hub.peak_rss_bytes)

    def _start_server(self) -> tuple[Program, int, int]:
        """The server, its port for clients and its port for `flwr run`."""
        command = [self._flower.command("flower-superlink"), "--insecure"]
        if self._flower.over_http:
            fleet = control = _free_port()
            command += ["--host", _HOST, "--port", str(fleet), "--disable-runtime-dependency-installation"]
        else:
            inner, fleet, control = (_free_port() for _ in range(3))
            ports = {"serverappio": inner, "fleet": fleet, "control": control}
            for name, port in ports.items():
                command += [f"--{name}-api-address", f"{_HOST}:{port}"]
        server = self._start("superlink", *command)
        self._wait(lambda: _listens(fleet) and _listens(control), "the superlink to listen")
        return server, fleet, control

    def _start_nodes(self, port: int) -> Program:
        clients = self._settings.clients
        command = (str(self._flower.python), str(_PARTS / "nodes.py"), f"{_HOST}:{port}", str(clients))
        nodes = self._start("nodes", *command)
        self._wait(lambda: nodes.log.read_text().count("registered") == clients, "the nodes to register")
        return nodes

    def _submit(self, port: int) -> None:
        """Start the app, as a person would."""
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "bench"\n\n'
            f'[superlink.bench]\naddress = "{_HOST}:{port}"\ninsecure = true\n'
        )
        told = {
            "num-rounds": self._settings.rounds,
            "num-clients": self._settings.clients,
            "model": str(self._folder / "model.npz"),
            "events": str(self._events_file),
        }
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in told.items())
        command = (self._flower.command("flwr"), "run", str(self._folder / "app"), "bench")
        self._start("flwr run", *command, "--run-config", config)

    def _events(self) -> Iterator[Json]:
        """The app's events as they come."""
        seen = 0
        while True:
            self._wait(lambda: len(self._lines()) > seen, "the end of a round", _SILENCE_S)  # noqa: B023
            for line in self._lines()[seen:]:
                seen, event = seen + 1, json.loads(line)
                if "failed" in event:
                    raise FkdError(f"the app failed on {self._flower.name}: {event['failed']}")
                yield event

    def _lines(self) -> list[str]:
        written = self._events_file.read_text() if self._events_file.exists() else ""
        return written.splitlines() if written.endswith("\n") else written.splitlines()[:-1]

    def _start(self, name: str, *command: str) -> Program:
        return self._running.start(name, command, self._environment())

    def _environment(self) -> dict[str, str]:
        """Nothing is asked of the network beyond this machine."""
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return {
            **kept,
            "FLWR_HOME": str(self._folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{self._flower.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def _wait(self, there: Callable[[], bool], what: str, limit_s: float = _READY_S) -> None:
        """Look until something is there.

        Raises:
            FkdError: A program failed, or the time is over.
        """
        until = time.monotonic() + limit_s
        while not there():
            self._running.check()
            if time.monotonic() > until:
                raise FkdError(f"waited {limit_s:.0f} s for {what} of {self._flower.name}, in vain")
            time.sleep(_LOOK_S)


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0
