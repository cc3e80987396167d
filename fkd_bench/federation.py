"""A whole federation on this machine: shards, one coordinator, K clients; as processes or within one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fkd_bench.narrator import Narrator
from fkd_bench.settings import BenchSettings
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, ExitCode, FkdError
from fkd_common.settings import load_settings
from fkd_shards.create import CreateRequest, create
from fkd_shards.json_files import Manifest
from fkd_shards.partitions import Partition
from fkd_shards.shard import MANIFEST_FILE

Json = dict[str, Any]


@dataclass(frozen=True)
class FederationResult:
    """What a federation left: the coordinator's summary, every client's report, and the partition."""

    summary: Json
    reports: list[Json]
    manifest: Manifest
    wall_s: float


@dataclass(frozen=True)
class Federation:
    """Where one federation's files are, and what it runs."""

    settings: BenchSettings
    config: RunConfig
    folder: Path
    manifest: Manifest

    @property
    def shards(self) -> Path:
        """Folder of shards, anchors and test set."""
        return self.folder / "shards"

    @property
    def cache(self) -> Path:
        """Folder of cached embeddings."""
        return self.folder / "cache"

    @property
    def client_names(self) -> list[str]:
        """Clients are named after their shards."""
        return [f"shard{i}" for i in range(self.settings.clients)]

    @property
    def server_flags(self) -> list[str]:
        """What the coordinator is started with, besides its port and the run configuration."""
        return [
            "--extractor", self.settings.extractor,
            "--anchors", str(self.shards / "anchors"),
            "--public", str(self.shards / "public"),
            "--test", str(self.shards / "test"),
            "--runs", str(self.folder / "run"),
        ]  # fmt: skip

    def write_config(self) -> Path:
        """The run configuration as a file for the coordinator."""
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False))
        return path

    def client_flags(self, name: str, address: str) -> list[str]:
        """What a client is started with; artifacts are cached per client, so that every byte is counted."""
        return [
            "--data", str(self.shards / name),
            "--server", address,
            "--threads", str(self.settings.threads),
            "--test", str(self.shards / "test"),
            "--runs", str(self.folder / "run"),
        ]  # fmt: skip


def make_federation(settings: BenchSettings, seed: int, narrator: Narrator) -> Federation:
    """Divide the data, or take over the same division made earlier."""
    data, partition = Path(settings.data).stem.replace(":", "-"), settings.partition.replace(":", "")
    name = f"{data}-{partition}-k{settings.clients}-s{seed}"
    folder = settings.out / name
    request = CreateRequest(
        source=settings.data,
        clients=settings.clients,
        partition=Partition.parse(settings.partition),
        seed=seed,
        out=folder / "shards",
        anchors=settings.anchors,
        public=settings.public,
        limit=settings.limit,
        force=True,
    )
    recipe = folder / "recipe.json"
    wanted = json.dumps({**vars(request), "partition": settings.partition}, default=str, sort_keys=True)
    if recipe.exists() and recipe.read_text() == wanted:
        manifest = Manifest.read(folder / "shards" / MANIFEST_FILE)
    else:
        recipe.unlink(missing_ok=True)
        narrator.say(
            f"dividing {settings.data} among {settings.clients} clients ({settings.partition}, seed {seed})"
        )
        folder.mkdir(parents=True, exist_ok=True)
        manifest = create(request)
        recipe.write_text(wanted)
    narrator.show_partition(manifest)
    return Federation(settings, settings.run_config(seed), folder, manifest)


# -- separate processes -------------------------------------------------------------------------------


def run_processes(federation: Federation, narrator: Narrator) -> FederationResult:
    """Start `fkd-server` and one `fkd-client` per shard, and wait for all of them.

    Raises:
        FkdError: One of them failed; the message is its own.
    """
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
            own = {**environment, "FKD_ARTIFACTS": str(_artifacts(federation, run_id, name))}
            children.start(command, own, stderr=(logs / f"{name}.jsonl").open("w"))
        narrator.follow(server)
        children.wait(logs)
    return _collect(federation, run_id, time.monotonic() - started)


class _Children:
    """Processes that end with us, whatever happens."""

    def __init__(self) -> None:
        self._started: list[tuple[str, subprocess.Popen[str]]] = []

    def start(self, command: list[str], environment: dict[str, str], stderr: Any) -> subprocess.Popen[str]:
        module = command[0].replace("-", "_") + ".cli"
        arguments = [sys.executable, "-m", module, *command[1:], "--log-format", "json"]
        child = subprocess.Popen(
            arguments, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, text=True
        )
        if stderr is not subprocess.PIPE:
            stderr.close()
        self._started.append((command[0] if command[0] == "fkd-server" else Path(command[2]).name, child))
        return child

    def wait(self, logs: Path) -> None:
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


# -- one process --------------------------------------------------------------------------------------


def run_inprocess(federation: Federation, narrator: Narrator) -> FederationResult:
    """The same coordinator and clients as objects of this process; messages are serialised all the same."""
    from fkd_client.threads import limit_threads

    limit_threads(federation.settings.threads)
    from fkd_bench.inprocess import InProcessTransport
    from fkd_client.client import Client, ClientOptions
    from fkd_server.run import assemble
    from fkd_server.settings import ServerSettings

    started = time.monotonic()
    settings = federation.settings
    flags = ["--config", str(federation.write_config()), *federation.server_flags]
    server_settings = load_settings(ServerSettings, "fkd-server", flags, use_environment=False)
    narrator.narrate_logs(federation.folder / "logs")
    run = assemble(server_settings, federation.cache / "embeddings")
    turns = threading.Semaphore(max(1, (os.cpu_count() or 1) // settings.threads))

    def take_part(name: str) -> None:
        options = ClientOptions(
            data=str(federation.shards / name),
            name=name,
            device="cpu",
            threads=settings.threads,
            test=federation.shards / "test",
            max_bad=0.01,
            patience_s=60.0,
            runs=federation.folder / "run",
            cache=federation.cache / "embeddings",
            artifacts=_artifacts(federation, run.run_id, name),
            turn=lambda: turns,
        )
        client = Client(
            options, InProcessTransport(run.service, run.config.heartbeat_s), narrator.quiet_display()
        )
        try:
            client.run()
        finally:
            client.close()

    over = threading.Event()
    ticker = threading.Thread(target=_tick_until, args=(run.service, over), daemon=True)
    ticker.start()
    try:
        with ThreadPoolExecutor(settings.clients) as pool:
            outcomes = [pool.submit(take_part, name) for name in federation.client_names]
            failures = [outcome.exception() for outcome in outcomes]
        for failure in failures:
            if failure is not None:
                raise failure
        run.finish()
    finally:
        over.set()
        if run.evaluator is not None:
            run.evaluator.kill()
    return _collect(federation, run.run_id, time.monotonic() - started)


def _tick_until(service: Any, over: threading.Event) -> None:
    while not over.wait(0.5):
        service.tick()


def _artifacts(federation: Federation, run_id: str, name: str) -> Path:
    return federation.folder / "run" / run_id / "artifacts" / name


def _collect(federation: Federation, run_id: str, wall_s: float) -> FederationResult:
    folder = federation.folder / "run" / run_id
    summary = json.loads((folder / "summary.json").read_text())
    reports = [
        json.loads((folder / f"client-{name}" / "report.json").read_text())
        for name in federation.client_names
    ]
    return FederationResult(summary, reports, federation.manifest, wall_s)
