"""A preparation at work, as the coordinator follows it; the torch work itself is tested end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_common.errors import ExitCode
from fkd_common.logs import LogFormat, configure_logs
from fkd_server.cli import main
from fkd_server.prepare import Preparation

LINE = '{"activity": "pretraining the extractor", "percent": 42, "event": "preparing", "timestamp": "x"}'


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_noticed_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    given = str(tmp_path / out)
    arguments = ["--anchors", str(tmp_path), "--extractor", "pretrain", "--out", given]
    assert main(["prepare", *arguments]) == ExitCode.USAGE
    assert f"--out {given}: expected a folder to write to" in capsys.readouterr().err


def test_what_the_preparing_process_says_is_logged_in_the_format_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs(LogFormat.TEXT)
    preparation = Preparation()
    preparation.pass_on(f"{LINE}\n")
    preparation.pass_on("a library warns\n")
    assert preparation.activity == "pretraining the extractor, 42 %"
    said = capsys.readouterr().err
    assert "preparing            activity='pretraining the extractor' percent=42\n" in said
    assert "a library warns\n" in said
    assert "timestamp" not in said
