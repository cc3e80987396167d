"""What a person can get wrong: every mistake has its exit code and one sentence.

Mistakes that a program notices by itself are made through its entry point, without the cost of a process.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from fkd_bench.cli import main as bench_main
from fkd_client.cli import main as client_main
from fkd_common.artifacts import sha256_hex
from fkd_common.errors import ExitCode
from fkd_common.extractor_artifact import join_safetensors, read_extractor_spec, split_safetensors
from fkd_server.cli import main as server_main
from fkd_shards.shard import LABELS_FILE, read_shard, write_shard

from .conftest import World
from .programs import Launcher, Program, address_of

pytestmark = pytest.mark.e2e

Main = Callable[[list[str]], int]


# -- settings -----------------------------------------------------------------------------------------

PROGRAMS: list[tuple[Main, list[str]]] = [
    (server_main, []),
    (client_main, ["--data", "x"]),
    (bench_main, ["run", "--data", "digits"]),
]


@pytest.mark.parametrize(("main", "needed"), PROGRAMS)
def test_an_unknown_flag_ends_with_exit_code_2(
    main: Main, needed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*needed, "--nonsense", "1"]) == ExitCode.USAGE
    assert "--nonsense" in the_sentence(capsys)


@pytest.mark.parametrize(("main", "needed"), PROGRAMS)
def test_an_unknown_key_of_a_file_ends_with_exit_code_2(
    main: Main, needed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("threads: 1\nround: 5\n")
    assert main([*needed, "--config", str(file)]) == ExitCode.USAGE
    assert "unknown key round" in the_sentence(capsys)


@pytest.mark.parametrize(
    ("main", "arguments", "named"),
    [
        (server_main, ["--rounds", "0"], "rounds"),
        (server_main, ["--hidden", "8,8", "--dropout", "0.1"], "dropout"),
        (server_main, ["--host", "0.0.0.0"], "--insecure"),  # the refusal is the point
        (server_main, ["--config", "/no/such/file"], "/no/such/file"),
        (client_main, [], "data"),
        (client_main, ["--data", "x", "--server", "192.0.2.1:50051"], "--insecure"),
        (client_main, ["--data", "x", "--server", "localhost"], "HOST:PORT"),
        (client_main, ["--data", "x", "--name", "../x"], "--name"),
        (client_main, ["--data", "x", "--patience-s", "0"], "patience_s"),
        (bench_main, ["walk"], "walk"),
    ],
)
def test_a_wrong_setting_ends_with_exit_code_2_and_is_named(
    main: Main, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.USAGE
    assert named in the_sentence(capsys)


@pytest.mark.parametrize(("main", "needed"), PROGRAMS)
def test_print_config_can_be_fed_back(
    main: Main, needed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, flags = needed[:1] if needed[:1] == ["run"] else [], [f for f in needed if f != "run"]
    assert main([*command, *flags, "--threads", "3", "--print-config"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["threads"] == 3
    file = tmp_path / "settings.yaml"
    file.write_text(printed)
    assert main([*command, "--config", str(file), "--print-config"]) == ExitCode.OK
    assert capsys.readouterr().out == printed


def test_flag_beats_environment_beats_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("rounds: 1\nseed: 1\nlr: 0.5\ncorrection: []\n")
    monkeypatch.setenv("FKD_ROUNDS", "2")
    monkeypatch.setenv("FKD_SEED", "2")
    monkeypatch.setenv("FKD_LR", "")  # an empty variable is an unset one
    assert server_main(["--config", str(file), "--rounds", "3", "--print-config"]) == ExitCode.OK
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["rounds"], printed["seed"], printed["lr"], printed["correction"]) == (3, 2, 0.5, [])


@pytest.mark.parametrize("name", ["correction", "personal"])
def test_an_empty_list_can_be_said_on_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main([f"--{name}", "", "--print-config"]) == ExitCode.OK
    assert yaml.safe_load(capsys.readouterr().out)[name] == []


# -- the coordinator ----------------------------------------------------------------------------------


def test_a_taken_port_ends_with_exit_code_7(launch: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = launch.server(port=port)
        assert server.end() == ExitCode.PORT_IN_USE
    assert server.said[-1].startswith(f"fkd-server: error: cannot listen on 127.0.0.1:{port}")
    assert "Traceback" not in server.stderr


@pytest.mark.scenario(35)
def test_an_extractor_that_is_not_the_one_its_json_describes_ends_with_exit_code_3(
    world: World, launch: Launcher, tmp_path: Path
) -> None:
    artifact = world.extractor.read_bytes()
    header, body = split_safetensors(artifact, name="extractor")
    weights = join_safetensors(header, body, {})
    (tmp_path / "theirs.safetensors").write_bytes(weights)
    description = json.loads(read_extractor_spec(artifact).to_json())
    other = {**description, "sha256": sha256_hex(artifact)}
    (tmp_path / "theirs.json").write_text(json.dumps(other))
    anchors = world.folder / "digits" / "anchors"
    server = launch.start(
        "server",
        ["fkd_server.cli", "--extractor", str(tmp_path / "theirs.safetensors"), "--anchors", str(anchors),
         "--port", "0", "--runs", str(tmp_path / "run")],
    )  # fmt: skip
    assert server.end() == ExitCode.DATA
    assert len(server.said) == 1
    assert sha256_hex(weights) in server.said[0]


def test_a_folder_that_was_never_prepared_ends_with_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(["--prepared", str(tmp_path), "--runs", str(tmp_path / "run")]) == ExitCode.DATA
    assert "fkd-server prepare" in the_sentence(capsys)


@pytest.mark.parametrize("missing", ["anchors", "public"])
def test_a_shard_the_coordinator_needs_and_cannot_find_ends_with_exit_code_3(
    missing: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left of a run that never started."""
    places = {"anchors": world.folder / "digits" / "anchors", "public": world.folder / "digits" / "anchors"}
    places[missing] = tmp_path / "nowhere"
    flags = [word for name, folder in places.items() for word in (f"--{name}", str(folder))]
    runs = tmp_path / "run"
    assert (
        server_main(["--extractor", "pretrain", "--runs", str(runs), "--port", "0", *flags]) == ExitCode.DATA
    )
    sentence = the_sentence(capsys)
    assert f"no {missing} shard at {places[missing]}" in sentence
    assert f"--{missing}" in sentence
    assert list(runs.iterdir()) == []


