"""Paths as flags of a command line name them; nothing is opened."""

from __future__ import annotations

import argparse
from pathlib import Path


def given_path(text: str) -> Path:
    """A flag's path: for `type=` of a parser.

    Raises:
        ArgumentTypeError: It is empty, as a variable of a shell that is not set: `Path("")` is the current folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("a path expected, got nothing: is a variable not set?")
    return Path(text)
