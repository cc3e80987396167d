"""What operators may do, and nobody else: over a real connection, with the log that every call leaves."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from fkd_common.access.roles import Role
from fkd_common.errors import ExitCode, ForbiddenError
from fkd_common.rpc import ADMIN_METHODS
from fkd_server.access.identity import UNPROVEN
from fkd_server.access.tls import ServerTls
from fkd_server.cli import main
from fkd_server.run_state import RunState
from tests.scenario_table import Seen
from tests.server.tiny import TinyRun, tiny_run

from .conftest import Pki
from .serving import connected, enrolling, raw_call, serving, site

STATUS, STOP = ADMIN_METHODS["Status"], ADMIN_METHODS["Stop"]


@pytest.mark.scenario(18)
@pytest.mark.parametrize("name", ADMIN_METHODS)
def test_a_client_cannot_call_what_operators_call(run: TinyRun, pki: Pki, name: str, seen: Seen) -> None:
    """Scenario 18: refused, with a line for whoever audits."""
    tls = pki.client("shard3")
    with (
        capture_logs() as logs,
        serving(run, ServerTls(pki.folder)) as address,
        connected(address, tls) as channel,
    ):
        site(channel)  # its certificate is good for taking part
        with pytest.raises(ForbiddenError) as error:
            channel.call(ADMIN_METHODS[name], b"", 10.0)
    assert error.value.reason == "NOT_AN_OPERATOR"
    denied = [line for line in logs if line["event"] == "admin_denied"]
    assert [(line["who"], line["method"], line["address"]) for line in denied] == [
        ("shard3", name, "127.0.0.1")
    ]
    assert not run.coordinator.over
    seen("PERMISSION_DENIED, audit line admin_denied")


@pytest.mark.scenario(17, 18)
def test_a_health_probe_is_no_operator(run: TinyRun, pki: Pki, seen: Seen) -> None:
    """Scenario 17: a program's name in the metadata opens nothing."""
    own = pki.client("a").channel_credentials()
    agent = [("grpc.primary_user_agent", "grpc_health_probe/0.4")]
    with serving(run, ServerTls(pki.folder)) as address:
        code, _ = raw_call(address, own, STOP, b"", options=agent)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert not run.coordinator.over
    seen(code.name)


