"""Mutual TLS between real processes: from `certs init` to a finished run, and what changes in the middle of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_common.errors import ExitCode
from fkd_server.cli import main as server_main
from tests.scenario_table import Seen

from .conftest import World
from .programs import Launcher, Program

pytestmark = pytest.mark.e2e


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a `fkd-server` command prints that succeeds."""
    assert server_main([str(argument) for argument in arguments]) == ExitCode.OK
    return capsys.readouterr().out.strip()


def start(launch: Launcher, tls: Path, *flags: str) -> tuple[Program, str, int]:
    """A coordinator over TLS, its address and its port for tokens."""
    server = launch.server("--tls", str(tls), "--host", "127.0.0.1", *flags)
    serving = server.wait_for("serving")
    return server, str(serving["address"]), int(serving["join_port"])


def test_two_sites_join_one_by_token_one_by_folder_and_finish(
    launch: Launcher, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls, folder, joined = tmp_path / "tls", tmp_path / "credentials", tmp_path / "joined"
    command(capsys, "certs", "init", "--tls", tls)
    command(capsys, "certs", "issue", "left", "--tls", tls, "--out", folder)
    (tmp_path / "token").write_text(command(capsys, "token", "create", "right", "--tls", tls))
    server, address, join_port = start(launch, tls, "--min-clients", "2", "--rounds", "1", "--correction", "")
    first, second = (world.sites / name for name in "ab")
    left = launch.client(first, address, "--tls", str(folder))
    token = ["--join", f"@{tmp_path / 'token'}", "--join-port", str(join_port)]
    right = launch.client(second, address, "--tls", str(joined), *token)
    assert [program.end() for program in (left, right, server)] == [ExitCode.OK] * 3
    assert server.wait_for("joined")["name"] == "right"
    # As whom the certificates name, not as the data is called.
    assert sorted(path.name for path in (launch.runs / "run").glob("client-*")) == [
        "client-left",
        "client-right",
    ]


@pytest.mark.scenario(18, 31, 32)
def test_certificates_are_renewed_and_revoked_in_the_middle_of_a_run(
    launch: Launcher, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: Seen
) -> None:
    """Scenarios 18, 31, 32, among processes: nothing is restarted, and every refusal is one sentence."""
    tls = tmp_path / "tls"
    command(capsys, "certs", "init", "--tls", tls)
    folders = {}
    for name, role in (("a", "client"), ("b", "client"), ("alice", "operator")):
        folders[name] = tmp_path / name
        command(capsys, "certs", "issue", name, "--role", role, "--tls", tls, "--out", folders[name])
    server, address, _ = start(launch, tls, "--min-clients", "3", "--rounds", "1000")
    plain = launch.client(world.sites / "a", address)
    a = launch.client(world.sites / "a", address, "--tls", str(folders["a"]))
    server.wait_for("client_ready", lambda event: event["client"] == "a")
    command(capsys, "certs", "renew", "--tls", tls)
    b = launch.client(world.sites / "b", address, "--tls", str(folders["b"]))
    server.wait_for("client_ready", lambda event: event["client"] == "b")
    assert server.wait_for("certificates_renewed")
    command(capsys, "certs", "revoke", "b", "--tls", tls)
    assert b.end() == ExitCode.REJECTED
    assert "has been revoked" in b.said[-1]
    assert plain.end() == ExitCode.REJECTED
    assert "expects TLS" in plain.said[-1]
    assert server_main(["stop", "--server", address, "--tls", str(folders["a"])]) == ExitCode.REJECTED
    assert server.wait_for("admin_denied")["who"] == "a"
    command(capsys, "stop", "--server", address, "--tls", folders["alice"])
    assert [program.end() for program in (a, server)] == [ExitCode.ABORTED] * 2
    assert "stopped by operator alice" in a.said[-1]
    seen("revoked client: exit 4; plain-text client: exit 4")
