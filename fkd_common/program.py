"""How every program begins and ends: a mistake is one sentence on standard error and a documented exit code."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from fkd_common.advice import did_you_mean
from fkd_common.errors import ExitCode, FkdError, UsageError
from fkd_common.printable import printable


class _ParserReadyError(Exception):
    """A parser is about to parse, and somebody wants the parser instead."""

    def __init__(self, parser: OneSentenceParser) -> None:
        super().__init__()
        self.parser = parser


class OneSentenceParser(argparse.ArgumentParser):
    """A parser of flags whose errors are raised, for :func:`run_program` to say; its verbs are such parsers too."""

    _hand_over = False

    @staticmethod
    def of(command: Callable[[list[str]], object]) -> OneSentenceParser:
        """The parser that a command makes for its arguments; nothing else of the command is done.

        Args:
            command: Parses the arguments that it is given before it does anything.
        """
        OneSentenceParser._hand_over = True
        try:
            command([])
        except _ParserReadyError as ready:
            return ready.parser
        finally:
            OneSentenceParser._hand_over = False
        raise TypeError(f"{command} parses nothing")

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """As in argparse."""
        if OneSentenceParser._hand_over:
            raise _ParserReadyError(self)
        return super().parse_known_args(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """A flag is wrong.

        Raises:
            UsageError: Always.
        """
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        advice = f"see {self.prog} --help"
        if unknown:
            advice = did_you_mean(unknown[1], self._option_string_actions, advice)
        raise UsageError(f"{message.removeprefix('argument ')} ({advice})")


def run_program(program: str, extra: str, body: Callable[[], int]) -> int:
    """Run a program's body and turn what a person can cause into its exit code.

    Args:
        program: Its name, for the message.
        extra: The optional dependencies (``fkd[extra]``) that bring the packages it needs.
        body: Does the work; returns the exit code.

    Raises:
        ModuleNotFoundError: A module of the project itself is missing, which is a bug.
    """
    try:
        return int(body())
    except FkdError as error:
        message, code = str(error), error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fkd_"):
            raise
        message, code = f"{error.name} is not installed here: pip install 'fkd[{extra}]'", ExitCode.USAGE
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt as error:
        message, code = "stopped on request", getattr(error, "exit_code", ExitCode.INTERRUPTED)
    except OSError as error:
        message, code = f"{error.filename or 'the disk'}: {error.strerror or error}", ExitCode.FAILURE
    print(f"{program}: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return int(code)
