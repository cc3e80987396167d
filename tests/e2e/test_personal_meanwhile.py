"""A site's personal model before its run is over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fkd_client.cli import main
from fkd_common.errors import ExitCode

from .conftest import World
from .programs import Launcher, address_of

RUN = ["--min-clients", "1", "--rounds", "3", "--personal-every", "1", "--linger-s", "5"]


def test_a_model_of_every_personal_phase_predicts_while_the_run_goes_on(
    launch: Launcher, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = launch.server(*RUN, failpoint="phase.closed@personal:kill")
    address = address_of(server)
    client = launch.client(world.sites / "a", address)
    server.end()  # round 1 is over; the client waits for its coordinator
    folder = launch.runs / "run" / "client-a"
    image = next(path for path in (world.sites / "pictures").rglob("*.png") if path.name != "broken.png")

    assert main(["predict", str(image), "--model", str(folder), "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["class"]
    assert (folder.stat().st_mode & 0o777) == 0o700
    assert not (folder / "report.json").exists()
    assert not client.ended
    first = (folder / "model.json").read_bytes()

    launch.server(*RUN, port=int(address.rpartition(":")[2]))
    assert client.end() == ExitCode.OK
    assert (folder / "model.json").read_bytes() != first
    report = json.loads((folder / "report.json").read_text())
    assert report["personal"]["chosen"] == json.loads((folder / "model.json").read_text())["chosen"]
    assert main(["predict", str(image), "--model", str(folder), "--json", "--device", "cpu"]) == 0
