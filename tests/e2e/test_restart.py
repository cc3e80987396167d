"""A real coordinator is killed and started again: real clients go on with it, and nothing is computed twice."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fkd_common.errors import ExitCode

from .conftest import World
from .programs import Launcher, Program, address_of

pytestmark = pytest.mark.e2e

WHOLE = (
    "--rounds",
    "3",
    "--residual-every",
    "2",
    "--min-clients",
    "3",
    "--quorum",
    "1",
    "--heartbeat-limit-s",
    "10",
)


@pytest.mark.scenario(1)
@pytest.mark.slow
def test_a_coordinator_killed_in_every_phase_ends_with_the_model_of_an_undisturbed_run(
    world: World, launch: Launcher, tmp_path: Path, seen: Any
) -> None:
    """Scenario 1: the same clients go on; each phase is answered once by each; the model is the same, bit for bit."""
    undisturbed = play(world, Launcher(tmp_path / "quiet", world.cache, world.prepared), kills=[])
    kills = [
        "register.committed:kill:2", "upload.committed@student:kill:2", "phase.folded@residuals:kill",
        "file.renamed@moments:kill", "submit.answering@votes:kill:2", "phase.closed@personal:kill",
    ]  # fmt: skip
    disturbed = play(world, launch, kills)
    assert disturbed["model_hash"] == undisturbed["model_hash"]
    slowest = max(disturbed["restart_s"])
    assert slowest < 5.0
    seen(
        f"{len(disturbed['restart_s'])} kills, same model hash; restart to a client's first answer {slowest:.1f} s"
    )


def play(world: World, launch: Launcher, kills: list[str]) -> dict[str, Any]:
    """A whole run; one coordinator dies at each of the places, and the next takes over."""
    try:
        port, restart_s = 0, []
        clients: list[Program] = []
        server = launch.server(*WHOLE, failpoint=kills[0] if kills else "")
        address = address_of(server)
        port = int(address.rpartition(":")[2])
        clients = [launch.client(world.sites / name, address) for name in ("a", "b", "c")]
        for index in range(len(kills)):
            assert server.end() == -signal.SIGKILL
            died = time.monotonic()
            server = launch.server(
                *WHOLE, port=port, failpoint=kills[index + 1] if index + 1 < len(kills) else ""
            )
            server.wait_for("upload_accepted|phase_closed|client_joined|client_left")
            restart_s.append(time.monotonic() - died)
        assert server.end() == ExitCode.OK
        for client in clients:
            assert client.end() == ExitCode.OK
            done = Counter((e["round"], e["phase"]) for e in client.events if e["event"] == "acknowledged")
            assert set(done.values()) == {1}, "a phase was answered twice"
        summary = json.loads((launch.runs / "run" / "summary.json").read_text())
        return {"model_hash": summary["model_hash"], "restart_s": restart_s}
    finally:
        launch.stop()


@pytest.mark.scenario(26)
def test_a_second_coordinator_on_one_run_is_refused(world: World, launch: Launcher) -> None:
    """Scenario 26."""
    server = launch.server()
    address_of(server)
    second = launch.server()
    assert second.end() == ExitCode.USAGE
    (sentence,) = second.said
    assert f"is served by another fkd-server (process {server.pid})" in sentence


@pytest.mark.scenario(30)
def test_a_restart_with_another_configuration_is_refused_with_the_differences(
    world: World, launch: Launcher, seen: Any
) -> None:
    """Scenario 30."""
    server = launch.server("--rounds", "3")
    address_of(server)
    server.signal(signal.SIGKILL)
    server.end()
    other = launch.server("--rounds", "5", "--seed", "7")
    assert other.end() == ExitCode.REJECTED
    (sentence,) = other.said
    seen(sentence)
    assert "rounds: 3 → 5; seed: 0 → 7" in sentence
    assert "--new-run" in sentence
    same = launch.server("--rounds", "3")
    same.wait_for("run_resumed")


@pytest.mark.scenario(42)
def test_a_coordinator_told_twice_to_stop_ends_at_once_and_has_lost_nothing(
    world: World, launch: Launcher, seen: Any
) -> None:
    """Scenario 42: with a client at work and a poll held; the run goes on with the next process."""
    server = launch.server("--rounds", "100000", "--min-clients", "2", "--residual-every", "100000")
    address = address_of(server)
    for name in ("a", "b"):
        launch.client(world.sites / name, address)
    server.wait_for("round_closed")
    told = time.monotonic()
    server.signal(signal.SIGTERM)
    server.wait_for("stopping")
    server.signal(signal.SIGTERM)
    server.end()
    seen(f"ended {time.monotonic() - told:.1f} s after the first signal")
    assert time.monotonic() - told < 3.0
    assert "Traceback" not in server.stderr
    again = launch.server(
        "--rounds",
        "100000",
        "--min-clients",
        "2",
        "--residual-every",
        "100000",
        port=int(address.split(":")[1]),
    )
    assert again.wait_for("run_resumed")["round"] >= 1
    again.wait_for("round_closed")
