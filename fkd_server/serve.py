"""Serves one run from start to end: opens ports, lets time pass, says what it waits for, stops cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping

import structlog

from fkd_common.errors import ExitCode, FkdError, UsageError
from fkd_common.places import cache_folder
from fkd_common.service_manager import ServiceManager
from fkd_common.tracing import start_tracing, stop_tracing
from fkd_server.access.certificates import CertificateAuthority
from fkd_server.access.enrolment import EnrolmentServer
from fkd_server.access.tls import ServerTls
from fkd_server.grpc_server import GrpcServer
from fkd_server.memory import return_large_buffers
from fkd_server.method.federated_method import Json
from fkd_server.open_files import allow_many_connections
from fkd_server.prepare import Preparation
from fkd_server.result_tables import print_summary
from fkd_server.run import Run, assemble
from fkd_server.run_state import RunState
from fkd_server.settings import ServerSettings
from fkd_server.traces import RoundTraces
from fkd_server.web.start import SecondPort

TICK_S = 0.5
SAY_WAITING_S = 10.0
STOP_GRACE_S = 5.0
SAY_STATUS_S = 2.0
"""What is waited for counts seconds: the service manager need not be told each."""
ASLEEP_S = 2.0
"""A pause between two ticks that is no scheduling but a process that was stopped."""


def serve(settings: ServerSettings) -> int:
    """Serve one run until it is over and every client knows, or until told to stop; returns the exit code.

    Raises:
        FkdError: The run cannot begin or go on.
    """
    host = settings.listen_host()
    return_large_buffers()
    allow_many_connections()
    return asyncio.run(_serve(settings, host))


async def _serve(settings: ServerSettings, host: str) -> int:
    """Serve one run until it is over and every client knows."""
    log = structlog.get_logger()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    manager = ServiceManager.from_environment()
    web = SecondPort()
    server = GrpcServer(settings.heartbeat_s, answered=web.meters.answered)
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _on_signal, stop, name, manager, server)
    tls = ServerTls(settings.tls) if settings.tls else None
    port = server.listen(host, settings.port, tls)
    enrolment = _enrolment(settings, tls, host)
    preparation = Preparation()
    await web.start(settings, tls, server.unready)
    await server.start_preparing(lambda: preparation.activity)
    living = asyncio.create_task(say_alive(server, manager))
    if enrolment is not None:
        await enrolment.start()
    run = None
    try:
        run = await _assemble_unless(stop, settings, preparation, manager)
        if run is None:
            return ExitCode.OK
        await server.start(run.service, run.admin)
        web.show(run)
        if (tracing := start_tracing("fkd-server")) is not None:
            run.recorder.watch(RoundTraces(tracing, run.run_id).on_event)
        log.info(
            "serving",
            address=f"{host}:{port}",
            tls=str(settings.tls) if tls else "off",
            join_port=enrolment.port if enrolment else None,
            http=web.address or None,
            run=run.run_id,
            folder=str(run.folder.path),
            clients_needed=run.config.min_clients,
            config=run.config.sha256()[:12],
        )
        manager.ready()
        await _drive(run, server, stop, manager)
        if not run.coordinator.over or not await _scored(run, server, stop, manager):
            log.info("kept", folder=str(run.folder.path), detail="the same command goes on with this run")
            return ExitCode.OK
        if not run.folder.finished:
            summary = await loop.run_in_executor(None, run.finish)
            _say_saved(run, summary)
        manager.status(f"run {run.run_id} is over: {run.coordinator.detail or run.coordinator.state.value}")
        await _dismiss(run, server, stop, settings)
    finally:
        manager.stopping()
        living.cancel()
        if enrolment is not None:
            await enrolment.stop()
        await server.stop(STOP_GRACE_S if stop.is_set() and run else 1.0)
        await web.stop()
        await loop.run_in_executor(None, stop_tracing)
        if run is not None:
            run.close()
    if run.coordinator.state is RunState.COMPLETED:
        return ExitCode.OK
    print(f"fkd-server: error: run aborted: {run.coordinator.detail}", file=sys.stderr)
    return ExitCode.ABORTED


def _enrolment(settings: ServerSettings, tls: ServerTls | None, host: str) -> EnrolmentServer | None:
    """The port for new clients, bound; None where certificates come from elsewhere, or without TLS."""
    if tls is None or settings.join_port == 0 or not CertificateAuthority.exists(tls.folder):
        if settings.join_port:
            raise UsageError(
                f"--join-port {settings.join_port} needs --tls with the authority's key in the folder "
                "(`fkd-server certs init`)"
            )
        return None
    following = settings.port + 1 if settings.port else 0  # where any port is good, any port is
    enrolment = EnrolmentServer(tls)
    enrolment.listen(host, settings.join_port or following)
    return enrolment


async def _assemble_unless(
    stop: asyncio.Event, settings: ServerSettings, preparation: Preparation, manager: ServiceManager
) -> Run | None:
    """The run, or None if the program was asked to stop while it was being prepared.

    A preparation that says how far it is has read what it was given: from then on the program counts as started,
    because its port answers, and it may take many minutes more.
    """
    loop = asyncio.get_running_loop()
    assembling = loop.run_in_executor(None, assemble, settings, cache_folder() / "embeddings", preparation)
    while not assembling.done() and not stop.is_set():
        await asyncio.wait([assembling], timeout=TICK_S)
        if preparation.activity:
            manager.status(f"preparing the run: {preparation.activity}")
            manager.ready()
    if not stop.is_set():
        return await assembling
    preparation.cancel()
    with contextlib.suppress(FkdError):
        run = await assembling
        run.close()
    return None


async def say_alive(server: GrpcServer, manager: ServiceManager) -> None:
    """Tell a service manager that asks for it that the event loop and the coordinator's worker get on."""
    while manager.watchdog_s:
        await server.worker_turn()
        manager.alive()
        await asyncio.sleep(manager.watchdog_s / 2)


