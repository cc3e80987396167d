"""Shell completion of a program with verbs, from the parsers that the program itself uses; shtab writes the script."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import shtab

from fkd_common.errors import ExitCode
from fkd_common.given_path import given_path
from fkd_common.program import OneSentenceParser
from fkd_common.verbs import Verbs, command_of


def completion(
    program: str,
    serve: Callable[[list[str]], object],
    verbs: Verbs,
    arguments: list[str],
) -> int:
    """`PROGRAM completion bash|zsh|tcsh`: print a script for the shell to read.

    Args:
        program: Its name.
        serve: What the program does without a verb.
        verbs: What it does with one.
        arguments: After the word `completion`.

    Returns:
        The exit code.

    Raises:
        UsageError: No such shell.
    """
    parser = OneSentenceParser(
        prog=f"{program} completion",
        description=f"Print a script that completes {program}'s words; bash: source <({program} completion bash).",
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    shell = parser.parse_args(arguments).shell
    root = OneSentenceParser.of(serve)
    root.format_help()  # puts its flags' explanations in order
    root.prog = program
    below = root.add_subparsers(parser_class=argparse.ArgumentParser)
    for verb in verbs:
        own = OneSentenceParser.of(command_of(verbs, verb))
        below.add_parser(verb, help=own.description)
        below.choices[verb] = own  # argparse's own table
    for each in _all(root):
        for action in each._actions:  # argparse has no other way to its flags
            _say_what_completes(action)
    print(shtab.complete(root, shell))
    return ExitCode.OK


def _all(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its verbs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _all(below)


def _say_what_completes(action: argparse.Action) -> None:
    """Paths complete to files, and nothing else does that takes a value."""
    named = str(action.metavar or action.dest).lower()
    if action.choices is None and (listed := re.fullmatch(r"\{([\w,]+)\}", named)):
        action.choices = listed[1].split(",")
    if action.type in (Path, given_path) or any(word in named for word in ("path", "file", "folder", "dir")):
        action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's convention
