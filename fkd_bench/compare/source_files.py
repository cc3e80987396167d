"""Where an experiment's data and extractors lie on this machine, and what they hold; reads bytes, decodes nothing."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from fkd_common.errors import DataError, UsageError

DATA_FOLDER = "FKD_DATA"
"""The variable that `--data-folder` sets."""

_NAMED_EXTRACTORS = ("resnet18", "pretrain")
_SOURCE_WITHOUT_FILES = "digits"


def expanded(text: str, variables: Mapping[str, str], what: str) -> str:
    """Text with every ``${NAME}`` replaced.

    Args:
        text: As an experiment's file has it.
        variables: Values by name.
        what: Whose text it is, for a message.

    Raises:
        UsageError: A variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if not variables.get(name):
            flag = "give --data-folder DIR or set" if name == DATA_FOLDER else "set"
            raise UsageError(f"{what} lies in ${{{name}}}, which is not set: {flag} {name}")
        return variables[name]

    return re.sub(r"\$\{(\w+)\}", value, text)


def located_source(spec: str) -> tuple[str, str]:
    """A source of `fkd-shards create` with an absolute path, and what it holds.

    Returns:
        The source, and a hex SHA-256; the name itself for what lies in no file.

    Raises:
        DataError: Nothing is there.
    """
    if spec == _SOURCE_WITHOUT_FILES:
        return spec, spec
    kind, colon, rest = spec.partition(":")
    path = _existing(rest if colon else spec, "data")
    return (f"{kind}:{path}" if colon else str(path)), content_sha256(path)


def located_extractor(spec: str) -> tuple[str, str]:
    """An extractor with an absolute path, and what it holds, its JSON included; a name stands for itself.

    Raises:
        DataError: Nothing is there.
    """
    if spec in _NAMED_EXTRACTORS:
        return spec, spec
    path = _existing(spec, "extractor")
    described = path.with_suffix(".json")
    held = content_sha256(path) + (content_sha256(described) if described.exists() else "")
    return str(path), hashlib.sha256(held.encode()).hexdigest()


def content_sha256(path: Path) -> str:
    """Hex SHA-256 of a file; of a folder, that of its files' names and sizes, since it may be too large to read."""
    status = path.stat()
    return _content_sha256(path, status.st_mtime_ns, status.st_size)


@lru_cache
def _content_sha256(path: Path, mtime_ns: int, size: int) -> str:
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    digest = hashlib.sha256()
    for parent, folders, names in os.walk(path):
        folders.sort()
        for file in sorted(Path(parent, name) for name in names):
            digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\n".encode())
    return digest.hexdigest()


def _existing(text: str, what: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise DataError(f"no {what} at {path}: give an existing file or folder")
    return path
