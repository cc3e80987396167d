"""What others wrote, as cells of a table that may be opened with a spreadsheet; writes nothing."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Of what a spreadsheet takes for a formula; the last four are the wide forms of the first four."""


def csv_cell(value: Value) -> Value | str:
    """A value as a cell: text that a spreadsheet would take for a formula gets an apostrophe, which makes it text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_BEGINNINGS) else value
