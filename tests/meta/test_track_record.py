"""Every test that the track record names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_names_tests_that_exist() -> None:
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", written))
    rows = [
        line for line in (ROOT / "docs/track-record.md").read_text().splitlines() if line.startswith("| ")
    ][1:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.rsplit("|", 2)[1])
        assert named, row
        assert set(named) <= defined, row
