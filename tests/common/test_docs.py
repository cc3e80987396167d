"""What the documents say of themselves: no placeholders, no dead links, every program's exit code listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fkd_common.errors import ExitCode

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_nothing_is_left_to_fill_in(document: Path) -> None:
    assert re.findall(r"@[A-Z_]+@|TODO|FIXME", document.read_text()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_every_exit_code_is_in_the_readme() -> None:
    listed = {
        int(code) for code in re.findall(r"^\| (\d+) \| ", (ROOT / "README.md").read_text(), re.MULTILINE)
    }
    assert listed == {int(code) for code in ExitCode}


def test_every_make_target_named_in_a_document_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"\bmake ([a-z][a-z0-9-]+)", path.read_text())}
    assert named - targets <= {"sure"}
