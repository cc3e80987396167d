"""`fkd-server`: parses settings, starts one run, serves it, stops cleanly; the exit code says how it went."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path

import structlog

from fkd_common.addresses import is_loopback
from fkd_common.errors import ExitCode, FkdError, UsageError
from fkd_common.logs import LogFormat, configure_logs
from fkd_common.places import cache_folder
from fkd_common.program import run_program
from fkd_common.settings import load_settings
from fkd_server.grpc_server import GrpcServer
from fkd_server.memory import return_large_buffers
from fkd_server.prepare import Cancel, prepare
from fkd_server.run import Run, assemble
from fkd_server.run_state import RunState
from fkd_server.settings import ServerSettings

TICK_S = 0.5
SAY_WAITING_S = 10.0
STOP_GRACE_S = 5.0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("fkd-server", "client", lambda: _main(arguments))


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["prepare"]:
        return _prepare(arguments[1:])
    settings = load_settings(ServerSettings, "fkd-server", arguments)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    _check_plain_text(settings.host, settings.insecure)
    configure_logs(settings.log_format)
    return_large_buffers()
    return asyncio.run(_serve(settings))


def _prepare(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="fkd-server prepare",
        description="Build the extractor artifact and embed the anchors (needs torch), for --prepared.",
    )
    parser.add_argument("--extractor", default="resnet18", help="resnet18, pretrain, or a .safetensors file")
    parser.add_argument("--anchors", type=Path, required=True, help="anchor shard folder")
    parser.add_argument(
        "--public", type=Path, default=Path("shards/public"), help="labelled public shard for pretrain"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    given = parser.parse_args(arguments)
    configure_logs(LogFormat.AUTO)
    prepare(given.extractor, given.anchors, given.public, given.out, given.seed, given.threads)
    structlog.get_logger().info(
        "prepared", folder=str(given.out), serve_with=f"fkd-server --prepared {given.out}"
    )
    return ExitCode.OK


def _check_plain_text(host: str, insecure: bool) -> None:
    if not is_loopback(host) and not insecure:
        raise UsageError(
            f"--host {host} would serve plain text beyond this machine: tunnel to 127.0.0.1 instead, "
            "or say --insecure inside a network you trust"
        )


async def _serve(settings: ServerSettings) -> int:
    """Serve one run until it is over and every client knows."""
    log = structlog.get_logger()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _on_signal, stop, name)
    server = GrpcServer(settings.heartbeat_s)
    port = server.listen(settings.host, settings.port)
    run = await _assemble_unless(stop, settings)
    if run is None:
        await server.stop(0.0)
        return ExitCode.OK
    try:
        await server.start(run.service)
        log.info(
            "serving",
            address=f"{settings.host}:{port}",
            run=run.run_id,
            folder=str(run.folder.path),
            clients_needed=run.config.min_clients,
            config=run.config.sha256()[:12],
        )
        await _drive(run, server, stop)
        if stop.is_set():
            run.service.abort("the coordinator was stopped")
        summary = await loop.run_in_executor(None, run.finish)
        log.info(
            "saved",
            folder=str(run.folder.path),
            published=run.method.published if run.coordinator.state is RunState.COMPLETED else None,
            accuracy=run.recorder.accuracy.get("published"),
            model=summary["model_hash"] or "none: no vote had been held",
        )
        await _dismiss(run, server, stop, settings)
    finally:
        if run.evaluator is not None:
            run.evaluator.kill()
        await server.stop(STOP_GRACE_S if stop.is_set() else 1.0)
        with contextlib.suppress(OSError):
            run.write_ledger()
    if stop.is_set() or run.coordinator.state is RunState.COMPLETED:
        return ExitCode.OK
    print(f"fkd-server: error: run aborted: {run.coordinator.detail}", file=sys.stderr)
    return ExitCode.ABORTED


async def _assemble_unless(stop: asyncio.Event, settings: ServerSettings) -> Run | None:
    """The run, or None if the program was asked to stop while it was being prepared."""
    cancel = Cancel()
    loop = asyncio.get_running_loop()
    assembling = loop.run_in_executor(None, assemble, settings, cache_folder() / "embeddings", cancel)
    while not assembling.done() and not stop.is_set():
        await asyncio.wait([assembling], timeout=TICK_S)
    if not stop.is_set():
        return await assembling
    cancel.ask()
    with contextlib.suppress(FkdError):
        run = await assembling
        run.folder.remove()
    return None


async def _drive(run: Run, server: GrpcServer, stop: asyncio.Event) -> None:
    """Let time pass for the run until it is over, saying every so often what it waits for."""
    log = structlog.get_logger()
    said = time.monotonic()
    while not run.coordinator.over and not stop.is_set():
        await server.tick()
        if time.monotonic() - said >= SAY_WAITING_S:
            said = time.monotonic()
            log.info("waiting", on=run.service.waiting_for())
        await _sleep_unless(stop, TICK_S)


async def _dismiss(run: Run, server: GrpcServer, stop: asyncio.Event, settings: ServerSettings) -> None:
    """Keep answering until every client has learnt that the run is over."""
    limit = STOP_GRACE_S if stop.is_set() else settings.linger_s
    until = time.monotonic() + limit
    while not run.service.everyone_left() and time.monotonic() < until:
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


def _on_signal(stop: asyncio.Event, name: signal.Signals) -> None:
    if stop.is_set():
        sys.exit(ExitCode.FAILURE)  # asked twice: at once
    structlog.get_logger().info("stopping", signal=name.name, grace_s=STOP_GRACE_S)
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
