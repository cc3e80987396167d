"""Runs this project's programs: one real `fkd-server`, processes of no-op clients, gRPC on loopback."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
import yaml

from fkd_bench.load import method
from fkd_bench.load.clients import SEEN, Orders, Seen, client_name
from fkd_bench.load.figures import Json, Mark, Measured, describe
from fkd_bench.load.limits import limits
from fkd_bench.load.model import EMBEDDING_DIM, NUM_CLASSES
from fkd_bench.load.programs import Program, Programs, Proxy, programs
from fkd_bench.load.settings import LoadSettings, Victim
from fkd_bench.load.usage import ProcessTree
from fkd_bench.narrator import Narrator
from fkd_common.access.roles import Role
from fkd_common.addresses import split_address
from fkd_common.choices import UNCODED, MissedQuorum
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.tensors import Tensors, encode
from fkd_server.access.certificates import CertificateAuthority
from fkd_server.prepare import ANCHORS_FILE, CLASSES_KEY, EXTRACTOR_FILE

_NUM_ANCHORS = 500
"""As many as `fkd-bench run` sets aside; FKD-RTM's checks compute a student's answers to them."""
_DEADLINE_S = 120.0
"""Of a round: whoever hangs ends the run."""
_SILENCE_S = _DEADLINE_S + 30.0
"""A coordinator that says nothing for so long hangs."""
_LOOK_S = 0.2
"""Between two looks whether all programs are still there."""
_END_S = 60.0
"""For all programs to end once the last round is over."""
_SAY_EVERY_S = 2.0
_KILL_IN = 2
"""The round in which a program is killed: a checkpoint is there, and all clients have worked once."""
_LIBRARIES = ("fkd", "grpcio", "numpy", "protobuf")


def measure_own(settings: LoadSettings, tensors: Tensors, narrator: Narrator) -> Json:
    """Measure a coordinator: once as it is and, if asked for, once more behind a proxy that counts bytes.

    Raises:
        FkdError: A program failed; the message is its own.
    """
    timed, wired = _run(settings, tensors, narrator, proxied=False), None
    if settings.wire_rounds:
        narrator.say(f"{settings.wire_rounds} more rounds through a proxy that counts bytes")
        short = settings.model_copy(update={"rounds": settings.wire_rounds})
        wired = _run(short, tensors, narrator, proxied=True)
    figures = describe(settings, tensors, timed, wired)
    narrator.say("what the machine needs for these bytes alone")
    return {
        **figures,
        "limits": limits(tensors, settings.clients, figures["wall_s_per_round"]),
        "method": settings.method,
        "processes": settings.processes,
        "tls": settings.tls,
        "versions": {"python": python_version(), **{name: version(name) for name in _LIBRARIES}},
    }


def measure_idle(settings: LoadSettings, tensors: Tensors, narrator: Narrator) -> Json:
    """Measure a coordinator whose clients are all there and wait for one that never comes.

    Raises:
        FkdError: A program failed; the message is its own.
    """
    with _own_run(settings, narrator) as run:
        return run.idle(tensors)


def measure_kill(settings: LoadSettings, tensors: Tensors, narrator: Narrator) -> Json:
    """Measure how a run goes on whose coordinator, or one of whose clients, is killed in round 2.

    Raises:
        FkdError: A program failed; the message is its own.
    """
    # A process for every client, so that one can be killed.
    settings = settings.model_copy(update={"processes": settings.clients})
    with _own_run(settings, narrator) as run:
        return (
            run.client_killed(tensors) if settings.kill is Victim.CLIENT else run.coordinator_killed(tensors)
        )


def _run(settings: LoadSettings, tensors: Tensors, narrator: Narrator, *, proxied: bool) -> Measured:
    with _own_run(settings, narrator, proxied=proxied) as run:
        return run.measured(tensors)


@contextmanager
def _own_run(settings: LoadSettings, narrator: Narrator, *, proxied: bool = False) -> Iterator[_OwnRun]:
    with tempfile.TemporaryDirectory(prefix="fkd-load-") as name, programs(Path(name)) as running:
        yield _OwnRun(settings, Path(name), running, narrator, proxied)


class _OwnRun:
    """One run at work."""

    def __init__(
        self, settings: LoadSettings, folder: Path, running: Programs, narrator: Narrator, proxied: bool
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._running = running
        self._narrator = narrator
        self._proxied = proxied
        self._proxy: Proxy | None = None
        self._started_s = 0.0
        self._command: list[str] = []

    def measured(self, tensors: Tensors) -> Measured:
        """Start everything, follow the coordinator's events, and wait until all programs have ended."""
        with self._started(tensors) as (server, clients, hub, sites):
            first = last = None
            for event in self._events(server, clients):
                at_s = _at_s(event)
                if event["event"] == "round_opened" and first is None:
                    first = self._mark(at_s, hub, sites)
                elif event["event"] == "run_completed":
                    last = self._mark(at_s, hub, sites)
                    break
            assert first is not None
            assert last is not None
            seen = self._told(server, clients)
        return Measured(self._started_s, first, last, hub.peak_rss_bytes, seen)

    def idle(self, tensors: Tensors) -> Json:
        """Start everything, wait until every client polls, and see what that costs for a while."""
        settings, ready = self._settings, 0
        with self._started(tensors) as (server, clients, hub, sites):
            for event in self._events(server, clients):
                ready += event["event"] == "client_ready"
                if ready == settings.clients:
                    break
            self._narrator.say(f"{ready} clients poll; looking on for {settings.idle_s:g} s")
            before = self._mark(time.time(), hub, sites)
            while (left := before.at_s + settings.idle_s - time.time()) > 0:
                time.sleep(min(left, _LOOK_S))
                self._running.check()
            after = self._mark(time.time(), hub, sites)
        seconds = after.at_s - before.at_s
        return {
            "server_cpu_share": round((after.server_cpu_s - before.server_cpu_s) / seconds, 4),
            "client_cpu_share": round((after.client_cpu_s - before.client_cpu_s) / seconds, 4),
            "server_peak_rss_mb": round(hub.peak_rss_bytes / 1e6, 1),
            "start_to_all_ready_s": round(before.at_s - self._started_s, 2),
            "idle_s": round(seconds, 1),
            "clients": settings.clients,
        }

    def client_killed(self, tensors: Tensors) -> Json:
        """Seconds from the end of a client to when it is missed, and to the end of the round that misses it."""
        killed_s = noticed_s = 0.0
        with self._started(tensors) as (server, clients, _, _):
            for event in self._events(server, clients):
                if event["event"] == "round_opened" and event["round"] == _KILL_IN:
                    self._running.kill(clients[0])
                    killed_s = time.time()
                    self._narrator.say(
                        "a client was killed; waiting until it is missed and its round is over"
                    )
                elif event["event"] == "client_lost" and killed_s:
                    noticed_s = _at_s(event)
                elif event["event"] == "round_closed" and noticed_s:
                    break
        return self._after_kill(
            {"noticed_s": round(noticed_s - killed_s, 2), "round_over_s": round(_at_s(event) - killed_s, 2)}
        )

    def coordinator_killed(self, tensors: Tensors) -> Json:
        """Seconds from a coordinator's end to when the next one serves the same round, and to the end of that round."""
        with self._started(tensors) as (server, clients, _, _):
            for event in self._events(server, clients):
                if event["event"] == "serving":
                    port = split_address(event["address"])[1]
                if event["event"] == "round_opened" and event["round"] == _KILL_IN:
                    break
            self._running.kill(server)
            killed_s = time.time()
            self._narrator.say("the coordinator was killed and starts again; waiting until its round is over")
            serving_s = 0.0
            command = list(self._command)
            command[command.index("--port") + 1] = str(port)
            again = self._coordinator("coordinator started again", command)
            for event in self._events(again, ()):
                if event["event"] == "serving":
                    serving_s = _at_s(event)
                if event["event"] == "round_closed":
                    break
        if event["round"] != _KILL_IN:
            raise FkdError(
                f"the coordinator that was started again closed round {event['round']}, not {_KILL_IN}"
            )
        return self._after_kill(
            {"serving_s": round(serving_s - killed_s, 2), "round_over_s": round(_at_s(event) - killed_s, 2)}
        )

    def _after_kill(self, seconds: Json) -> Json:
        config, settings = _run_config(self._settings), self._settings
        return {
            "killed": settings.kill,
            **seconds,
            "heartbeat_s": config.heartbeat_s,
            "heartbeat_limit_s": config.heartbeat_limit_s,
            "clients": settings.clients,
            "model": settings.model,
        }

    @contextmanager
    def _started(self, tensors: Tensors) -> Iterator[tuple[Program, list[Program], ProcessTree, ProcessTree]]:
        """The coordinator, the processes of clients, and what both use."""
        self._command = _server_command(self._settings, self._folder, tensors)
        self._started_s = time.time()
        server = self._coordinator("coordinator", self._command)
        clients = [
            self._running.module(f"process of clients {share[0]} to {share[-1]}", "fkd_bench.load.clients")
            for share in self._shares()
        ]
        pids = [program.process.pid for program in clients]
        with ProcessTree(server.process.pid) as hub, ProcessTree(*pids) as sites:
            yield server, clients, hub, sites

    def _coordinator(self, name: str, command: Sequence[str]) -> Program:
        return self._running.start(name, command, _environment(self._folder), stderr=subprocess.PIPE)

    def _shares(self) -> list[list[int]]:
        """Numbers of the clients of each process."""
        shares = np.array_split(np.arange(self._settings.clients), self._settings.processes)
        return [share.tolist() for share in shares if len(share)]

    def _send_clients(self, clients: Sequence[Program], address: str) -> None:
        for program, share in zip(clients, self._shares(), strict=True):
            orders = Orders(self._address(address), share, self._tls_folder())
            program.tell(json.dumps(asdict(orders)))

    def _address(self, address: str) -> str:
        """Where clients are to connect."""
        if not self._proxied:
            return address
        host, port = split_address(address)
        self._proxy = self._proxy or Proxy(self._running, port)
        return f"{host}:{self._proxy.port}"

    def _tls_folder(self) -> str | None:
        return str(self._folder / "sites") if self._settings.tls else None

    def _mark(self, at_s: float, hub: ProcessTree, sites: ProcessTree) -> Mark:
        return Mark(at_s, hub.cpu_s(), sites.cpu_s(), sum(self._proxy.passed()) if self._proxy else 0)

    def _events(self, server: Program, clients: Sequence[Program]) -> Iterator[Json]:
        """What the coordinator says, as it says it; once it serves, clients are sent to it.

        Raises:
            FkdError: A program failed, or the coordinator says nothing any more.
        """
        heard: queue.SimpleQueue[Json] = queue.SimpleQueue()
        threading.Thread(target=_read_events, args=(server, heard), daemon=True).start()
        spoke = said = time.monotonic()
        while True:
            try:
                event = heard.get(timeout=_LOOK_S)
            except queue.Empty:
                self._running.check()
                if server.process.poll() is not None:
                    raise FkdError(server.failure()) from None
                if time.monotonic() - spoke > _SILENCE_S:
                    raise FkdError(f"the coordinator has said nothing for {_SILENCE_S:.0f} s") from None
                continue
            spoke = time.monotonic()
            if event["event"] == "serving" and clients:
                self._send_clients(clients, event["address"])
            if event["event"] == "round_opened" and (spoke - said > _SAY_EVERY_S or event["round"] == 1):
                said = spoke
                self._narrator.say(f"round {event['round']} of {event['of']}, {len(event['cohort'])} clients")
            yield event

    def _told(self, server: Program, clients: Sequence[Program]) -> Seen:
        """What all clients saw, once every program has ended well."""
        parts: list[Seen] = []
        try:
            for program in clients:
                output, _ = program.process.communicate(timeout=_END_S)
                program.check()
                parts.append(SEEN.validate_json(output))
            server.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise FkdError(f"some programs have not ended {_END_S:.0f} s after the last round") from None
        server.check()
        methods = {name for part in parts for name in part.rpc_ms}
        return Seen(
            sum(part.payload_bytes for part in parts),
            sum(part.message_bytes for part in parts),
            {name: [ms for part in parts for ms in part.rpc_ms.get(name, ())] for name in methods},
        )


