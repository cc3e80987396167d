"""What a client shows: what it does and for what; other people's words are only words."""

from __future__ import annotations

from structlog.testing import capture_logs

from fkd_client.display import LogDisplay, TerminalDisplay
from fkd_common.printable import printable
from fkd_common.service_manager import ServiceManager


def test_what_others_say_is_not_markup() -> None:
    display = TerminalDisplay("a")
    try:
        display.wait("b is at [/nope] 5%")
        display.show(0.5, "[red")
    finally:
        display.close()


def test_a_line_says_for_which_round_and_phase_the_work_is() -> None:
    with capture_logs() as said:
        display = LogDisplay("a", ServiceManager(""))
        display.show(0.25, "distilling", round=3, phase="student")
        display.show(0.0, "reading data")
    assert [{key: line[key] for key in line if key != "log_level"} for line in said] == [
        {
            "event": "working",
            "client": "a",
            "round": 3,
            "phase": "student",
            "activity": "distilling",
            "percent": 25,
        },
        {"event": "working", "client": "a", "activity": "reading data", "percent": 0},
    ]


def test_free_text_becomes_one_printable_line() -> None:
    assert printable("train\x1b[31ming\nnow" + "x" * 100, 20) == "train [31ming nowxxxx"[:20]
