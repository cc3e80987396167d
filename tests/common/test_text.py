"""Text from elsewhere: what a terminal and a spreadsheet are shown of it, and paths that flags name."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from fkd_common.csv_text import csv_cell
from fkd_common.errors import DataError
from fkd_common.given_path import given_path
from fkd_common.printable import printable
from fkd_common.program import run_program
from fkd_common.stop_signals import stop_signals_raised


@pytest.mark.parametrize("text", ["=1+1", "+1", "-rf", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "－1"])
def test_what_a_spreadsheet_would_compute_becomes_text(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["a=b", "photo.png", "'quoted", "", -1, -0.5, None, True])
def test_what_is_no_formula_stays_as_it_is(value: object) -> None:
    assert csv_cell(value) is value


@pytest.mark.parametrize("letter", ["\x1b", "\x07", "\n", "\r", "\x9b", "\u202e", "\u2028", "\udcff", "\x7f"])
def test_nothing_that_a_terminal_obeys_is_printable(letter: str) -> None:
    assert printable(f"a{letter}b") == "a b"
    assert printable(f"a{letter}bc", 3) == "a b"


def test_a_programs_last_sentence_is_one_line_that_a_terminal_does_not_obey(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body() -> int:
        raise DataError("no class \x1b]0;pwn\x07here\nand there")

    assert run_program("fkd-x", "client", body) == 3
    assert capsys.readouterr().err == "fkd-x: error: no class  ]0;pwn here and there\n"


def test_a_path_that_is_empty_is_not_the_current_folder() -> None:
    assert given_path(".") == Path()
    assert given_path("a/b") == Path("a/b")
    with pytest.raises(ArgumentTypeError, match="is a variable not set"):
        given_path("")


STOPPED = """
import os, signal, sys
from fkd_common.program import run_program
from fkd_common.stop_signals import stop_signals_raised
signal.signal(signal.SIGINT, signal.default_int_handler)  # as on a terminal: a job in the background ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if sys.argv[2] == "ignored":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

def body():
    with stop_signals_raised():
        try:
            os.kill(os.getpid(), int(sys.argv[1]))
        finally:
            print("put in order", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

sys.exit(run_program("fkd-x", "client", body))
"""


@pytest.mark.parametrize(
    "number, how, code, said",
    [
        (15, "", 143, "fkd-x: error: stopped on request\n"),
        (1, "", 129, "fkd-x: error: stopped on request\n"),
        (2, "", 130, "fkd-x: error: stopped on request\n"),
        (1, "ignored", -15, ""),  # under nohup it goes on; behind the block signals are as they were
    ],
)
def test_a_signal_lets_things_be_put_in_order(number: int, how: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", STOPPED, str(number), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "put in order\n", said)


def test_in_another_thread_signals_are_nobodys_business() -> None:
    from threading import Thread

    seen: list[bool] = []

    def work() -> None:
        with stop_signals_raised():
            seen.append(True)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
