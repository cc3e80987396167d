"""What `fkd-shards` shows of names that come out of somebody's data."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fkd_shards.cli import main


def test_no_name_in_the_data_reaches_the_terminal_as_an_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        path = tmp_path / "photos" / ("cat" if number % 2 else "[b]dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(path)
    (tmp_path / "photos/cat/\x1b[2J\x1b]0;pwn\x07bad.png").write_bytes(b"")
    flags = ["--clients", "2", "--partition", "iid", "--seed", "0", "--anchors", "5", "--max-bad", "0.1"]
    out = tmp_path / "out"
    assert main(["create", "--source", str(tmp_path / "photos"), "--out", str(out), *flags]) == 0
    manifest = out / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(tmp_path), "\\u001b[31m" + str(tmp_path)))
    assert main(["inspect", str(out)]) == 0
    told = capsys.readouterr()
    assert all(line.isprintable() for line in (told.out + told.err).split("\n"))
    assert "bad.png: empty file" in told.err
    assert "[b]dog" in told.out


@pytest.mark.parametrize("flag", ["--out", "folder"])
def test_a_variable_that_is_not_set_is_no_name_of_the_current_folder(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create = [
        "create",
        "--source",
        "digits",
        "--clients",
        "2",
        "--partition",
        "iid",
        "--seed",
        "0",
        "--out",
        "",
    ]
    assert main(create if flag == "--out" else ["inspect", ""]) == 2
    assert "a path expected, got nothing: is a variable not set?" in capsys.readouterr().err
