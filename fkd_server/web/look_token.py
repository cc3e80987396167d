"""The word that lets in at the second port, as its file holds it now; decides nothing about who shows it."""

from __future__ import annotations

from pathlib import Path

import structlog

from fkd_common.errors import UsageError

MIN_TOKEN_CHARS, MAX_TOKEN_CHARS = 16, 512

_Stamp = tuple[int, int, int]


class LookToken:
    """A word, or a file that holds one: replaced while the coordinator runs, it counts from the next request on."""

    def __init__(self, given: str) -> None:
        """Read it.

        Args:
            given: As on the command line: the word itself, or @FILE.

        Raises:
            UsageError: The file cannot be read, or the word is too short to be a secret. The message never quotes it.
        """
        self._given = given
        self._stamp = self._stamp_now()
        self._word = _read(given)

    def current(self) -> str:
        """The word; the last good one while its file cannot be read or holds none."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._word = _read(self._given)
            except UsageError as error:  # once, not at every request
                structlog.get_logger().error("token_unusable", detail=str(error), using="the one before")
            else:
                structlog.get_logger().info("token_renewed", file=self._given[1:])
        return self._word

    def _stamp_now(self) -> _Stamp | None:
        if not self._given.startswith("@"):
            return None
        try:
            found = Path(self._given[1:]).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _read(given: str) -> str:
    word = given
    if given.startswith("@"):
        try:
            with Path(given[1:]).open() as file:
                word = file.read(MAX_TOKEN_CHARS + 2)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--http-token {given}: the file cannot be read ({error})") from error
    word = word.strip()
    if not MIN_TOKEN_CHARS <= len(word) <= MAX_TOKEN_CHARS or not word.isascii() or len(word.split()) != 1:
        raise UsageError(
            f"--http-token: expected one word of {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} ASCII characters, got "
            f"{len(word)} characters; make one with `openssl rand -hex 32`"
        )
    return word
