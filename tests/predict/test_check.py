"""`fkd-client check`: what a site learns of its data and its coordinator before a run, without being in one."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fkd_client.cli import main
from fkd_server.access.records import revoke
from fkd_server.access.tls import ServerTls
from fkd_server.grpc_server import GrpcServer
from fkd_shards.shard import open_data, write_shard
from fkd_shards.survey import survey
from tests.security.conftest import Pki
from tests.security.serving import serving
from tests.server.tiny import TinyRun, tiny_run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def shard(tmp_path: Path) -> str:
    images = np.zeros((5, 4, 6, 1), np.uint8)
    write_shard(tmp_path / "shard", images, np.array([0, 0, 2, 2, 2]), classes=("a", "b", "c"), source="test")
    return str(tmp_path / "shard")


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """Class folders: 9 images that can be read and one that cannot."""
    for number in range(9):
        path = tmp_path / "pictures" / ["cat", "dog"][number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10 + number, 20)).save(path)
    (tmp_path / "pictures/cat/broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    return str(tmp_path / "pictures")


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path / "run")


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def check(*arguments: str) -> int:
    return main(["check", *arguments])


def told(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The JSON object, and what was said to a person."""
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err.removeprefix("fkd-client: error: ").strip()


def test_a_shard_is_counted_class_by_class(shard: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--data", shard, "--json") == 0
    found, _ = told(capsys)
    assert found == {
        "data": {
            "path": shard, "classes": ["a", "b", "c"], "counts": [2, 0, 3], "bad": [], "smallest": [6, 4],
            "largest": [6, 4], "usable": 5, "total": 5,
        },
        "server": None,
    }  # fmt: skip


def test_pictures_are_decoded_and_what_cannot_be_is_named(
    pictures: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("--data", pictures, "--max-bad", "0.1", "--json") == 0
    data = told(capsys)[0]["data"]
    assert (data["classes"], data["counts"], data["total"]) == (["cat", "dog"], [5, 4], 10)
    assert (data["smallest"], data["largest"]) == ([10, 20], [18, 20])
    assert [bad["name"] for bad in data["bad"]] == ["cat/broken.png"]


def test_too_many_bad_images_are_reported_and_refused(
    pictures: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("--data", pictures, "--json") == 3
    found, sentence = told(capsys)
    assert found["data"]["usable"] == 9
    assert "1 of 10 images cannot be used, at most 1.00% may be" in sentence


def test_it_counts_what_a_run_would_count(pictures: str) -> None:
    found = survey(pictures)
    used = open_data(pictures, classes=found.classes, image_size=64, max_bad=0.1)
    assert found.counts == tuple(used.class_counts(2))
    assert found.bad == used.bad


def test_a_person_gets_one_screen(pictures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(40):
        folder = tmp_path / "pictures" / f"kind{number:02d}"
        folder.mkdir()
        Image.new("L", (8, 8)).save(folder / "one.png")
        (folder / "empty.png").write_bytes(b"")
    assert check("--data", pictures, "--max-bad", "0.5") == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 40
    assert "and 22 more, each 1 to 1" in out
    assert "49 of 90 images can be used, 8×8 to 18×20 pixels" in out
    assert "left out: kind00/empty.png: empty file" in out
    assert "left out: 31 more (all of them with --json)" in out


def test_no_name_in_the_data_reaches_the_terminal_as_an_order(
    pictures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pictures/cat/\x1b[2J\x1b]0;pwn\x07[b].png").write_bytes(b"")
    assert check("--data", pictures, "--max-bad", "0.5") == 0
    told = capsys.readouterr().out
    assert all(line.isprintable() for line in told.split("\n"))
    assert "[b].png: empty file" in told


@pytest.mark.parametrize("name", ["\x1b[2Jx", "\u202ex", "new\nline"])
def test_a_class_folder_with_a_name_that_is_none_is_refused_without_obeying_it(
    pictures: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pictures" / name / "deeper").mkdir(parents=True)
    for _ in range(2):
        assert check("--data", pictures) == 3  # first as a folder of folders among folders of images
        told = capsys.readouterr()
        assert all(line.isprintable() for line in (told.out + told.err).split("\n"))
        Image.new("L", (8, 8)).save(tmp_path / "pictures" / name / "one.png")


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--data", "absent"], 3, "no data 'absent': looked for"),
        ([], 2, "--data is required"),
        (["--data", "x", "--server", "hub"], 2, "expected HOST:PORT"),
        (["--data", "x", "--server", "hub:1"], 2, "would be reached in plain text"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(*arguments) == code
    assert message in capsys.readouterr().err


def test_anchors_are_no_data_to_train_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(tmp_path / "anchors", np.zeros((2, 4, 4, 1), np.uint8), None, classes=("a",), source="test")
    assert check("--data", "anchors") == 3
    assert "clients train on labelled shards, not on anchors" in capsys.readouterr().err


def test_a_coordinator_that_takes_the_certificate_says_so_and_registers_nobody(
    shard: str, run: TinyRun, pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pki.holder("site-a")
    with serving(run, ServerTls(pki.folder)) as address:
        assert check("--data", shard, "--server", address, "--tls", str(folder), "--json") == 0
    server = told(capsys)[0]["server"]
    assert server["client"] == "site-a"
    assert (server["answers"], server["accepted"]) == (True, True)
    assert run.coordinator.attendance.clients == {}


def test_over_plain_text_there_is_nothing_to_accept_but_the_coordinator_answers(
    shard: str, run: TinyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(run, None) as address:
        assert check("--data", shard, "--server", address) == 0
        assert f"coordinator {address}: answers; over plain text it takes anybody" in capsys.readouterr().out


def test_a_coordinator_that_prepares_its_run_answers_and_cannot_tell_yet(
    shard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask() -> int:
        server = GrpcServer()
        port = server.listen("127.0.0.1", 0)
        await server.start_preparing(lambda: "embedding images, 40 %")
        code = await asyncio.to_thread(check, "--data", shard, "--server", f"127.0.0.1:{port}", "--json")
        await server.stop(0.0)
        return code

    assert asyncio.run(ask()) == 0
    server = told(capsys)[0]["server"]
    assert (server["answers"], server["accepted"]) == (True, None)
    assert "preparing the run (embedding images, 40 %)" in server["detail"]


def test_a_revoked_certificate_is_not_taken(
    shard: str, run: TinyRun, pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pki.holder("site-a")
    revoke(pki.folder, "site-a")
    with serving(run, ServerTls(pki.folder)) as address:
        assert check("--data", shard, "--server", address, "--tls", str(folder), "--json") == 4
    found, sentence = told(capsys)
    assert (found["server"]["answers"], found["server"]["accepted"]) == (True, False)
    assert found["data"]["usable"] == 5
    assert "revoked" in sentence


def test_a_certificate_of_another_authority_is_not_taken(
    shard: str, run: TinyRun, pki: Pki, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = Pki(tmp_path / "stranger").holder("site-a")
    with serving(run, ServerTls(pki.folder)) as address:
        assert check("--data", shard, "--server", address, "--tls", str(stranger), "--json") == 4
    assert told(capsys)[0]["server"]["accepted"] is False


def test_nobody_there_is_unreachable_after_the_data_was_shown(
    shard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("--data", shard, "--server", "127.0.0.1:1", "--json") == 5
    found, sentence = told(capsys)
    assert found["data"]["usable"] == 5
    assert found["server"]["answers"] is False
    assert sentence.startswith("no coordinator answers at 127.0.0.1:1")


def test_a_token_is_left_alone(
    shard: str, run: TinyRun, pki: Pki, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever starts the client with --join checks with the same settings, before and after it has joined."""
    monkeypatch.setenv("FKD_JOIN", "a-token")
    with serving(run, ServerTls(pki.folder)) as address:
        assert check("--data", shard, "--server", address, "--tls", str(pki.holder("site-a")), "--json") == 0
    assert told(capsys)[0]["server"]["accepted"] is True
