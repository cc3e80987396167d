"""What the real programs tell the service manager that started them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from fkd_client.cli import main as client_main
from fkd_common.addresses import split_address
from fkd_common.errors import ExitCode
from fkd_common.service_manager import ServiceManager
from fkd_server.grpc_server import GrpcServer
from fkd_server.run import assemble
from fkd_server.serve import say_alive
from fkd_server.settings import ServerSettings

from ..client_network.coordinator import write_prepared
from ..e2e.conftest import World
from ..e2e.programs import Launcher, Program
from .notify_socket import NotifySocket

WATCHDOG_S = 2.0


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[NotifySocket]:
    heard = NotifySocket.in_folder(tmp_path)
    yield heard
    heard.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, tmp_path / "cache", tmp_path / "prepared")
    yield launcher
    launcher.stop()


def start_server(launch: Launcher, heard: NotifySocket, *flags: str) -> Program:
    arguments = ["fkd_server.cli", "--port", "0", "--runs", str(launch.runs), "--run-id", "run", *flags]
    watchdog = f"{1e6 * WATCHDOG_S:.0f}"
    return launch.start("server", arguments, NOTIFY_SOCKET=heard.address, WATCHDOG_USEC=watchdog)


def test_a_server_is_ready_when_it_answers_says_what_it_waits_for_stays_alive_and_stops(
    launch: Launcher, heard: NotifySocket, tmp_path: Path
) -> None:
    server = start_server(launch, heard, "--prepared", str(write_prepared(tmp_path / "prepared")))
    heard.wait_for("READY=1")
    address = server.wait_for("serving", within_s=5.0)["address"]
    socket.create_connection(split_address(address), timeout=5.0).close()
    heard.wait_for("STATUS=run run: 0 of 2 clients ready")

    pings = [heard.wait_for("WATCHDOG=1").at for _ in range(3)]
    gaps = [after - before for before, after in pairwise(pings)]
    assert max(gaps) < WATCHDOG_S
    assert min(gaps) > WATCHDOG_S / 4  # it is not told more often than it asks for

    server.signal(signal.SIGTERM)
    heard.wait_for("STOPPING=1", within_s=5.0)
    assert server.end() == ExitCode.OK
    heard.drain()
    assert not any(text.startswith("WATCHDOG") for text in heard.texts[heard.texts.index("STOPPING=1") :])


def test_a_server_that_prepares_is_ready_before_it_serves_and_says_how_far_it_is(
    launch: Launcher, heard: NotifySocket, world: World
) -> None:
    flags = ["--extractor", str(world.extractor), "--anchors", str(world.folder / "digits/anchors")]
    server = start_server(launch, heard, *flags, "--threads", "1")
    heard.wait_for("STATUS=preparing the run: embedding images")
    heard.wait_for("READY=1")
    server.wait_for("serving")


def test_a_server_that_cannot_serve_never_was_ready(
    launch: Launcher, heard: NotifySocket, tmp_path: Path
) -> None:
    server = start_server(launch, heard, "--prepared", str(tmp_path))
    assert server.end() == ExitCode.DATA
    heard.drain()
    assert "READY=1" not in heard.texts


def test_a_coordinator_whose_worker_is_stuck_stops_saying_that_it_is_alive(
    heard: NotifySocket, tmp_path: Path
) -> None:
    settings = ServerSettings(prepared=write_prepared(tmp_path / "prepared"), runs=tmp_path / "run")
    stuck, let_go = threading.Event(), threading.Event()

    async def watch() -> None:
        run = assemble(settings, tmp_path / "cache")
        server = GrpcServer()
        server.listen("127.0.0.1", 0)
        await server.start(run.service, run.admin)
        living = asyncio.create_task(say_alive(server, ServiceManager(heard.address, 0.2)))
        try:
            await asyncio.to_thread(heard.wait_for, "WATCHDOG=1", within_s=10.0)
            holds = asyncio.create_task(asyncio.to_thread(run.service.look, lambda *_: hold()))
            await asyncio.to_thread(stuck.wait, 10.0)
            tick = asyncio.create_task(
                server.tick()
            )  # waits for what is held, as an endless computation would
            with pytest.raises(TimeoutError):
                while True:  # a ping that was under way may still come, and then none
                    await asyncio.to_thread(heard.wait_for, "WATCHDOG=1", within_s=1.0)
                    assert len(heard.heard) < 5
            let_go.set()
            await asyncio.gather(holds, tick)
            await asyncio.to_thread(heard.wait_for, "WATCHDOG=1", within_s=10.0)
        finally:
            let_go.set()
            living.cancel()
            await server.stop(0.0)
            run.close()

    def hold() -> None:
        stuck.set()
        let_go.wait(60.0)

    asyncio.run(watch())


def test_a_client_is_ready_when_it_looks_for_its_coordinator_and_stops_when_told(
    heard: NotifySocket, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", heard.address)

    def stop_once_ready() -> None:
        heard.wait_for("STATUS=waiting (for the coordinator to answer)")
        heard.wait_for("READY=1")
        os.kill(os.getpid(), signal.SIGTERM)  # which the client at work in this process handles

    flags = [
        "--data",
        str(world.sites / "a"),
        "--server",
        "127.0.0.1:1",
        "--patience-s",
        "90",
        "--threads",
        "1",
    ]
    with ThreadPoolExecutor(1) as beside:
        stopped = beside.submit(stop_once_ready)
        assert client_main([*flags, "--runs", str(tmp_path)]) == ExitCode.OK
    stopped.result()
    heard.drain()
    assert heard.texts[-1] == "STOPPING=1"


def test_a_client_without_its_data_never_was_ready(
    heard: NotifySocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", heard.address)
    assert client_main(["--data", str(tmp_path / "nothing"), "--runs", str(tmp_path)]) == ExitCode.DATA
    heard.drain()
    assert heard.texts and "READY=1" not in heard.texts
