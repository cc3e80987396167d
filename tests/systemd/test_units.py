"""The unit files against systemd's own checks, and against what the programs say of themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fkd_client.settings import ClientSettings
from fkd_common.access.certificates import CLIENT_FILES, SERVER_FILES
from fkd_common.errors import ExitCode
from fkd_common.settings import ProgramSettings, load_settings
from fkd_server.access.revocation import REVOKED_FILE
from fkd_server.serve import STOP_GRACE_S
from fkd_server.settings import ServerSettings

from ..tools import require_tool
from .units import CLIENT, INSTALL, SERVER, SOURCE, install, values

WHERE_A_RESTART_CANNOT_HELP = {ExitCode.USAGE, ExitCode.DATA, ExitCode.REJECTED, ExitCode.ABORTED}


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed units, with every drop-in that is offered in use."""
    root = tmp_path_factory.mktemp("staged")
    for arguments in (["server"], ["client", "a"]):
        done = install(*arguments, "--root", root, FKD_BIN=str(Path(sys.executable).parent))
        assert done.returncode == 0, done.stderr
    return root / "etc/systemd/system"


def verify(units: Path, *names: str) -> str:
    """What systemd finds wrong with units."""
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"}
    done = subprocess.run(
        [require_tool("systemd-analyze"), "verify", *names], env=environment, capture_output=True, text=True
    )
    return "".join(line for line in done.stderr.splitlines(keepends=True) if "fkd" in line)


NAMES = ["fkd-server.service", "fkd-server-tls.path", "fkd-server-tls.service", "fkd-client@a.service"]


def test_systemd_finds_nothing_wrong_with_the_installed_units(staged: Path) -> None:
    assert verify(staged, *NAMES) == ""


def test_systemd_finds_nothing_wrong_with_the_drop_ins_that_are_offered(staged: Path) -> None:
    for example in staged.rglob("*.conf.example"):
        example.with_suffix("").write_text(example.read_text())
    try:
        assert verify(staged, *NAMES) == ""
    finally:
        for used in staged.rglob("*.conf"):
            used.unlink()


def test_a_key_that_systemd_does_not_know_is_found(staged: Path, tmp_path: Path) -> None:
    (tmp_path / "fkd-wrong.service").write_text(SERVER.read_text().replace("ProtectClock=", "ProtectClocks="))
    assert "ProtectClocks" in verify(tmp_path, "fkd-wrong.service")


@pytest.mark.parametrize("drop_ins", [False, True], ids=["as installed", "with its drop-ins"])
@pytest.mark.parametrize(("unit", "most"), [("fkd-server.service", 20), ("fkd-client@a.service", 20)])
def test_the_exposure_of_a_unit_stays_low(
    staged: Path, tmp_path: Path, unit: str, most: int, drop_ins: bool
) -> None:
    shipped = staged / re.sub("@.*[.]", "@.", unit)
    offered = sorted(Path(f"{shipped}.d").glob("*.conf.example"))
    assert offered
    file = tmp_path / unit
    file.write_text("\n".join(path.read_text() for path in [shipped, *(offered if drop_ins else [])]))
    command = [
        require_tool("systemd-analyze"),
        "security",
        "--no-pager",
        "--offline=true",
        f"--threshold={most}",
    ]
    done = subprocess.run([*command, file], capture_output=True, text=True)
    print(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", [SERVER, CLIENT])
def test_a_program_is_not_started_again_where_that_cannot_help(unit: Path) -> None:
    (codes,) = values(unit, "RestartPreventExitStatus")
    assert {int(code) for code in codes.split()} == WHERE_A_RESTART_CANNOT_HELP
    assert values(unit, "Restart") == ["on-failure"]


def test_a_server_has_time_to_stop() -> None:
    (limit,) = values(SERVER, "TimeoutStopSec")
    assert float(limit.removesuffix("s")) > 2 * STOP_GRACE_S


def test_the_credentials_are_the_files_that_the_programs_read() -> None:
    def loaded(unit: Path) -> dict[str, str]:
        return dict(value.split(":", 1) for value in values(unit, "LoadCredential"))

    def files(names: object) -> set[str]:
        return {getattr(names, kind)[0] for kind in ("ca", "certificate", "key")}

    server, client = loaded(SERVER), loaded(CLIENT)
    assert set(server) == files(SERVER_FILES) | {REVOKED_FILE, "http-token", "upstream-token"}
    assert set(client) == files(CLIENT_FILES) | {"join-token"}
    for unit, names in ((SERVER, server), (CLIENT, client)):
        without = {value.split(":", 1)[0] for value in values(unit, "SetCredential")}
        assert without == set(names)  # none of them has to be there
    watched = values(SOURCE / "fkd-server-tls.path", "PathChanged")
    assert set(watched) == set(server.values())


@pytest.mark.parametrize(
    ("kind", "program", "file", "unit"),
    [
        (ServerSettings, "fkd-server", "server.env", SERVER),
        (ClientSettings, "fkd-client", "client.env", CLIENT),
    ],
)
def test_every_variable_of_the_units_is_a_setting_that_the_program_takes(
    kind: type[ProgramSettings], program: str, file: str, unit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)
    shipped = (SOURCE / file).read_text() + "\n" + "\n".join(" ".join(values(unit, "Environment")).split())
    found = dict(re.findall(r"^#?(FKD_\w+)=(.*)$", shipped, re.MULTILINE))
    assert len(found) > 5
    known = {*kind.model_fields, "cache"}  # the server's, too: fkd_common/places.py
    assert {name.removeprefix("FKD_").lower() for name in found} <= known
    found["FKD_CONFIG"] = str(SOURCE / "server.yaml") if kind is ServerSettings else ""
    for name, value in found.items():
        monkeypatch.setenv(name, value.replace("%i", "a").replace("NAME", "a"))
    load_settings(kind, program, [])


def test_every_key_of_the_yaml_file_is_a_setting_that_the_server_takes(tmp_path: Path) -> None:
    text = (SOURCE / "server.yaml").read_text()
    used = tmp_path / "server.yaml"
    used.write_text(re.sub(r"^#(\w+:)", r"\1", text, flags=re.MULTILINE))
    assert used.read_text() != text
    load_settings(ServerSettings, "fkd-server", ["--config", str(used)], use_environment=False)


def test_the_scripts_pass_shellcheck() -> None:
    scripts = [INSTALL, Path(__file__).with_name("boot.sh")]
    done = subprocess.run([require_tool("shellcheck"), *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