def _at_s(event: Json) -> float:
    """When the coordinator said it, by the clock."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def _read_events(server: Program, heard: queue.SimpleQueue[Json]) -> None:
    """Pass on a coordinator's log lines that are events, and keep all."""
    assert server.process.stderr is not None
    with server.log.open("a") as kept:
        for line in server.process.stderr:
            kept.write(line)
            kept.flush()
            try:
                event: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and {"event", "timestamp"} <= event.keys():
                heard.put(event)


def _environment(folder: Path) -> dict[str, str]:
    """The coordinator's: what is set for other runs must not change this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FKD_")}
    path = os.pathsep.join(filter(None, (str(folder / "packages"), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "FKD_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def _server_command(settings: LoadSettings, folder: Path, tensors: Tensors) -> list[str]:
    """Write what a coordinator is started with; returns its command line."""
    method.install(folder / "packages")
    _prepare(folder / "prepared", tensors)
    (folder / "run.yaml").write_text(yaml.safe_dump(_run_config(settings).model_dump(mode="json")))
    flags = {
        "port": "0",
        "config": str(folder / "run.yaml"),
        "prepared": str(folder / "prepared"),
        "runs": str(folder / "run"),
        "log-format": "json",
    }
    if settings.tls:
        authority = CertificateAuthority.create(folder / "tls", ["localhost", "127.0.0.1"])
        for number in range(settings.clients):
            name = client_name(number)
            authority.issue_folder(Role.CLIENT, name, folder / "sites" / name)
        flags |= {"tls": str(folder / "tls"), "host": "127.0.0.1", "join-port": "0"}
    return [
        sys.executable,
        "-m",
        "fkd_server.cli",
        *(part for name, value in flags.items() for part in (f"--{name}", value)),
    ]


def _run_config(settings: LoadSettings) -> RunConfig:
    lost = int(settings.kill is Victim.CLIENT)
    return RunConfig(
        method=settings.method,
        rounds=max(settings.rounds, _KILL_IN + 1) if settings.kill else settings.rounds,
        clients_per_round=1.0,
        min_clients=settings.clients + (settings.idle_s > 0),  # one that never comes
        min_cohort=settings.clients - lost,
        quorum=0.5 if lost else 1.0,
        phase_deadline_s=_DEADLINE_S,
        on_missed_quorum=MissedQuorum.ABORT,
        correction=(),
        personal=(),
        **UNCODED,
    )


def _prepare(folder: Path, tensors: Tensors) -> None:
    """A folder as `fkd-server prepare` makes it: the model in the extractor's place, and random anchors."""
    folder.mkdir()
    embeddings = np.random.default_rng(0).standard_normal((_NUM_ANCHORS, EMBEDDING_DIM), dtype=np.float32)
    images = np.zeros((_NUM_ANCHORS, 8, 8, 1), np.uint8)
    classes = json.dumps([f"class{number}" for number in range(NUM_CLASSES)])
    (folder / EXTRACTOR_FILE).write_bytes(encode(tensors))
    anchors = encode({"images": images, "embeddings": embeddings}, {CLASSES_KEY: classes})
    (folder / ANCHORS_FILE).write_bytes(anchors)
