"""Where a setting comes from: flag, environment, file, default; and what is said when one is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from fkd_common.errors import ExitCode, UsageError
from fkd_common.settings import load_settings
from fkd_server.settings import ServerSettings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)


def load(*flags: str, use_environment: bool = True) -> ServerSettings:
    return load_settings(ServerSettings, "fkd-server", list(flags), use_environment=use_environment)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("rounds: 11\nport: 1111\nhidden: [8, 4]\ndropout: 0.1,0.2\n")
    return path


def test_the_default_holds_when_nothing_is_said() -> None:
    assert (load().rounds, load().port) == (100, 50051)


def test_the_file_overrides_the_default(file: Path) -> None:
    settings = load("--config", str(file))
    assert (settings.rounds, settings.hidden, settings.dropout) == (11, (8, 4), (0.1, 0.2))


def test_the_environment_overrides_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_ROUNDS", "22")
    settings = load("--config", str(file))
    assert (settings.rounds, settings.port) == (22, 1111)


def test_a_flag_overrides_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_ROUNDS", "22")
    monkeypatch.setenv("FKD_PORT", "2222")
    settings = load("--config", str(file), "--rounds", "33")
    assert (settings.rounds, settings.port) == (33, 2222)


def test_the_file_may_be_named_in_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_CONFIG", str(file))
    assert load().rounds == 11


def test_the_environment_can_be_left_unread(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_ROUNDS", "22")
    monkeypatch.setenv("FKD_CONFIG", str(file))
    settings = load(use_environment=False)
    assert (settings.rounds, settings.port) == (100, 50051)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_ROUNDS", "")
    assert load().rounds == 100


def test_lists_take_commas_in_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_LAMBDA_GRID", "1,10")
    settings = load("--hidden", "8,4", "--dropout", "0.1,0.2", "--correction", "anchors")
    assert (settings.hidden, settings.lambda_grid) == ((8, 4), (1.0, 10.0))
    assert settings.correction == ("anchors",)


def test_what_is_printed_can_be_read_back(tmp_path: Path) -> None:
    settings = load("--rounds", "5", "--hidden", "8", "--dropout", "0", "--runs", "elsewhere")
    path = tmp_path / "printed.yaml"
    path.write_text(settings.to_yaml())
    again = load("--config", str(path))
    assert again.to_yaml() == settings.to_yaml()
    assert (again.rounds, again.hidden, again.runs) == (5, (8,), Path("elsewhere"))
    assert not {"config", "print_config"} & yaml.safe_load(path.read_text()).keys()


def one_sentence(*flags: str) -> str:
    with pytest.raises(UsageError) as refused:
        load(*flags)
    assert refused.value.exit_code is ExitCode.USAGE
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_an_unknown_flag_is_named() -> None:
    assert "--roundz" in one_sentence("--roundz", "5")


def test_an_unknown_key_in_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("roundz: 5\n")
    text = one_sentence("--config", str(path))
    assert "unknown key roundz" in text
    assert str(path) in text


@pytest.mark.parametrize("flags", [("--rounds", "0"), ("--rounds", "many"), ("--port", "70000")])
def test_a_wrong_value_is_shown_with_its_key(flags: tuple[str, str]) -> None:
    text = one_sentence(*flags)
    assert text.startswith(f"{flags[0].removeprefix('--')} = ")
    assert flags[1] in text


def test_a_wrong_value_in_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_ROUNDS", "0")
    assert "rounds" in one_sentence()


def test_settings_that_contradict_each_other_are_explained() -> None:
    text = one_sentence("--hidden", "8,4", "--dropout", "0.1")
    assert text == "hidden has 2 layers and dropout 1: give one dropout per layer"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "none.yaml cannot be read" in one_sentence("--config", str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert "expected `key: value` lines" in one_sentence("--config", str(path))


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("rounds: [1\n")
    assert "cannot be read" in one_sentence("--config", str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [1]\nhidden: *a\n", "an alias .* is not taken here"),
        ("hidden: " + "[" * 2000, "more than 20 levels"),
        ("hidden: !!set {a}\n", "a tag .* is not taken here"),
        ("rounds: 2020-99-99\n", "month must be in 1..12"),
        ('name: "\\ud800"\n', "half a character"),
        ("# " + "x" * 1_000_000, "too many for a file of settings"),
    ],
)
def test_a_file_that_would_grow_or_break_is_refused_before_it_is_built(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert re.search(f"{path} cannot be read: .*{said}", one_sentence("--config", str(path)))


@pytest.mark.parametrize(
    ("options", "said"),
    [("mu=1,mu=2", "mu is there twice"), ("mu", "expected NAME=VALUE"), ("=2", "expected NAME=VALUE")],
)
def test_options_are_a_value_for_each_name(options: str, said: str) -> None:
    assert said in one_sentence("--options", options)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# nothing\n")
    assert load("--config", str(path)).rounds == 100


def test_help_shows_values_as_a_person_types_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_settings(ServerSettings, "fkd-server", ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "{extend,abort}" in text
    assert "(default: anchors,moments)" in text
    assert "(default: int4)" in text
    assert "(default: None)" not in text
    assert "Correction." not in text


def test_a_misspelt_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FKD_ROUND", "3")
    with pytest.raises(UsageError, match="FKD_ROUND, which is no setting: did you mean FKD_ROUNDS"):
        load_settings(ServerSettings, "fkd-server", [])


@pytest.mark.parametrize(
    "name", ["FKD_SERVER", "FKD_DATA", "FKD_DEVICE", "FKD_CACHE", "FKD_FAILPOINT", "FKD_NAME"]
)
def test_other_programs_variables_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    load_settings(ServerSettings, "fkd-server", [])


def test_a_key_that_is_there_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("rounds: 3\nseed: 1\nrounds: 4\n")
    with pytest.raises(UsageError, match="rounds is there twice"):
        load_settings(ServerSettings, "fkd-server", ["--config", str(path)])
