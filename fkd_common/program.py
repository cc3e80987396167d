"""How every program begins and ends: a mistake is one sentence on standard error and a documented exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from fkd_common.errors import ExitCode, FkdError, UsageError


class OneSentenceParser(argparse.ArgumentParser):
    """A parser of flags whose errors are raised, for :func:`run_program` to say; its verbs are such parsers too."""

    def error(self, message: str) -> NoReturn:
        """A flag is wrong.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")


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
    except OSError as error:
        message, code = f"{error.filename or 'the disk'}: {error.strerror or error}", ExitCode.FAILURE
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    return int(code)
