"""Runs commands on hosts and writes down, as Markdown, what a person at those terminals would see."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from .hosts import Host, Result, run_here

SHOWN_LINES = 30
"""Longest output that is shown whole."""
_TITLE = """# Three hospitals: a transcript

What `python -m examples.three_hospitals` typed and saw, on one machine; `examples/three_hospitals/README.md` says how.

"""


class StoryError(Exception):
    """Something did not go as the example says it does."""


class Transcript:
    """The example's output, on standard output and in a file, as it happens."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w")
        self._in_block = False
        self._write(_TITLE)

    def heading(self, text: str) -> None:
        """Begin a part of the story."""
        self._close_block()
        self._write(f"## {text}\n\n")

    def say(self, text: str) -> None:
        """A paragraph."""
        self._close_block()
        self._write(f"{text}\n\n")

    def run(self, host: Host, command: str, *, code: int = 0, within_s: float = 120.0) -> str:
        """Run a command on a host and show it with its output.

        Args:
            host: Where.
            command: For a shell, in /srv.
            code: The exit code it must end with; shown if it is not 0.
            within_s: Longest wait.

        Returns:
            Its output.

        Raises:
            StoryError: It ended otherwise.
        """
        return self._shown(f"{host.name}$ {command}", host.run(command, within_s=within_s), code)

    def run_on_switch(self, command: str) -> str:
        """Run a command where the cables meet.

        Raises:
            StoryError: It failed.
        """
        return self._shown(f"switch$ {command}", run_here(command), 0)

    def start(self, host: Host, command: str) -> subprocess.Popen[bytes]:
        """Start a program on a host that goes on, and show its command."""
        self._open_block()
        self._write(f"{host.name}$ {command} &\n")
        return host.start(command)

    def close(self) -> None:
        """The story is over."""
        self._close_block()
        self._file.close()

    def _shown(self, prompt: str, result: Result, code: int) -> str:
        self._open_block()
        lines = result.output.rstrip().splitlines()
        left_out = len(lines) - SHOWN_LINES
        shown = lines if left_out <= 0 else [*lines[: SHOWN_LINES - 1], f"… {left_out + 1} more lines"]
        if code:
            shown.append(f"(exit code {result.code})")
        self._write("\n".join([prompt, *shown]) + "\n")
        if result.code != code:
            raise StoryError(
                f"{prompt}: expected exit code {code}, got {result.code}: {result.output[-2000:]}"
            )
        return result.output

    def _open_block(self) -> None:
        if not self._in_block:
            self._write("```console\n")
            self._in_block = True

    def _close_block(self) -> None:
        if self._in_block:
            self._write("```\n\n")
            self._in_block = False

    def _write(self, text: str) -> None:
        print(text, end="", flush=True)
        self._file.write(text)
        self._file.flush()


def wait_until(what: str, holds: Callable[[], bool], *, within_s: float = 60.0, every_s: float = 0.5) -> None:
    """Look until something holds.

    Raises:
        StoryError: It does not within the time.
    """
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise StoryError(f"not within {within_s:.0f} s: {what}")
        time.sleep(every_s)
