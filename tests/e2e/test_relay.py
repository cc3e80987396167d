"""A coordinator, a relay of two sites and a site of its own, as processes: the model is that of one coordinator."""

from __future__ import annotations

import csv
import json
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fkd_common.choices import UNCODED
from fkd_common.errors import ExitCode
from fkd_common.tensors import decode

from .conftest import World
from .programs import PATIENCE_S, Launcher, Program, address_of, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXACT = [f"--{name.replace('_', '-')}={value}" for name, value in UNCODED.items()]
WHOLE = ("--relays", "north", "--rounds", "1", "--heartbeat-s", "1", "--heartbeat-limit-s", "30", *EXACT)
"""One round: what training makes of the last bits of a student is not the relay's."""


@pytest.fixture(scope="module")
def flat(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model of the same three sites under one coordinator."""
    launch = Launcher(tmp_path_factory.mktemp("flat"), world.cache, world.prepared)
    try:
        server = launch.server(*WHOLE, "--min-clients", "3")
        for name in "abc":
            launch.client(world.sites / name, address_of(server))
        assert [program.end(3 * PATIENCE_S) for program in launch.started] == [0, 0, 0, 0]
        yield launch.runs / "run" / "model.safetensors"
    finally:
        launch.stop()


def difference(ours: Path, theirs: Path) -> float:
    """The largest of any value of two models."""
    a, b = (decode(path.read_bytes()) for path in (ours, theirs))
    assert a.keys() == b.keys()
    return max(float(np.abs(np.asarray(a[name], np.float64) - b[name]).max()) for name in a)


def sites_of(world: World, launch: Launcher, relay: str, server: str) -> list[Program]:
    return [launch.client(world.sites / name, at) for name, at in (("a", relay), ("b", relay), ("c", server))]


def rows(path: Path) -> dict[str, dict[str, int]]:
    """Payload bytes up by client and phase."""
    found: dict[str, dict[str, int]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            by_phase = found.setdefault(row["client"], {})
            by_phase[row["phase"]] = by_phase.get(row["phase"], 0) + int(row["payload_up"])
    return found


def test_a_relay_of_two_sites_and_a_third_make_the_model_of_three(
    world: World, launch: Launcher, flat: Path
) -> None:
    server = launch.server(*WHOLE, "--min-clients", "2")
    relay = launch.relay(address_of(server), "north", "--min-clients", "2")
    sites = sites_of(world, launch, address_of(relay), address_of(server))
    relay.wait_for("run_completed", within_s=3 * PATIENCE_S)
    mapped = Path(f"/proc/{relay.pid}/maps").read_text()
    assert [program.end(3 * PATIENCE_S) for program in (server, relay, *sites)] == [ExitCode.OK] * 5
    assert "libtorch" not in mapped
    assert "lib_lightgbm" not in mapped
    assert all("Traceback" not in program.stderr for program in launch.started)

    top, north = launch.runs / "run", launch.runs / "north"
    print(f"largest difference {difference(top / 'model.safetensors', flat):.1e}")
    assert difference(top / "model.safetensors", flat) < 5e-5
    assert (north / "model.safetensors").read_bytes() == (top / "model.safetensors").read_bytes()
    assert json.loads((north / "summary.json").read_text())["state"] == "completed"

    above, below = rows(top / "ledger.csv"), rows(north / "ledger.csv")
    assert above.keys() == {"north", "c"}
    assert below.keys() == {"a", "b"}
    assert above["north"]["student"] == below["a"]["student"] == below["b"]["student"]
    assert above["north"]["moments"] > above["c"]["moments"]  # the embedding's block, every time


@pytest.mark.scenario(45)
def test_a_relay_and_its_coordinator_that_are_killed_end_with_the_same_model(
    world: World, launch: Launcher, flat: Path
) -> None:
    """The relay while it writes an upload down, and between its answer's receipt and the next step; then the hub."""
    below = ("--min-clients", "2")
    server = launch.server(*WHOLE, *below, failpoint="phase.closed@votes:kill:2")
    port = int(address_of(server).rpartition(":")[2])
    relay = launch.relay(address_of(server), "north", *below, failpoint="upload.committed@student:kill:2")
    address = address_of(relay)
    at = int(address.rpartition(":")[2])
    sites = sites_of(world, launch, address, address_of(server))
    assert relay.end(3 * PATIENCE_S) == -signal.SIGKILL
    relay = launch.relay(
        f"127.0.0.1:{port}", "north", *below, port=at, failpoint="SubmitMoments.answered:kill"
    )
    assert relay.end(PATIENCE_S) == -signal.SIGKILL
    relay = launch.relay(f"127.0.0.1:{port}", "north", *below, port=at)
    assert server.end(3 * PATIENCE_S) == -signal.SIGKILL
    server = launch.server(*WHOLE, *below, port=port)
    assert [program.end(3 * PATIENCE_S) for program in (server, relay, *sites)] == [ExitCode.OK] * 5
    assert difference(launch.runs / "run" / "model.safetensors", flat) < 5e-5
    for site in sites:
        done = Counter((e["round"], e["phase"]) for e in site.events if e["event"] == "acknowledged")
        assert set(done.values()) == {1}, "a phase was answered twice"


def test_a_relay_started_first_finds_its_coordinator_says_whom_it_waits_for_and_leaves_when_told(
    launch: Launcher, world: World
) -> None:
    port = free_port()
    relay = launch.relay(f"127.0.0.1:{port}", "north", "--min-clients", "1")
    relay.wait_for("upstream_unreachable")
    server = launch.server("--relays", "north", "--min-clients", "2", port=port)
    status = launch.start("status", ["fkd_server.cli", "status", "--server", address_of(relay)])
    assert status.end() == ExitCode.OK
    assert f"a relay of the coordinator at {address_of(server)}" in status.stdout
    assert "0 of 1 clients ready" in status.stdout
    server.wait_for("client_joined", lambda event: event["client"] == "north")
    relay.signal(signal.SIGTERM)
    assert relay.end() == ExitCode.OK
    server.wait_for("client_left", lambda event: event["client"] == "north")
    again = launch.relay(address_of(server), "north", "--min-clients", "1")
    again.wait_for("upstream_connected")
    server.signal(signal.SIGTERM)
    assert server.end() == ExitCode.OK
    lost = again.wait_for("upstream_lost")
    assert lost["upstream"] == address_of(server)


def test_a_run_that_no_relay_can_carry_is_refused_in_a_sentence(launch: Launcher) -> None:
    server = launch.server("--relays", "north", "--min-clients", "2", "--aggregation", "median")
    relay = launch.relay(address_of(server), "north")
    assert relay.end() == ExitCode.USAGE
    (sentence,) = relay.said
    assert sentence.startswith("fkd-server: error: the upstream run has aggregation median: ")
    server.wait_for("client_left", lambda event: event["client"] == "north")


def test_a_relay_joins_upstream_with_a_token(launch: Launcher, tmp_path: Path) -> None:
    """It is who its certificate says, and its own clients' TLS is another matter."""
    token, tls = token_of(launch, tmp_path, "north"), tmp_path / "tls"
    server = launch.server(
        "--relays", "north", "--tls", str(tls), "--host", "127.0.0.1", "--min-clients", "2"
    )
    at = server.wait_for("serving")
    address = f"localhost:{str(at['address']).rpartition(':')[2]}"
    upstream = ["--upstream", address, "--upstream-tls", str(tmp_path / "upstream")]
    join = ["--upstream-join", f"@{token}", "--upstream-join-port", str(at["join_port"])]
    own = ["--runs", str(launch.runs), "--run-id", "north", "--port", "0"]
    relay = launch.start("relay", ["fkd_server.cli", *upstream, *join, *own])
    assert relay.wait_for("upstream_connected")["run"] == "run"
    server.wait_for("client_joined", lambda event: event["client"] == "north")
    relay.signal(signal.SIGTERM)
    assert relay.end() == ExitCode.OK
    again = launch.start("relay", ["fkd_server.cli", *upstream, "--upstream-name", "south", *own])
    assert again.end() == ExitCode.USAGE
    (sentence,) = again.said
    assert "--upstream-name south: the certificate in " in sentence
    assert sentence.endswith("leave out --upstream-name")


@pytest.mark.scenario(42)
@pytest.mark.parametrize("program", ["relay", "site"])
def test_who_waits_for_a_certificate_ends_when_told(
    world: World, launch: Launcher, tmp_path: Path, program: str
) -> None:
    """The port for joining takes the connection, and says nothing."""
    token = token_of(launch, tmp_path, "north")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = ("127.0.0.1:1", f"@{token}", str(silent.getsockname()[1]), str(tmp_path / "own"))
        if program == "relay":
            flags = ("--upstream", "--upstream-join", "--upstream-join-port", "--upstream-tls")
            own = ["fkd_server.cli", "--runs", str(launch.runs), "--port", "0"]
        else:
            flags = ("--server", "--join", "--join-port", "--tls")
            own = ["fkd_client.cli", "--data", str(world.sites / "a")]
        waits = launch.start(
            program, [*own, *(word for pair in zip(flags, at, strict=True) for word in pair)]
        )
        waits.wait_for("joining")
        silent.accept()
        waits.signal(signal.SIGTERM)
        assert waits.end(within_s=20.0) == ExitCode.OK
    assert "Traceback" not in waits.stderr


@pytest.mark.scenario(46)
@pytest.mark.slow
def test_a_relay_that_was_away_when_the_run_ended_ends_itself_and_its_sites(
    world: World, launch: Launcher
) -> None:
    """The upstream coordinator waits a moment for relays that have taken part."""
    below = ("--min-clients", "2")
    server = launch.server(
        *WHOLE,
        *below,
        "--rounds",
        "2",
        "--phase-deadline-s",
        "20",
        "--heartbeat-limit-s",
        "2",
        "--quorum",
        "0.5",
    )
    relay = launch.relay(address_of(server), "north", *below)
    address = address_of(relay)
    sites = sites_of(world, launch, address, address_of(server))
    server.wait_for("round_closed", within_s=3 * PATIENCE_S)
    relay.signal(signal.SIGKILL)
    server.wait_for("run_completed", within_s=3 * PATIENCE_S)
    waits = server.wait_for("waiting", lambda event: "learn that the run is over" in event["on"])
    assert waits["on"] == "north to come back and learn that the run is over"
    relay = launch.relay(address_of(server), "north", *below, port=int(address.rpartition(":")[2]))
    assert [program.end(3 * PATIENCE_S) for program in (relay, server, *sites)] == [ExitCode.OK] * 4 + [0]
    assert relay.wait_for("run_completed")


def token_of(launch: Launcher, folder: Path, name: str) -> Path:
    """A token of an authority that is made for it."""
    tls, token = folder / "tls", folder / f"{name}.token"
    for command in (["certs", "init", "--host", "localhost"], ["token", "create", name]):
        made = launch.start(command[0], ["fkd_server.cli", *command, "--tls", str(tls)])
        assert made.end() == ExitCode.OK
        token.write_text(made.stdout)
    return token
