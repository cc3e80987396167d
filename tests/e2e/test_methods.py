"""Other methods than FKD-RTM with real processes: finished, resumed, predicted with, exported or refused."""

from __future__ import annotations

import csv
import json
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from fkd_client.cli import main as client_main
from fkd_client.exchange import PERSONAL_FILE
from fkd_common.artifacts import sha256_hex
from fkd_common.errors import ExitCode
from fkd_common.model_file import decode_model, decode_published
from fkd_server.cli import main as server_main

from .conftest import World
from .programs import Launcher, Program, free_port

pytestmark = pytest.mark.e2e

CLIENTS = ("a", "b")


@dataclass(frozen=True)
class Played:
    """What a run left behind."""

    folder: Path
    method: str

    @property
    def model(self) -> Path:
        return self.folder / "model.safetensors"

    def personal(self, client: str) -> Path:
        return self.folder / f"client-{client}" / PERSONAL_FILE

    @property
    def outcome(self) -> dict[str, str | None]:
        """Hashes of everything that was learnt."""
        summary = json.loads((self.folder / "summary.json").read_text())
        own = {name: sha256_hex(self.personal(name).read_bytes()) for name in CLIENTS}
        return {"global": summary["model_hash"], **own}


def play(
    world: World,
    folder: Path,
    method: str,
    *flags: str,
    rounds: int = 2,
    sites: tuple[str, ...] = CLIENTS,
    server_dies: str = "",
    sites_die: Mapping[str, str] = MappingProxyType({}),
) -> Played:
    """A whole run; the coordinator or a site that dies at a place is started again."""
    launch = Launcher(folder, world.cache, world.prepared)
    whole = ("--method", method, "--rounds", str(rounds), "--min-clients", str(len(sites)), *flags)
    patient = ("--quorum", "1", "--heartbeat-limit-s", "20")
    try:
        port = free_port()  # known beforehand, so that nobody waits for the others to start
        address = f"127.0.0.1:{port}"
        server = launch.server(*whole, *patient, port=port, failpoint=server_dies)
        clients = {
            name: launch.client(world.sites / name, address, failpoint=sites_die.get(name, ""))
            for name in sites
        }
        dying = {**{name: clients[name] for name in sites_die}, **({"": server} if server_dies else {})}
        while dying:  # in whatever order: one may wait for the other to be there again
            for name in [name for name, program in dying.items() if program.ended]:
                assert dying.pop(name).end() == -signal.SIGKILL
                if name:
                    clients[name] = launch.client(world.sites / name, address)
                else:
                    server = launch.server(*whole, *patient, port=port)
            time.sleep(0.05)
        check_ends(server, *clients.values())
        return Played(launch.runs / "run", method)
    finally:
        launch.stop()


def check_ends(*programs: Program) -> None:
    for program in programs:
        assert program.end() == ExitCode.OK
        assert "Traceback" not in program.stderr


