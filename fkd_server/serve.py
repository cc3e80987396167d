"""Serves one run from start to end: lets time pass, says what it waits for, stops cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping

import structlog

from fkd_common.errors import ExitCode, FkdError
from fkd_common.places import cache_folder
from fkd_common.service_manager import ServiceManager
from fkd_common.tracing import start_tracing, stop_tracing
from fkd_server.grpc_server import GrpcServer
from fkd_server.memory import Heap
from fkd_server.method.federated_method import Json
from fkd_server.open_files import allow_many_connections
from fkd_server.ports import Ports
from fkd_server.prepare import Preparation
from fkd_server.result_tables import print_summary
from fkd_server.run import Run, assemble
from fkd_server.run_state import RunState
from fkd_server.settings import ServerSettings
from fkd_server.traces import RoundTraces

TICK_S = 0.5
SAY_WAITING_S = 10.0
SAY_AGAIN_S = 60.0
"""What has not changed is said again this often."""
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
    heap = Heap()
    allow_many_connections()
    return asyncio.run(_serve(settings, heap))


async def _serve(settings: ServerSettings, heap: Heap) -> int:
    """The ports and the preparation around one run."""
    ports, preparation, manager = Ports(settings), Preparation(), ServiceManager.from_environment()
    stop = _stop_on_signals(ports.main, manager)
    run = None
    await ports.open(lambda: preparation.activity)
    living = asyncio.create_task(say_alive(ports.main, manager))
    watching = asyncio.create_task(heap.watch())
    try:
        run = await _assemble_unless(stop, settings, preparation, manager)
        if run is None:
            return ExitCode.OK
        if (tracing := start_tracing("fkd-server")) is not None:
            run.recorder.watch(RoundTraces(tracing, run.run_id).on_event)
        where = await ports.serve(run)
        structlog.get_logger().info(
            "serving",
            **where,
            run=run.run_id,
            folder=str(run.folder.path),
            clients_needed=run.coordinator.config.min_clients,
            config=run.config.sha256()[:12],
        )
        run.recorder.chronicle.events.add("serving", where)
        if run.link is not None:
            run.link.start()
        manager.ready()
        return await _Serving(settings, run, ports.main, manager, stop).to_the_end()
    finally:
        manager.stopping()
        living.cancel()
        watching.cancel()
        await ports.close(STOP_GRACE_S if stop.is_set() and run else 1.0)
        await asyncio.get_running_loop().run_in_executor(None, stop_tracing)
        if run is not None:
            run.close()


def _stop_on_signals(server: GrpcServer, manager: ServiceManager) -> asyncio.Event:
    """Set once the program is asked to stop; asked twice, it goes at once."""
    stop = asyncio.Event()

    def on_signal(name: signal.Signals) -> None:
        if stop.is_set():
            sys.exit(ExitCode.FAILURE)
        structlog.get_logger().info("stopping", signal=name.name, grace_s=STOP_GRACE_S)
        manager.stopping()
        server.health.drain()  # who asks whether this run is served looks elsewhere, before the last answers are given
        stop.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, on_signal, name)
    return stop


async def _assemble_unless(
    stop: asyncio.Event, settings: ServerSettings, preparation: Preparation, manager: ServiceManager
) -> Run | None:
    """The run, or None if the program was asked to stop while it was being prepared.

    A preparation that says how far it is has read what it was given: from then on the program counts as started,
    because its port answers, and it may take many minutes more.
    """
    loop = asyncio.get_running_loop()
    assembling = loop.run_in_executor(None, _assemble, settings, preparation)
    while not assembling.done() and not stop.is_set():
        await asyncio.wait([assembling], timeout=TICK_S)
        if preparation.activity:
            manager.status(f"preparing the run: {preparation.activity}")
            manager.ready()
    if not stop.is_set():
        return await assembling
    preparation.cancel()
    structlog.get_logger().info(
        "nothing_begun", detail="the run was not prepared yet; the same command begins it anew"
    )
    with contextlib.suppress(FkdError):
        run = await assembling
        run.close()
    return None


def _assemble(settings: ServerSettings, preparation: Preparation) -> Run:
    """The run: of its own, or one that follows another coordinator's."""
    cache = cache_folder() / "embeddings"
    if settings.upstream is None:
        settings.check_no_relay()
        return assemble(settings, cache, preparation)
    from fkd_relay.start import assemble_relay  # the client's half of the protocol: only a relay speaks it

    return assemble_relay(settings, cache, preparation)