@pytest.mark.scenario(18)
@pytest.mark.parametrize(
    "path", ["/fkd.v1.Admin/stop", "/fkd.v1.admin/Stop", "//fkd.v1.Admin/Stop", "/fkd.v1.Admin/Stop/"]
)
def test_only_the_exact_path_is_a_method(run: TinyRun, pki: Pki, path: str) -> None:
    """Scenario 18."""
    own = pki.client("a").channel_credentials()
    spelled = type(STOP)("Stop", path, STOP.request_type, STOP.response_type)
    with serving(run, ServerTls(pki.folder)) as address:
        code, _ = raw_call(address, own, spelled, b"")
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_an_operator_sees_the_run(run: TinyRun, pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    alice = pki.holder("alice", Role.OPERATOR)
    with (
        capture_logs() as logs,
        serving(run, ServerTls(pki.folder)) as address,
        connected(address, pki.client("a")) as transport,
    ):
        site(transport).poll()
        command = ["status", "--server", address, "--tls", str(alice)]
        assert main(command) == ExitCode.OK
        text = capsys.readouterr().out
        assert main([*command, "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert text.splitlines()[0] == "run run-1: gathering, before the first round, served for 0 s"
    assert text.splitlines()[1] == "1 of 2 clients ready: a"
    assert text.splitlines()[-1].split() == ["a", "waiting", "0", "s", "ago"]
    assert (told["run_id"], told["state"], told["round"]) == ("run-1", "gathering", -1)
    assert [(client["name"], client["alive"]) for client in told["clients"]] == [("a", True)]
    assert ("admin", "alice", "Status") in [(x["event"], x.get("who"), x.get("method")) for x in logs]


def test_status_says_who_works_at_what_who_waits_and_who_is_gone(
    tmp_path: Path, pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_run(tmp_path / "three", min_clients=3, clients_per_round=0.3)
    alice, names = pki.holder("alice", Role.OPERATOR), ("a", "b", "c")
    with serving(run, ServerTls(pki.folder)) as address, ExitStack() as stack:
        sites = {name: site(stack.enter_context(connected(address, pki.client(name)))) for name in names}

        def states() -> dict[str, str]:
            assert main(["status", "--server", address, "--tls", str(alice)]) == ExitCode.OK
            rows = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
            return {name: " ".join([state, *doing]) for name, state, _, _, _, *doing in rows}

        for one in sites.values():
            one.poll()
        (asked,) = run.coordinator.participants
        leaves, waits = (name for name in names if name != asked)
        assert states() == {asked: "working", leaves: "waiting", waits: "waiting"}
        key = sites[asked].key(0, run.coordinator.open.key.phase)  # type: ignore[union-attr]
        sites[asked].call("Heartbeat", key=key, activity="distilling", progress=0.16)
        sites[leaves].call("Leave")
        assert states() == {asked: "working distilling 16%", leaves: "left", waits: "waiting"}


def test_an_operator_stops_the_run(run: TinyRun, pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    alice = pki.holder("alice", Role.OPERATOR)
    with serving(run, ServerTls(pki.folder)) as address, connected(address, pki.client("a")) as transport:
        a = site(transport)
        for _ in range(2):  # stopping twice changes nothing
            assert main(["stop", "--server", address, "--tls", str(alice)]) == ExitCode.OK
        over = a.poll().finished
    assert run.coordinator.state is RunState.ABORTED
    assert (over.completed, over.detail) == (False, "stopped by operator alice")
    assert capsys.readouterr().out.count("the run is over: stopped by operator alice\n") == 2


def test_without_tls_this_machine_is_the_operator(run: TinyRun, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(run, None) as address:
        assert main(["stop", "--server", address]) == ExitCode.OK
    assert "stopped by operator at 127.0.0.1" in capsys.readouterr().out
    assert run.coordinator.over


@pytest.mark.scenario(18)
@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "", "unix"])
def test_without_tls_other_machines_are_not(run: TinyRun, address: str) -> None:
    """Scenario 18: `--insecure` serves runs beyond this machine, not their steering."""
    with pytest.raises(ForbiddenError):
        run.admin.operator(STOP, UNPROVEN, address)


def test_an_operator_is_told_what_the_command_lacks(
    run: TinyRun, pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator's advice: a client's would lead to a certificate that is refused as well."""
    with serving(run, ServerTls(pki.folder)) as address:
        assert main(["status", "--server", address]) == ExitCode.REJECTED
        said = capsys.readouterr().err
        assert "expects TLS" in said
        assert "--role operator --out DIR" in said
        assert "--join" not in said
        assert main(["stop", "--server", address, "--tls", str(pki.folder)]) == ExitCode.USAGE
        assert "the coordinator's own folder" in capsys.readouterr().err
        assert main(["stop", "--server", address, "--tls", str(pki.folder / "none")]) == ExitCode.USAGE
        assert "--role operator" in capsys.readouterr().err
        assert main(["status", "--server", address, "--tls", str(pki.holder("a"))]) == ExitCode.REJECTED
        assert "--role operator" in capsys.readouterr().err
    assert main(["status", "--server", "127.0.0.1:1"]) == ExitCode.UNREACHABLE
    with enrolling(ServerTls(pki.folder)) as port:
        alice = str(pki.holder("alice", Role.OPERATOR))
        address = f"127.0.0.1:{port}"
        assert main(["status", "--server", address, "--tls", alice]) == ExitCode.REJECTED
        assert f"{address} does not know this call" in capsys.readouterr().err