# -- clients ------------------------------------------------------------------------------------------


@pytest.mark.scenario(33)
def test_an_unreachable_coordinator_ends_with_exit_code_5_once_patience_is_over(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = time.monotonic()
    arguments = ["--data", str(world.sites / "a"), "--server", address, "--threads", "1"]
    assert client_main([*arguments, "--patience-s", "1"]) == ExitCode.UNREACHABLE
    assert 1 <= time.monotonic() - started < 30
    the_sentence(capsys)


@pytest.fixture(scope="module")
def gathering(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A coordinator that waits for more clients than will ever come."""
    launch = Launcher(tmp_path_factory.mktemp("gathering"), world.cache, world.prepared)
    try:
        yield launch.server("--min-clients", "9")
    finally:
        launch.stop()


def empty_folder(world: World, folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def no_samples(world: World, folder: Path) -> Path:
    shard = read_shard(world.sites / "a")
    assert shard.labels is not None
    write_shard(folder / "none", shard.images[:0], shard.labels[:0], classes=shard.classes, source="test")
    return folder / "none"


def unlabelled(world: World, folder: Path) -> Path:
    return world.folder / "digits" / "anchors"


def label_outside_the_classes(world: World, folder: Path) -> Path:
    shutil.copytree(world.sites / "a", folder / "odd")
    labels = np.load(folder / "odd" / LABELS_FILE)
    labels[3] = 10
    np.save(folder / "odd" / LABELS_FILE, labels)
    return folder / "odd"


def too_many_corrupt_images(world: World, folder: Path) -> Path:
    return world.sites / "pictures"  # 1 of 24, and 1 % is accepted


@pytest.mark.scenario(38, 39, 40)
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (empty_folder, "empty"),
        (no_samples, "no samples"),
        (unlabelled, LABELS_FILE),
        (label_outside_the_classes, "10"),
        (too_many_corrupt_images, "broken.png"),
    ],
)
def test_data_that_cannot_be_used_ends_with_exit_code_3(
    make: Callable[[World, Path], Path],
    named: str,
    world: World,
    gathering: Program,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Scenarios 38-40."""
    arguments = ["--data", str(make(world, tmp_path)), "--server", address_of(gathering), "--threads", "1"]
    since = gathering.now()
    assert client_main([*arguments, "--name", "site", "--runs", str(tmp_path)]) == ExitCode.DATA
    assert named in the_sentence(capsys)
    assert gathering.wait_for("client_left", since=since)["reason"] == "BAD_DATA"


@pytest.mark.scenario(38)
def test_data_that_is_not_there_is_refused_before_the_coordinator_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenario 38: a typo does not cost the patience of waiting for a coordinator."""
    arguments = ["--data", str(tmp_path / "nowhere"), "--server", "127.0.0.1:1", "--patience-s", "100"]
    assert client_main(arguments) == ExitCode.DATA
    assert "nowhere" in the_sentence(capsys)


@pytest.mark.parametrize("name", ["nowhere", "anchors"])
def test_a_test_shard_that_cannot_be_used_is_refused_before_the_run(
    name: str, world: World, gathering: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    since, arguments = gathering.now(), ["--data", str(world.sites / "a"), "--server", address_of(gathering)]
    test = world.folder / "digits" / name
    assert client_main([*arguments, "--threads", "1", "--test", str(test)]) == ExitCode.DATA
    assert name in the_sentence(capsys)
    assert gathering.now() == since


@pytest.mark.scenario(39)
def test_a_client_whose_classes_do_not_fit_ends_with_exit_code_3_and_the_run_goes_on(
    world: World, launch: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = launch.server("--rounds", "1", "--min-clients", "1")
    shard = read_shard(world.sites / "a")
    assert shard.labels is not None
    letters = tuple("abcdefghij")
    write_shard(tmp_path / "letters", shard.images, shard.labels, classes=letters, source="test")
    common = ["--server", address_of(server), "--threads", "1", "--runs", str(tmp_path / "run")]
    assert client_main(["--data", str(tmp_path / "letters"), *common]) == ExitCode.DATA
    assert "class" in the_sentence(capsys)
    assert server.wait_for("client_left")["client"] == "letters"
    assert client_main(["--data", str(world.sites / "b"), *common]) == ExitCode.OK
    assert server.end() == ExitCode.OK


def the_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line a program says to a person; its log lines are JSON."""
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, lines
    assert ": error: " in lines[0]
    return lines[0]


@pytest.mark.parametrize("flag", ["--runs", "--cache", "--artifacts"])
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    flag: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    places = {
        "--runs": tmp_path / "runs",
        "--cache": tmp_path / "cache",
        "--artifacts": tmp_path / "artifacts",
    }
    places[flag] = tmp_path / "file" / "inside"
    flags = [word for name, folder in places.items() for word in (name, str(folder))]
    data = str(world.sites / "a")
    assert client_main(["--data", data, "--server", "127.0.0.1:1", *flags]) == ExitCode.USAGE
    assert flag in the_sentence(capsys)
