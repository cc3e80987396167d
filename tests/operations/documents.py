"""Reads the guide for operators: its tables, and the commands it tells people to type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
GUIDE, MESSAGES, METRICS = (DOCS / f"{name}.md" for name in ("operations", "messages", "metrics"))


def section(document: Path, heading: str) -> str:
    """The text under a heading, as far as the next one of its level."""
    text = document.read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{document.name} has no section {heading}"
    return found[2]


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in a text, headings left out; cells without their backticks."""
    cells = [
        [cell.strip().strip("`") for cell in line.strip().strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    rules = [index for index, row in enumerate(cells) if set("".join(row)) <= set("-:|")]
    dropped = {index - offset for index in rules for offset in (0, 1)}
    return [row for index, row in enumerate(cells) if index not in dropped]


@dataclass(frozen=True)
class Commands:
    """A block of commands."""

    where: str
    """On which host: the word after `bash`."""
    text: str
    line: int


def commands() -> list[Commands]:
    """Every block of the guide, in its order."""
    text = GUIDE.read_text()
    blocks = re.finditer(r"^```bash ?(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Commands(block[1], block[2], text.count("\n", 0, block.start()) + 1) for block in blocks]
