"""Text from elsewhere as people may be shown it: nothing that a terminal would obey, no line of its own."""

from __future__ import annotations


def printable(text: str, limit: int | None = None) -> str:
    """One line of letters: control characters, line ends and other things that are not shown become blanks.

    Args:
        text: Whatever a client, a file or its name says.
        limit: Characters that are kept; None for all.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:limit])
