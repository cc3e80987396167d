"""The worked example, told once as a person would have it told; and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.three_hospitals.hosts import NamespacesError, own_namespaces
from examples.three_hospitals.proof import CUT, MOST_OVERHEAD, PROOF
from examples.three_hospitals.story import HOSPITALS
from fkd_common.artifacts import sha256_hex
from tests.tools import absent, require_tool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "transcripts" / "three-hospitals.md"
EXAMPLE = [sys.executable, "-m", "examples.three_hospitals"]


@dataclass(frozen=True)
class Told:
    """A story that has been told."""

    folder: Path
    transcript: str

    def host(self, name: str) -> Path:
        return self.folder / "hosts" / name


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    for tool in ("unshare", "nsenter", "ip", "curl", "openssl"):
        require_tool(tool)
    try:
        own_namespaces()
    except NamespacesError as error:
        absent(str(error))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("hospitals")
    transcript = folder / "transcript.md"
    done = subprocess.run(
        [*EXAMPLE, "--keep", str(folder / "kept"), "--transcript", str(transcript)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=420,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    assert done.stdout.endswith(transcript.read_text())
    return Told(folder / "kept", transcript.read_text())


def test_what_it_says_of_the_bytes_holds(told: Told) -> None:
    proof = json.loads((told.folder / PROOF).read_text())
    assert len(proof["claims"]) == 4
    assert all(claim["holds"] for claim in proof["claims"])
    for site in proof["sites"]:
        assert site["payload_up"] > 3_000_000
        unexplained = site["sent"] - site["message_up"]
        assert 0 <= unexplained <= MOST_OVERHEAD * site["message_up"] + CUT
        assert unexplained < site["images"]


def test_no_image_of_a_hospital_is_on_any_other_host(told: Told) -> None:
    for name in HOSPITALS:
        own = {sha256_hex(path.read_bytes()) for path in told.host(name).rglob("*.png")}
        assert len(own) > 300
        others = [host for host in (told.folder / "hosts").iterdir() if host.name != name]
        found = {
            sha256_hex(path.read_bytes()) for host in others for path in host.rglob("*") if path.is_file()
        }
        assert not own & found


def test_personal_models_exist_at_their_hospitals_only(told: Told) -> None:
    found = {path.parts[-5] for path in (told.folder / "hosts").glob("*/run/*/client-*/model.json")}
    assert found == set(HOSPITALS)
    assert list(told.host("hub").rglob("model.json")) == []


def test_the_run_that_was_killed_is_the_run_that_completed(told: Told) -> None:
    (run,) = (told.host("hub") / "run").iterdir()
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in rounds] == list(range(len(rounds)))
    assert json.loads((run / "summary.json").read_text())["state"] == "completed"
    trained = [record for record in rounds if "student" in record["phases"]]
    without = [
        record["round"] for record in trained if "south" not in record["phases"]["student"]["returned"]
    ]
    assert without
    assert rounds[-1]["phases"]["student"]["returned"] == sorted(HOSPITALS)


def test_each_host_keeps_its_own_key_and_nobody_elses(told: Told) -> None:
    keys = {name: (told.host(name) / "tls" / "key.pem").read_bytes() for name in (*HOSPITALS, "ops")}
    assert len(set(keys.values())) == len(keys)
    on_hub = {path.read_bytes() for path in told.host("hub").rglob("*.pem")}
    assert not on_hub & {keys[name] for name in HOSPITALS}


def test_the_transcript_in_the_documentation_is_of_this_example(told: Told) -> None:
    assert _typed(COMMITTED.read_text()) == _typed(told.transcript)


def _typed(transcript: str) -> list[str]:
    """Headings, and commands with the host they are typed on, as far as they do not change from run to run."""
    kept = re.findall(r"^(?:#+ .+|[a-z]+\$ .+)$", transcript, re.MULTILINE)
    return [re.sub(r"/\S*three-hospitals-\w+/", "/…/", line) for line in kept]


def test_when_it_is_stopped_nothing_is_left(tmp_path: Path) -> None:
    example = subprocess.Popen(
        EXAMPLE, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        assert example.stdout is not None
        for line in example.stdout:
            if line.startswith("north$ fkd-client"):
                break
        programs = _descendants(example.pid)
        assert len(programs) > 10
        example.send_signal(signal.SIGTERM)
        assert example.wait(30) == 130
    finally:
        example.kill()
        example.communicate()
    deadline = time.monotonic() + 10
    while any(_lives(pid) for pid in programs) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in programs if _lives(pid)] == []
    assert list(tmp_path.iterdir()) == []


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those they have."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        own = [int(child) for child in children.read_text().split()]
    except OSError:
        return []
    return [*own, *(below for child in own for below in _descendants(child))]


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