async def _drive(run: Run, server: GrpcServer, stop: asyncio.Event, manager: ServiceManager) -> None:
    """Let time pass for the run until it is over, saying every so often what it waits for."""
    waiting, ticked = _Waiting(run.run_id, manager), time.monotonic()
    while not run.coordinator.over and not stop.is_set():
        if (asleep := time.monotonic() - ticked - TICK_S) > ASLEEP_S:
            run.service.was_asleep(asleep)
        ticked = time.monotonic()
        await server.tick()
        waiting.say(run.service.waiting_for)
        await _sleep_unless(stop, TICK_S)


async def _scored(run: Run, server: GrpcServer, stop: asyncio.Event, manager: ServiceManager) -> bool:
    """Wait for the last evaluations; False if the program was asked to stop before they were there."""
    waiting = _Waiting(run.run_id, manager)
    while run.evaluator is not None and run.evaluator.waiting_for():
        if stop.is_set():
            return False
        await server.tick()
        waiting.say(run.evaluator.waiting_for)
        await _sleep_unless(stop, TICK_S)
    return True


class _Waiting:
    """Says every so often what is being waited for: in the log, and oftener to the service manager."""

    def __init__(self, run: str, manager: ServiceManager) -> None:
        self._run = run
        self._manager = manager
        self._said = time.monotonic()
        self._told = 0.0

    def say(self, on: Callable[[], str]) -> None:
        """Say it, if it is time."""
        now = time.monotonic()
        if now - self._told >= SAY_STATUS_S:
            self._told = now
            self._manager.status(f"run {self._run}: {on()}")
        if now - self._said >= SAY_WAITING_S:
            self._said = now
            structlog.get_logger().info("waiting", on=on())


def _say_saved(run: Run, summary: Mapping[str, Json]) -> None:
    """What the run left: one line for the log, tables for a person."""
    model = run.recorder.model
    found: dict[str, Json] = {"model": "none: no vote had been held"}
    if model is not None:
        accuracy = run.recorder.accuracies.get(model.round, {}).get("published")
        found = {"model": model.sha256, "round": model.round, "published": model.published}
        found["accuracy"] = round(accuracy, 4) if isinstance(accuracy, float) else None
    structlog.get_logger().info("saved", folder=str(run.folder.path), **found)
    with contextlib.suppress(OSError):  # nobody reads
        print_summary(summary, model)


async def _dismiss(run: Run, server: GrpcServer, stop: asyncio.Event, settings: ServerSettings) -> None:
    """Keep answering until every client, and every operator that watches, has learnt that the run is over."""
    limit = STOP_GRACE_S if stop.is_set() else settings.linger_s
    until = time.monotonic() + limit
    while time.monotonic() < until and not (run.service.everyone_left() and not run.admin.somebody_watches()):
        await asyncio.sleep(0.1)
        await server.tick()
    if settings.serve and not stop.is_set():
        structlog.get_logger().info("staying", until="SIGTERM or Ctrl-C")
        await stop.wait()


async def _sleep_unless(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


def _on_signal(
    stop: asyncio.Event, name: signal.Signals, manager: ServiceManager, server: GrpcServer
) -> None:
    if stop.is_set():
        sys.exit(ExitCode.FAILURE)  # asked twice: at once
    structlog.get_logger().info("stopping", signal=name.name, grace_s=STOP_GRACE_S)
    manager.stopping()
    server.health.drain()  # who asks whether this run is served looks elsewhere, before the last answers are given
    stop.set()
