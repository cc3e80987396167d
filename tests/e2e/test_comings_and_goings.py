"""Clients and the coordinator that come late, go on purpose or die: the run goes on, and everyone is told."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fkd_common.errors import ExitCode

from .conftest import World
from .programs import Event, Launcher, Program, address_of, free_port

pytestmark = pytest.mark.e2e

ENDLESS = ("--rounds", "1000000", "--residual-every", "1000000")


@pytest.mark.scenario(4)
def test_a_killed_client_is_named_costs_no_deadline_and_rejoins(
    world: World, launch: Launcher, seen: Any
) -> None:
    """Scenario 4; a coordinator told to stop keeps the run (scenario 42)."""
    limits = ("--heartbeat-s", "2", "--heartbeat-limit-s", "8", "--phase-deadline-s", "600")  # the defaults
    server = launch.server(*ENDLESS, "--min-clients", "2", "--quorum", "0.5", *limits)
    a = launch.client(world.sites / "a", address_of(server))
    b = launch.client(world.sites / "b", address_of(server))
    server.wait_for("round_closed", of_both)

    killed, since = server.now(), time.monotonic()
    b.signal(signal.SIGKILL)
    assert server.wait_for("client_lost", since=killed)["client"] == "b"
    closed = server.wait_for("phase_closed", lambda event: event.get("missing") == ["b"], since=killed)
    assert closed["seconds"] < 60
    went_on_s = time.monotonic() - since
    seen(f"the round went on {went_on_s:.1f} s after a client was killed")
    assert went_on_s < 10.0
    server.wait_for("round_closed", of_a_alone, since=killed)

    restarted = server.now()
    again = launch.client(world.sites / "b", address_of(server))
    assert server.wait_for("client_joined", since=restarted)["again"] is True
    ready = server.wait_for("client_ready", lambda event: event["client"] == "b", since=restarted)
    server.wait_for("round_closed", of_both, since=server.events.index(ready))

    stop_and_check(server, [a, again], signal.SIGTERM)


@pytest.mark.scenario(42)
def test_a_client_told_to_stop_leaves_with_exit_code_0_and_the_run_goes_on(
    world: World, launch: Launcher
) -> None:
    """One client is there before the coordinator, and stays when that is stopped with Ctrl-C."""
    port = free_port()
    early = launch.client(world.sites / "a", f"127.0.0.1:{port}")
    early.wait_for("coordinator_unreachable")
    server = launch.server(*ENDLESS, "--min-clients", "2", "--quorum", "0.5", port=port)
    leaver = launch.client(world.sites / "b", f"127.0.0.1:{port}")
    server.wait_for("round_closed", of_both)

    leaver.signal(signal.SIGTERM)
    assert leaver.end() == ExitCode.OK
    assert leaver.said == ["fkd-client: stopped on request; a run at work goes on without this client"]
    left = server.wait_for("client_left")
    assert left["client"] == "b"
    server.wait_for("round_closed", of_a_alone, since=server.events.index(left))

    stop_and_check(server, [early], signal.SIGINT)


@pytest.mark.scenario(25)
def test_a_second_process_of_the_same_name_ends_the_first_with_exit_code_4(
    world: World, launch: Launcher
) -> None:
    """Scenario 25."""
    server = launch.server("--min-clients", "3")
    older = launch.client(world.sites / "a", address_of(server), name="site")
    server.wait_for("client_ready")
    newer = launch.client(world.sites / "b", address_of(server), name="site")
    joined = server.events.index(server.wait_for("client_joined", lambda event: event["again"] is True))
    assert older.end() == ExitCode.REJECTED
    assert len(older.said) == 1
    assert "another process registered under the same name" in older.said[0]
    server.wait_for("client_ready", lambda event: event["ready"] == 1, since=joined)

    stop_and_check(server, [newer], signal.SIGTERM)


def stop_and_check(server: Program, clients: list[Program], number: signal.Signals) -> None:
    """Stop the coordinator: it keeps the run, writes its ledger and ends with 0; clients wait to be stopped."""
    server.signal(number)
    assert server.end() == ExitCode.OK
    assert server.wait_for("kept")["detail"] == "the same command goes on with this run"
    assert "Traceback" not in server.stderr
    for client in clients:
        client.wait_for("coordinator_unreachable")
        client.signal(signal.SIGTERM)
    for client in clients:
        assert client.end() == ExitCode.OK
    ledger = Path(server.wait_for("serving")["folder"]) / "ledger.csv"
    booked = {line.split(",")[0] for line in ledger.read_text().splitlines()}
    assert booked >= {client.name for client in clients}


def of_both(event: Event) -> bool:
    return bool(event["cohort"] == ["a", "b"])


def of_a_alone(event: Event) -> bool:
    return bool(event["cohort"] == ["a"])


@pytest.mark.scenario(42)
def test_a_server_stopped_while_it_prepares_ends_at_once_and_leaves_nothing(
    world: World, launch: Launcher, tmp_path: Path
) -> None:
    """Scenario 42."""
    shards = world.folder / "digits"
    server = launch.start(
        "server",
        ["fkd_server.cli", "--extractor", "pretrain", "--public", str(shards / "test"), "--anchors",
         str(shards / "anchors"), "--port", "0", "--runs", str(tmp_path / "run"), "--log-format", "json"],
    )  # fmt: skip
    server.wait_for("preparing")
    server.signal(signal.SIGTERM)
    assert server.end(within_s=15.0) == ExitCode.OK
    assert "Traceback" not in server.stderr
    assert list((tmp_path / "run").iterdir()) == []
