"""What the Dockerfiles say, held against the project and against what is asked of images."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from deploy.docker import healthcheck
from fkd_common.settings import load_settings
from fkd_server.settings import ServerSettings
from tests.docker.dockerfile import FOLDER, ROOT, Stage, context_files, ignored, stages_of, with_bases
from tests.tools import require_tool

DOCKERFILES = ("server.Dockerfile", "client.Dockerfile")
FINAL = [("server.Dockerfile", "final"), ("client.Dockerfile", "cpu"), ("client.Dockerfile", "cuda")]
DEFAULT_PORT = ServerSettings.model_fields["port"].default
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def built(name: str, stage: str) -> Stage:
    """A final stage with everything it inherits."""
    stages = stages_of(name)
    return Stage(stage, stages[stage].base, with_bases(stages, stage))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_has_nothing_to_say(name: str) -> None:
    said = subprocess.run([require_tool("hadolint"), str(FOLDER / name)], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, "")


def test_hadolint_would_say_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN apt-get install curl\n")
    said = subprocess.run([require_tool("hadolint"), str(bad)], capture_output=True, text=True)
    assert "DL3006" in said.stdout and said.returncode == 1


@pytest.mark.parametrize("name", DOCKERFILES)
def test_every_stage_begins_with_the_same_pinned_image_or_an_earlier_stage(name: str) -> None:
    stages = stages_of(name)
    assert {stage.base for stage in stages.values() if stage.base not in stages} == {
        "python:3.11-slim-bookworm"
    }


@pytest.mark.parametrize(("name", "stage"), FINAL)
def test_an_image_runs_as_a_user_by_number_who_is_not_root(name: str, stage: str) -> None:
    user = built(name, stage).only("USER")
    assert re.fullmatch(r"(\d+):\1", user) and int(user.split(":")[0]) >= 10_000


@pytest.mark.parametrize(("name", "stage"), FINAL)
def test_the_only_volume_is_where_the_program_works(name: str, stage: str) -> None:
    image = built(name, stage)
    assert image.only("VOLUME") == image.only("WORKDIR") == "/var/lib/fkd"


@pytest.mark.parametrize(("name", "stage"), FINAL)
def test_labels_tell_the_release(name: str, stage: str) -> None:
    labels = built(name, stage).pairs("LABEL")
    assert labels["org.opencontainers.image.version"] == PROJECT["version"]
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]


@pytest.mark.parametrize(("name", "stage"), FINAL)
def test_an_image_sets_nothing_that_a_configuration_file_could_not_change(name: str, stage: str) -> None:
    assert [variable for variable in built(name, stage).pairs("ENV") if variable.startswith("FKD_")] == []


@pytest.mark.parametrize(("name", "stage"), FINAL)
def test_an_image_starts_a_program_of_the_project(name: str, stage: str) -> None:
    (program,) = built(name, stage).listed("ENTRYPOINT")
    assert program in PROJECT["scripts"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_installed_are_wheels_and_leaves_no_cache(name: str) -> None:
    commands = [value for stage in stages_of(name).values() for value in stage.all("RUN") if "pip" in value]
    installs = [command for command in commands if " install " in command]
    assert installs
    assert all("--no-cache-dir" in command and "--only-binary :all:" in command for command in installs)


def test_the_coordinator_exposes_its_three_ports() -> None:
    assert built("server.Dockerfile", "final").only("EXPOSE").split() == [
        str(DEFAULT_PORT + offset) for offset in range(3)
    ]


def test_the_client_listens_nowhere_and_has_no_health_check() -> None:
    for stage in ("cpu", "cuda"):
        image = built("client.Dockerfile", stage)
        assert image.all("EXPOSE") == [] and image.only("HEALTHCHECK") == "NONE"


def test_the_health_check_asks_the_port_that_the_coordinator_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FKD_HTTP_PORT", raising=False)
    monkeypatch.delenv("FKD_PORT", raising=False)
    assert healthcheck.port_of([]) == DEFAULT_PORT + 2
    monkeypatch.setenv("FKD_PORT", "6000")
    assert healthcheck.port_of([]) == 6002
    monkeypatch.setenv("FKD_HTTP_PORT", "7000")
    assert load_settings(ServerSettings, "fkd-server", []).http_port == healthcheck.port_of([]) == 7000
    assert healthcheck.port_of(["8000"]) == 8000


def test_a_health_check_of_a_port_where_nobody_answers_fails() -> None:
    assert not healthcheck.alive(1)


@pytest.mark.parametrize(
    "path",
    [".venv/bin/python", ".git/config", "tls/server.key", "site-a.token", "run/r/state.db", "shards/x.npz",
     "demo/summary.json", "docs/security.md", "tests/conftest.py", "fkd_common/__pycache__/a.pyc",
     "fkd_server/.secret", ".env"],
)  # fmt: skip
def test_the_build_context_leaves_out(path: str) -> None:
    assert ignored().match_file(path)


def test_the_build_context_has_every_source_of_every_package() -> None:
    wanted = {
        str(path.relative_to(ROOT))
        for package in ROOT.glob("fkd_*/")
        if (package / "__init__.py").exists()
        for path in package.rglob("*.py")
    }
    assert wanted and wanted <= set(context_files())
