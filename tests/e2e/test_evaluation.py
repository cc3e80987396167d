"""Beginning and end of a run that is served: what is said while there is nothing to serve, and the last scores."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from fkd_common.errors import ExitCode
from fkd_common.model_file import decode_model

from .conftest import World
from .programs import PATIENCE_S, Launcher, address_of
from .test_comings_and_goings import free_port

pytestmark = pytest.mark.e2e


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@pytest.mark.scenario(42)
def test_scores_still_missing_at_a_stop_are_there_after_the_next_start(
    world: World, launch: Launcher
) -> None:
    """Scenario 42: the run is over, and its last models are being scored when the coordinator is told to stop."""
    flags = ("--rounds", "2", "--min-clients", "1", "--test", str(world.sites / "b"), "--threads", "1")
    first = launch.server(*flags)
    address = address_of(first)
    (scorer,) = children_of(first.pid)
    os.kill(scorer, signal.SIGSTOP)
    client = launch.client(world.sites / "a", address)
    first.wait_for("run_completed")
    first.signal(signal.SIGTERM)
    assert first.end(within_s=15.0) == ExitCode.OK
    first.wait_for("kept")
    assert "Traceback" not in first.stderr

    again = launch.server(*flags, port=int(address.rpartition(":")[2]))
    saved = again.wait_for("saved")
    assert again.end() == client.end() == ExitCode.OK
    assert [e["round"] for e in again.events if e["event"] == "evaluated"] == [0, 1, 2]
    lines = [json.loads(line) for line in (launch.runs / "run" / "rounds.jsonl").read_text().splitlines()]
    assert all(line["accuracy"].keys() >= {"student", "recall"} for line in lines)
    model = decode_model((launch.runs / "run" / "model.safetensors").read_bytes())
    assert (saved["round"], saved["published"]) == (2, model.header.published)
    assert saved["accuracy"] == round(lines[-1]["accuracy"]["published"], 4)
    for title in ("model after round 2", "bytes per client", "time, all rounds"):
        assert title in again.stdout


def test_a_client_that_comes_while_the_coordinator_prepares_says_so(
    world: World, launch: Launcher, tmp_path: Path
) -> None:
    """The coordinator writes text where it was asked to, also what the preparing process says."""
    shards, port = world.folder / "digits", free_port()
    server = launch.start(
        "server",
        ["fkd_server.cli", "--extractor", "pretrain", "--public", str(shards / "test"), "--anchors",
         str(shards / "anchors"), "--port", str(port), "--runs", str(tmp_path / "run"), "--log-format", "text"],
    )  # fmt: skip
    client = launch.client(world.sites / "a", f"127.0.0.1:{port}")
    said = client.wait_for(
        "coordinator_not_ready"
    )  # how far it is, too, but on a fast machine it may be through first
    assert said["detail"].startswith("the coordinator is preparing the run")
    deadline = time.monotonic() + PATIENCE_S
    while not any(" preparing " in line for line in server.said):
        assert time.monotonic() < deadline, server.stderr
        time.sleep(0.02)
    for program in (client, server):
        program.signal(signal.SIGTERM)
        assert program.end(within_s=15.0) == ExitCode.OK
        assert "Traceback" not in program.stderr
    assert server.events == []
