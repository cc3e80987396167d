"""The units as installed, started by a real systemd, with everything they forbid."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fkd_common.errors import ExitCode

from ..e2e.programs import SMALL
from .box import Box
from .conftest import PYTHON, readable_by

BIN = "/opt/fkd/venv/bin"
UNITS = "etc/systemd/system"
SERVER, SITE_A, SITE_B = "fkd-server.service", "fkd-client@a.service", "fkd-client@b.service"
AS_SERVICE = [
    "systemd-run", "--quiet", "--pipe", "--wait", "-p", "DynamicUser=yes", "-p", "User=fkd-server",
    "-p", "StateDirectory=fkd-server", "-p", "WorkingDirectory=/var/lib/fkd-server",
    *(f"--property={line}" for line in PYTHON), f"{BIN}/fkd-server",
]  # fmt: skip
"""What server.env says about commands of the service's own authority."""


class Machine:
    """A machine on which the coordinator and two sites are installed."""

    def __init__(self, box: Box) -> None:
        self.box = box
        for arguments in (["server"], ["client", "a", "b"]):
            box.run("env", f"FKD_BIN={BIN}", "/opt/checkout/deploy/systemd/install.sh", *arguments)
        self._shipped = {path.name: path.read_text() for path in (box.root / "etc/fkd").glob("*.env")}
        for name in ("a", "b"):
            readable_by(box, "fkd-data", box.root / "srv/fkd" / name)
            self.configure(f"client-{name}", FKD_THREADS="1", FKD_PATIENCE_S="30")
        self.drop_in(SERVER, "sooner", "RestartSec=100ms")

    def configure(self, name: str, **settings: str) -> None:
        """The settings as shipped, and these, in place of those before."""
        small = zip(SMALL[::2], SMALL[1::2], strict=True) if name == "server" else ()
        method = {f"FKD_{flag[2:].upper().replace('-', '_')}": value for flag, value in small}
        lines = [f"{key}={value}\n" for key, value in {**method, **settings}.items()]
        (self.box.root / f"etc/fkd/{name}.env").write_text(self._shipped[f"{name}.env"] + "".join(lines))

    def drop_in(self, unit: str, name: str, *lines: str) -> None:
        """Add a drop-in to a unit."""
        path = self.box.root / UNITS / f"{unit}.d" / f"{name}.conf"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["[Service]", *lines, ""]))
        self.box.run("systemctl", "daemon-reload")

    def ready(self) -> bool:
        """Whether the second port says that a run is served."""
        ask = (
            "import urllib.request as u; print(u.urlopen('http://localhost:50053/readyz', timeout=9).status)"
        )
        return self.box.run(f"{BIN}/python3", "-c", ask).strip() == "200"

    def events(self, unit: str, name: str) -> list[dict[str, Any]]:
        """The events of that name in a unit's journal."""
        lines = [json.loads(line) for line in self.box.journal(unit).splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]


@pytest.fixture(scope="module")
def installed(box: Box) -> Machine:
    return Machine(box)


@pytest.fixture
def machine(installed: Machine) -> Machine:
    """The machine, with nothing at work and no memory of what failed."""
    box = installed.box
    box.run("systemctl", "stop", SITE_A, SITE_B, SERVER, "fkd-server-tls.path")
    box.run("systemctl", "reset-failed")
    box.run("journalctl", "--rotate", "--vacuum-time=1us")
    return installed


def test_a_server_whose_settings_are_wrong_does_not_start_and_is_not_started_again(machine: Machine) -> None:
    machine.configure("server", FKD_PREPARED="/srv/fkd/nothing")
    assert "failed" in machine.box.run("systemctl", "start", SERVER, check=False)
    assert machine.box.property(SERVER, "ExecMainStatus") == str(int(ExitCode.DATA))
    assert machine.box.property(SERVER, "ActiveState") == "failed"
    assert machine.box.property(SERVER, "NRestarts") == "0"


@pytest.mark.slow
def test_a_server_that_was_killed_and_one_with_a_new_list_of_revoked_sites_go_on_with_their_run(
    machine: Machine,
) -> None:
    box = machine.box
    certs = [f"{BIN}/fkd-server", "certs"]
    box.run(*certs, "init", "--host", "localhost", "--tls", "/etc/fkd/tls")
    box.run(*certs, "issue", "a", "--out", "/etc/fkd/client-a-tls", "--tls", "/etc/fkd/tls")
    machine.configure(
        "server",
        FKD_RUN_ID="killed",
        FKD_TLS=f"/run/credentials/{SERVER}",
        FKD_MIN_CLIENTS="1",
        FKD_ROUNDS="5000",
        FKD_RESIDUAL_EVERY="2500",
    )
    machine.configure(
        "client-a", FKD_TLS=f"/run/credentials/{SITE_A}", FKD_SERVER="localhost:50051", FKD_PATIENCE_S="30"
    )
    box.start("fkd-server-tls.path", SERVER, SITE_A)
    box.wait_until(SERVER, "StatusText", "run killed: round 2")
    client = box.property(SITE_A, "MainPID")

    box.run("systemctl", "kill", "--signal=KILL", SERVER)
    box.wait_until(SERVER, "NRestarts", "1")
    box.wait_until(SERVER, "StatusText", "run killed: round")
    assert [event["run"] for event in machine.events(SERVER, "serving")] == ["killed", "killed"]
    assert machine.events(SERVER, "run_resumed")[0]["round"] >= 2
    assert box.property(SITE_A, "MainPID") == client
    assert re.search('Status: "run killed: .*"', box.run("systemctl", "status", "--no-pager", SERVER))

    box.run(*certs, "revoke", "a", "--tls", "/etc/fkd/tls")
    box.wait_until(SITE_A, "ActiveState", "failed")
    assert box.property(SITE_A, "MainPID") != client
    assert box.property(SITE_A, "NRestarts") == "0"
    assert box.property(SITE_A, "ExecMainStatus") == str(int(ExitCode.REJECTED))
    assert "has been revoked" in box.journal(SITE_A)
    assert len(machine.events(SERVER, "run_resumed")) == 2

    box.run("systemctl", "stop", SERVER)
    assert box.property(SERVER, "Result") == "success", box.journal(SERVER)
    assert machine.events(SERVER, "kept")
    private = [box.root / "var/lib/private/fkd-server/run/killed", box.root / "var/lib/private/fkd-client/a"]
    assert [path.stat().st_mode & 0o777 for path in private] == [0o700, 0o700]