async def say_alive(server: GrpcServer, manager: ServiceManager) -> None:
    """Tell a service manager that asks for it that the event loop and the coordinator's worker get on."""
    while manager.watchdog_s:
        await server.worker_turn()
        manager.alive()
        await asyncio.sleep(manager.watchdog_s / 2)


class _Serving:
    """A run that is being served."""

    def __init__(
        self,
        settings: ServerSettings,
        run: Run,
        server: GrpcServer,
        manager: ServiceManager,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._run = run
        self._server = server
        self._manager = manager
        self._stop = stop
        self._said = time.monotonic()
        self._told = 0.0
        self._on = ""
        self._log = structlog.get_logger()

    async def to_the_end(self) -> int:
        """Serve until the run is over and those who take part know, or until told to stop; returns the exit code."""
        run = self._run
        await self._drive()
        if not run.coordinator.over or not await self._scored():
            self._log.info(
                "kept", folder=str(run.folder.path), detail="the same command goes on with this run"
            )
            return ExitCode.OK
        if not run.folder.finished:
            _say_saved(run, await asyncio.get_running_loop().run_in_executor(None, run.finish))
        self._manager.status(f"run {run.run_id} {run.coordinator.state.value}: {run.coordinator.detail}")
        await self._dismiss()
        if run.coordinator.state is RunState.COMPLETED:
            return ExitCode.OK
        print(f"fkd-server: error: run aborted: {run.coordinator.detail}", file=sys.stderr)
        return ExitCode.ABORTED

    async def _drive(self) -> None:
        """Let time pass for the run until it is over, saying every so often what it waits for."""
        ticked = time.monotonic()
        while not self._run.coordinator.over and not self._stop.is_set():
            if (asleep := time.monotonic() - ticked - TICK_S) > ASLEEP_S:
                self._run.service.was_asleep(asleep)
            ticked = time.monotonic()
            await self._server.tick()
            if self._run.link is not None and self._run.link.failure is not None:
                raise self._run.link.failure
            self._say(self._run.service.waiting_for)
            await self._sleep()

    async def _scored(self) -> bool:
        """Wait for the last evaluations; False if the program was asked to stop before they were there."""
        while self._run.evaluator is not None and self._run.evaluator.waiting_for():
            if self._stop.is_set():
                return False
            await self._server.tick()
            self._say(self._run.evaluator.waiting_for)
            await self._sleep()
        return True

    async def _dismiss(self) -> None:
        """Keep answering until every client, and every operator that watches, has learnt that the run is over."""
        run = self._run
        if away := run.service.look(lambda coordinator, now: coordinator.attendance.untold()):
            self._log.info("waiting", on=f"{', '.join(away)} to come back and learn that the run is over")
        until = time.monotonic() + (STOP_GRACE_S if self._stop.is_set() else self._settings.linger_s)
        while time.monotonic() < until and not (
            run.service.everyone_left() and not run.admin.somebody_watches()
        ):
            await asyncio.sleep(0.1)
            await self._server.tick()
        if self._settings.serve and not self._stop.is_set():
            self._log.info("staying", until="SIGTERM or Ctrl-C")
            await self._stop.wait()

    def _say(self, waiting_for: Callable[[], str]) -> None:
        """Say what is being waited for, if it is time: in the log, and oftener to the service manager."""
        now = time.monotonic()
        if now - self._told >= SAY_STATUS_S:
            self._told = now
            self._manager.status(f"run {self._run.run_id}: {waiting_for()}")
        since = now - self._said
        if since >= SAY_WAITING_S and ((on := waiting_for()) != self._on or since >= SAY_AGAIN_S):
            self._said, self._on = now, on
            self._log.info("waiting", on=on)

    async def _sleep(self) -> None:
        """Until the next tick, or until told to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), TICK_S)


def _say_saved(run: Run, summary: Mapping[str, Json]) -> None:
    """What the run left: one line for the log, tables for a person."""
    model = run.recorder.model
    found: dict[str, Json] = {"model": "none"}
    if model is not None:
        accuracy = run.recorder.accuracies.get(model.round, {}).get("published")
        found = {"model": model.sha256, "round": model.round, "published": model.published}
        found["accuracy"] = round(accuracy, 4) if isinstance(accuracy, float) else None
    structlog.get_logger().info("saved", folder=str(run.folder.path), **found)
    with contextlib.suppress(OSError):  # nobody reads
        print_summary(summary, model)
