"""Lines of the log: what peers say of themselves is shown, and never obeyed by a terminal."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "site\x1b[31m",
    "a\nb 12:00:00 [info] forged",
    "\r\x08\x7f\x9b31m",
    "\u202egnp.exe",
    "\u2028next",
    "half \ud800",
)


def logged(form: str, value: str) -> str:
    """One event of a process, with the value everywhere a value can be."""
    program = (
        "import sys, json, structlog\n"
        "from fkd_common.logs import LogFormat, configure_logs\n"
        f"configure_logs(LogFormat({form!r}))\n"
        "value = json.loads(sys.argv[1])\n"
        "structlog.get_logger().warning('event-' + value, plain=value, spaced=value + ' x', listed=[value], "
        "mapped={value: value}, error=ValueError(value), **{'key' + value: 1})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(value)], capture_output=True, timeout=30, check=True
    )
    return done.stderr.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("value", HOSTILE)
def test_text_has_no_character_that_a_terminal_obeys(value: str) -> None:
    text = logged("text", value)
    assert text.endswith("\n")
    assert text[:-1].isprintable(), ascii(text)


@pytest.mark.parametrize("value", HOSTILE)
def test_json_is_one_line_that_says_exactly_what_came(value: str) -> None:
    text = logged("json", value)
    assert text.count("\n") == 1
    assert json.loads(text)["plain"] == value


def test_letters_of_all_languages_stay_as_they_are() -> None:
    assert "Städtisches-Klinikum-東京" in logged("text", "Städtisches-Klinikum-東京")
