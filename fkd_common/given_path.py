"""Paths as flags of a command line name them; nothing is opened or made."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def given_path(text: str) -> Path:
    """A flag's path: for `type=` of a parser.

    Raises:
        ArgumentTypeError: It is empty, as a variable of a shell that is not set: `Path("")` is the current folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("a path expected, got nothing: is a variable not set?")
    return Path(text)


def given_folder(text: str) -> Path:
    """A flag's folder to write to, which may still have to be made: for `type=` of a parser.

    Raises:
        ArgumentTypeError: It is empty, a file or within one, or cannot be written.
    """
    path = given_path(text)
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"a folder expected, and {there} is none")
    if not os.access(there, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{there} cannot be written")
    return path
