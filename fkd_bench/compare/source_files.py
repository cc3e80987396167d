"""Where an experiment's data and extractors lie on this machine, and what they hold; reads bytes, decodes nothing."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from fkd_common.advice import did_you_mean
from fkd_common.errors import DataError, UsageError
from fkd_shards.sources import SOURCE_KINDS

DATA_FOLDER = "FKD_DATA"
"""The variable that `--data-folder` sets."""

PRETRAIN = "pretrain"
_NAMED_EXTRACTORS = ("resnet18", PRETRAIN)
_SOURCE_WITHOUT_FILES = "digits"


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Text with every ``${NAME}`` replaced.

    Args:
        text: As an experiment's file has it.
        variables: Values by name.

    Raises:
        UsageError: A variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if not variables.get(name):
            flag = "give --data-folder DIR or set" if name == DATA_FOLDER else "set"
            raise UsageError(f"{text} lies in ${{{name}}}, which is not set: {flag} {name}")
        return variables[name]

    return re.sub(r"\$\{(\w+)\}", value, text)


def located_source(spec: str) -> tuple[str, str]:
    """A source of `fkd-shards create` with an absolute path, and what it holds.

    Returns:
        The source, and a hex SHA-256; the name itself for what lies in no file.

    Raises:
        UsageError: There is no such kind of source.
        DataError: Nothing is there.
    """
    if spec == _SOURCE_WITHOUT_FILES:
        return spec, spec
    kind, colon, rest = spec.partition(":")
    if not colon:
        path = _existing(spec, "source", [_SOURCE_WITHOUT_FILES])
        return str(path), content_sha256(path)
    if kind not in SOURCE_KINDS:
        expected = f"expected {_SOURCE_WITHOUT_FILES} or one of {', '.join(SOURCE_KINDS)} with its path"
        raise UsageError(
            f"source = {spec}: there is no kind {kind}: {did_you_mean(kind, SOURCE_KINDS, expected)}"
        )
    path = _existing(rest, "source")
    return f"{kind}:{path}", content_sha256(path)


def located_extractor(spec: str) -> tuple[str, str]:
    """An extractor with an absolute path, and what it holds, its JSON included; a name stands for itself.

    Raises:
        DataError: Nothing is there.
    """
    if spec in _NAMED_EXTRACTORS:
        return spec, spec
    path = _existing(spec, "extractor", _NAMED_EXTRACTORS)
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


def _existing(text: str, key: str, names: Sequence[str] = ()) -> Path:
    """An absolute path to what is there; `names` would have been taken too."""
    path = Path(text).expanduser().absolute()
    if not text or not path.exists():
        advice = did_you_mean(text, names, "give an existing file or folder")
        raise DataError(f"{key} = {text or 'nothing'}: there is nothing at {path}: {advice}")
    return path
