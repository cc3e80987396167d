"""The tables that a finished run prints."""

from __future__ import annotations

from typing import Any

import pytest

from fkd_server.result_tables import print_summary


def count(up: int, down: int) -> dict[str, Any]:
    return {"payload": {"up": up, "down": down}, "message": {"up": up + 1, "down": down + 1}}


def test_the_steps_of_a_refinement_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {
        "moments": count(900, 90),
        "refine_1": count(30, 3),
        "refine_10": count(40, 4),
        "votes": count(0, 7),
    }
    seconds = {"moments": 1.5, "refine_1": 0.25, "refine_10": 0.5, "votes": 0.1}
    summary = {
        "run_id": "r",
        "state": "completed",
        "accuracy": {},
        "bytes": {**count(970, 104), "by_phase": parts},
        "seconds": {"phases": seconds, "total": 2.35},
    }
    print_summary(summary, None)
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if "│" in line
    ]
    assert rows == [
        ["moments", "900", "90", "901", "91"],
        ["refine", "70", "7", "72", "9"],
        ["votes", "0", "7", "1", "8"],
        ["total", "970", "104", "971", "105"],
        ["moments", "1.5"],
        ["refine", "0.8"],
        ["votes", "0.1"],
        ["since this start", "2.4"],
    ]
