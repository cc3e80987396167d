"""The verbs of a program, as a table of names and what carries them out; knows no verb itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeAlias

from fkd_common.advice import did_you_mean
from fkd_common.errors import UsageError

Verbs: TypeAlias = Mapping[str, str]
"""By name, ``module:function``: imported when asked for, since some verbs need packages that others do without."""
Command: TypeAlias = Callable[[list[str]], int]
"""Takes the arguments after the verb; returns the exit code."""


def command_of(verbs: Verbs, verb: str) -> Command:
    """What carries out a verb of the table."""
    module, _, name = verbs[verb].partition(":")
    command: Command = getattr(import_module(module), name)
    return command


def carry_out(verbs: Verbs, arguments: list[str], flags_for: str) -> int | None:
    """Carry out the verb that a command line begins with.

    Args:
        verbs: The table.
        arguments: The command line.
        flags_for: What the program does with flags and no verb, for a message.

    Returns:
        The exit code; None if the command line does not begin with a word.

    Raises:
        UsageError: It begins with a word that is no verb.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    word = arguments[0]
    if word not in verbs:
        advice = did_you_mean(word, verbs, f"expected {', '.join(verbs)}, or flags to {flags_for}")
        raise UsageError(f"unknown command {word}: {advice}")
    return int(command_of(verbs, word)(arguments[1:]))
