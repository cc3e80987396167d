"""Shell completion: a real bash completes the program's own words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fkd_common.errors import ExitCode
from fkd_common.program import OneSentenceParser
from fkd_server.cli import VERBS, main


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "fkd-server.bash"
    with path.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == ExitCode.OK
    return path


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers in the place of the last word."""
    typed = " ".join(f"'{word}'" for word in ("fkd-server", *words))
    code = (
        f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; "
        '$(complete -p fkd-server | sed "s/.*-F \\([^ ]*\\).*/\\1/") && echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.split())


def test_every_verb_is_offered(script: Path) -> None:
    assert set(VERBS) <= completed(script, "")


@pytest.mark.parametrize(
    "words, offered",
    [
        (["st"], {"status", "stop"}),
        (["status", "--wa"], {"--watch"}),
        (["certs", "re"], {"renew", "revoke"}),
        (["certs", "issue", "--ro"], {"--role"}),
        (["--local-s"], {"--local-steps"}),
    ],
)
def test_words_and_flags_are_completed(script: Path, words: list[str], offered: set[str]) -> None:
    assert completed(script, *words) == offered


@pytest.mark.parametrize(
    "words", [["export", "--out"], ["status", "--tls"], ["--runs"], ["prepare", "--anchors"]]
)
def test_paths_are_completed(script: Path, words: list[str]) -> None:
    """By the shell's own function for files, which the script calls for these flags."""
    name = "_".join(word.replace("-", "_") for word in ("_shtab_fkd_server", *words))
    assert f"{name}_COMPGEN=_shtab_compgen_files" in script.read_text()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == ExitCode.OK
    assert "fkd-server" in capsys.readouterr().out


def test_an_unknown_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "command.com"]) == ExitCode.USAGE
    assert "'bash'" in capsys.readouterr().err


def test_a_command_without_a_parser_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="parses nothing"):
        OneSentenceParser.of(lambda arguments: None)
