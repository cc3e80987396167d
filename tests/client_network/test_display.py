"""What a client shows: other people's words are only words."""

from __future__ import annotations

from fkd_client.display import TerminalDisplay
from fkd_common.printable import printable


def test_what_others_say_is_not_markup() -> None:
    display = TerminalDisplay("a")
    try:
        display.wait("b is at [/nope] 5%")
        display.show(0.5, "[red")
    finally:
        display.close()


def test_free_text_becomes_one_printable_line() -> None:
    assert printable("train\x1b[31ming\nnow" + "x" * 100, 20) == "train [31ming nowxxxx"[:20]
