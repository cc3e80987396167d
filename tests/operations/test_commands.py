"""Every command that the guide for operators tells people to type does what it is typed for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import _own_surroundings as _own_surroundings
from tests.e2e.programs import Launcher, address_of

from .conftest import SITES, Federation
from .documents import Commands, commands

pytestmark = pytest.mark.e2e

BLOCKS = commands()
HOSTS = {"hub": "hub", "operator": "ops", "site": "site"}
"""Where blocks are typed while the federation is at work."""


def typed_on(where: str) -> list[Commands]:
    return [block for block in BLOCKS if block.where == where]


def test_every_block_says_where_it_is_typed() -> None:
    assert {block.where for block in BLOCKS} == {*HOSTS, "stopped", "restored", "finished"}


@pytest.mark.parametrize("block", typed_on("operator"), ids=lambda block: f"line {block.line}")
def test_operators_commands(federation: Federation, block: Commands) -> None:
    done = federation.type(block.text, federation.folder / "ops")
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("block", typed_on("site"), ids=lambda block: f"line {block.line}")
def test_a_sites_commands(federation: Federation, block: Commands) -> None:
    done = federation.type(block.text, federation.folder / "site")
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("block", typed_on("finished"), ids=lambda block: f"line {block.line}")
def test_commands_at_a_site_after_a_run(federation: Federation, block: Commands, tmp_path: Path) -> None:
    launch = Launcher(tmp_path, federation.world.cache, federation.world.prepared)
    try:
        server = launch.server("--rounds", "1", "--min-clients", "1", "--http-port", "0")
        site = launch.client(federation.world.sites / "a", address_of(server))
        assert site.end() == 0
    finally:
        launch.stop()
    (tmp_path / "images").symlink_to(federation.folder / "site" / "images")
    done = federation.type(block.text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"image", "class"} <= set(json.loads(done.stdout.splitlines()[0]))


def test_a_run_goes_on_from_its_backup_on_another_host(federation: Federation, tmp_path: Path) -> None:
    federation.stop_serving()
    (stopped,), (restored,) = typed_on("stopped"), typed_on("restored")
    backed_up = federation.type(stopped.text, federation.hub)
    assert backed_up.returncode == 0, backed_up.stderr
    before = last_round(federation.hub)
    for replacement in (tmp_path / "replacement", tmp_path / "a year later"):
        replacement.mkdir()
        shutil.copy(federation.hub / "backup.tar.gz", replacement)
        done = federation.type(restored.text, replacement)
        assert done.returncode == 0, done.stderr
        assert last_round(replacement) == before
        # The second time, the backup is older than what the sites have lived through since.
        server = federation.serve(replacement)
        server.wait_for("round_closed", lambda event: event["round"] >= before + 4)
        federation.stop_serving()
    federation.serve(federation.hub)


def last_round(host: Path) -> int:
    """The last round that a host's only run has recorded."""
    (record,) = (host / "run").glob("*/rounds.jsonl")
    return int(json.loads(record.read_text().splitlines()[-1])["round"])


@pytest.mark.parametrize("block", typed_on("hub"), ids=lambda block: f"line {block.line}")
def test_the_hubs_commands(federation: Federation, block: Commands) -> None:
    done = federation.type(block.text, federation.hub)
    assert done.returncode == 0, done.stderr


def test_the_site_that_one_of_these_commands_revokes_is_turned_away(federation: Federation) -> None:
    revoked = next(program for program in federation.launch.started if program.name == SITES[1])
    assert revoked.end() == 4
    assert "has been revoked" in revoked.said[-1]