@pytest.fixture(scope="module")
def fedavg(world: World, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(world, tmp_path_factory.mktemp("fedavg"), "fedavg")


@pytest.fixture(scope="module")
def fedmd(world: World, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(world, tmp_path_factory.mktemp("fedmd"), "fedmd")


@pytest.fixture(scope="module")
def fed3r(world: World, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(world, tmp_path_factory.mktemp("fed3r"), "fed3r", sites=("a",))


@pytest.fixture
def image(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A picture; what a person makes of it lands in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    yield next(path for path in (world.sites / "pictures").rglob("*.png") if path.name != "broken.png")


def predicted(capsys: pytest.CaptureFixture[str], image: Path, model: Path) -> dict[str, object]:
    """What `fkd-client predict` says of an image, and on whose behalf."""
    capsys.readouterr()
    arguments = ["predict", str(image), "--model", str(model), "--json", "--threads", "1", "--device", "cpu"]
    assert client_main(arguments) == ExitCode.OK
    said = capsys.readouterr()
    return {**json.loads(said.out), "about": said.err}


# -- a run --------------------------------------------------------------------------------------------


def test_every_round_is_one_exchange_and_both_ledgers_agree_row_by_row(fedavg: Played) -> None:
    """But for round 0: sites that are there before the coordinator ask in vain."""
    rounds = [json.loads(line) for line in (fedavg.folder / "rounds.jsonl").read_text().splitlines()]
    assert [list(record["phases"]) for record in rounds] == [["exchange"], ["exchange", "personal"]]
    assert all(record["phases"]["exchange"]["returned"] == list(CLIENTS) for record in rounds)
    of_server = rows(fedavg.folder / "ledger.csv")
    assert {row["client"] for row in of_server} == set(CLIENTS)
    for name in CLIENTS:
        of_client = rows(fedavg.folder / f"client-{name}" / "ledger.csv")
        assert {row["phase"] for row in of_client} == {"setup", "control", "exchange", "personal"}
        booked = [row for row in of_server if row["client"] == name]
        assert [row for row in of_client if row["round"] != "0"] == [
            row for row in booked if row["round"] != "0"
        ]


def test_the_card_names_the_method(fedavg: Played) -> None:
    assert "FedAvg" in (fedavg.folder / "MODEL_CARD.md").read_text()


def test_options_reach_the_sites(world: World, tmp_path: Path) -> None:
    run = play(world, tmp_path, "fedprox", "--options", "mu=0.5", rounds=1, sites=("a",))
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["options"] == {"mu": 0.5}
    assert decode_published(run.personal("a").read_bytes()).header.config.options == {"mu": 0.5}


@pytest.mark.slow
def test_a_coordinator_killed_in_an_exchange_ends_with_the_models_of_an_undisturbed_run(
    world: World, fedavg: Played, tmp_path: Path
) -> None:
    disturbed = play(world, tmp_path, "fedavg", server_dies="phase.folded@exchange:kill:2")
    assert disturbed.outcome == fedavg.outcome
    assert fedavg.outcome["global"] is not None


@pytest.mark.slow
def test_with_codecs_too_killed_programs_end_with_the_models_of_an_undisturbed_run(
    world: World, fedavg: Played, tmp_path: Path
) -> None:
    """An upload that is packed again is the same, and so is the model that it is a difference to."""
    codecs = ("--update-codec", "int4", "--model-codec", "int8")
    whole = play(world, tmp_path / "whole", "fedavg", *codecs)
    disturbed = play(
        world,
        tmp_path / "disturbed",
        "fedavg",
        *codecs,
        server_dies="phase.folded@exchange:kill:1",
        sites_die={"a": "SubmitExchange.calling:kill:2"},
    )
    assert disturbed.outcome == whole.outcome
    up = {
        run.folder: sum(int(row["payload_up"]) for row in rows(run.folder / "ledger.csv"))
        for run in (fedavg, whole)
    }
    assert up[whole.folder] < up[fedavg.folder] / 5


def test_sites_killed_about_an_upload_end_with_the_private_models_of_an_undisturbed_run(
    world: World, fedmd: Played, tmp_path: Path
) -> None:
    """Their networks of the round before are still there, and train on from there once: not twice, not never."""
    about = {"a": "SubmitExchange.calling:kill:2", "b": "SubmitExchange.answered:kill:2"}
    disturbed = play(world, tmp_path, "fedmd", sites_die=about)
    assert disturbed.outcome == fedmd.outcome
    assert fedmd.outcome["global"] is None


# -- its models ---------------------------------------------------------------------------------------


def test_a_model_of_averaged_weights_predicts_and_is_exported_like_a_student(
    fedavg: Played, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode_model(fedavg.model.read_bytes()).header.published == "student"
    of_run = predicted(capsys, image, fedavg.folder)
    assert server_main(["export", "--run", str(fedavg.folder), "--out", "exported.safetensors"]) == 0
    exported = predicted(capsys, image, Path("exported.safetensors"))
    assert (exported["class"], exported["probability"]) == (of_run["class"], of_run["probability"])


def test_a_methods_own_model_predicts_and_its_export_is_refused_with_one_sentence(
    fed3r: Played, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "published global model of fed3r" in str(predicted(capsys, image, fed3r.folder)["about"])
    assert server_main(["export", "--run", str(fed3r.folder), "--out", "out.onnx"]) == ExitCode.DATA
    assert "this is a model of fed3r, whose tensors only fed3r itself can score" in the_sentence(capsys)
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize("name", ["fedavg", "fedmd", "fed3r"])
def test_a_sites_own_model_predicts(
    name: str, image: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    run: Played = request.getfixturevalue(name)
    said = predicted(capsys, image, run.personal("a").parent)
    assert f"personal model of {name}" in str(said["about"])
    report = json.loads((run.personal("a").parent / "report.json").read_text())
    assert report["personal"]["chosen"] == "personal"


# -- mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--method", "fedavgg"], "method 'fedavgg' is not installed here: did you mean fedavg?"),
        (["--method", "fedprox", "--options", "nu=1"], "options of fedprox: nu"),
        (["--method", "fedprox", "--options", "mu=-1"], "options of fedprox: mu"),
        (["--method", "fedprox", "--options", "mu"], "expected NAME=VALUE"),
        (["--method", "fedmd", "--model", "full"], "fedmd exchanges no whole network"),
        (["--method", "fedmd", "--update-codec", "int4"], "fedmd with model head has no network that codecs"),
        (["--method", "fedavg", "--secure-aggregation"], "only fkd-rtm has it"),
        (["--options", "mu=1"], "fkd-rtm has no options"),
    ],
)
def test_a_wrong_method_or_option_ends_with_exit_code_2_before_anything_is_prepared(
    flags: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ["--port", "0", "--runs", str(tmp_path / "run"), "--prepared", str(tmp_path / "absent")]
    assert server_main([*flags, *elsewhere]) == ExitCode.USAGE
    assert named in the_sentence(capsys)
    assert not (tmp_path / "run").exists()


def the_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line said to a person."""
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    return sentence


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))