def test_a_server_that_is_stuck_is_ended_says_where_and_goes_on(machine: Machine) -> None:
    machine.configure("server", FKD_RUN_ID="stuck")
    machine.drop_in(SERVER, "impatient", "WatchdogSec=2s", "TimeoutAbortSec=20s")
    try:
        machine.box.start(SERVER)
        machine.box.run("systemctl", "kill", "--signal=STOP", SERVER)
        machine.box.wait_until(SERVER, "NRestarts", "1")
        machine.box.wait_until(SERVER, "ActiveState", "active")
    finally:
        machine.drop_in(SERVER, "impatient")
    assert "Watchdog timeout" in machine.box.journal(SERVER)
    assert re.search(r"fkd_server/serve\.py\W+line", machine.box.journal(SERVER))
    assert machine.events(SERVER, "run_resumed")


def test_a_relay_gets_its_certificate_with_roots_token_and_says_what_it_waits_for(machine: Machine) -> None:
    """From the environment file alone; nobody has started its upstream coordinator yet."""
    box = machine.box
    certs = ["--tls", "/root/hub"]
    box.run(f"{BIN}/fkd-server", "certs", "init", "--host", "localhost", *certs)
    token = box.root / "etc/fkd/upstream.token"
    token.write_text(box.run(f"{BIN}/fkd-server", "token", "create", "north", *certs))
    token.chmod(0o600)
    machine.configure(
        "server",
        FKD_UPSTREAM="localhost:7001",
        FKD_UPSTREAM_TLS="/var/lib/fkd-server/upstream",
        FKD_UPSTREAM_JOIN=f"@/run/credentials/{SERVER}/upstream-token",
        FKD_RUN_ID="north",
    )
    environment = box.root / "etc/fkd/server.env"
    environment.write_text(environment.read_text().replace("FKD_PREPARED=", "#FKD_PREPARED="))
    try:
        box.start(SERVER)
        box.wait_until(
            SERVER, "StatusText", "getting a certificate from the upstream coordinator at localhost:7001"
        )
        assert machine.events(SERVER, "joining")[0]["name"] == "north"
        box.run("systemctl", "stop", SERVER)
        assert box.property(SERVER, "Result") == "success", box.journal(SERVER)
    finally:
        token.unlink()


def test_a_site_that_joins_with_a_token_takes_part_until_the_run_is_over_and_scored_and_shown(
    machine: Machine,
) -> None:
    box = machine.box
    box.run(*AS_SERVICE, "certs", "init", "--host", "localhost")
    token = box.root / "etc/fkd/client-b.token"
    token.touch(mode=0o600)
    token.write_text(box.run(*AS_SERVICE, "token", "create", "b"))
    scoring = box.root / UNITS / f"{SERVER}.d/torch.conf"
    scoring.write_text(scoring.with_name("torch.conf.example").read_text())
    box.run("systemctl", "daemon-reload")
    machine.configure(
        "server",
        FKD_RUN_ID="joined",
        FKD_TLS="/var/lib/fkd-server/tls",
        FKD_TEST="/srv/fkd/test",
        FKD_MIN_CLIENTS="1",
        FKD_ROUNDS="1",
    )
    machine.configure(
        "client-b",
        FKD_JOIN=f"@/run/credentials/{SITE_B}/join-token",
        FKD_TLS="/var/lib/fkd-client/b/tls",
        FKD_SERVER="localhost:50051",
    )
    box.start(SERVER, SITE_B)
    box.wait_until(SITE_B, "ActiveState", "inactive")
    box.wait_until(SERVER, "StatusText", "run joined completed")
    assert machine.events(SERVER, "saved")[0]["accuracy"] > 0

    # What a reboot does once the run is over: it is shown again, and no other begins.
    box.run("systemctl", "restart", SERVER)
    box.wait_until(SERVER, "StatusText", "run joined completed")
    assert [event["run"] for event in machine.events(SERVER, "serving")] == ["joined", "joined"]
    assert machine.ready()
    box.run("systemctl", "stop", SERVER)
    for unit in (SITE_B, SERVER):
        assert box.property(unit, "Result") == "success", box.journal(unit)
        assert box.property(unit, "NRestarts") == "0"
    kept = box.root / "var/lib/private/fkd-client/b"
    assert (kept / "tls/key.pem").stat().st_mode & 0o777 == 0o600
    assert (kept / "run/joined/client-b/model.safetensors").exists()
