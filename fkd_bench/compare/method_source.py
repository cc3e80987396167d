"""Which source a method is made of, where it does not come with this package; imports nothing of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from fkd_common.method_registry import GROUP

_OURS = "fkd"


@lru_cache
def source_sha256(method: str) -> str:
    """What a method of somebody else's is made of, as it was when this program first asked.

    Returns:
        Hex SHA-256 of all Python files of the package that has its class, or of its one file; empty for methods that
        come with this package, which the version of a record stands for.
    """
    found = [entry for entry in entry_points(group=GROUP) if entry.name == method]
    if not found or (found[0].dist is not None and found[0].dist.name == _OURS):
        return ""
    digest = hashlib.sha256()
    for name, file in _files(found[0].module.partition(".")[0]):
        digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _files(package: str) -> Iterator[tuple[str, Path]]:
    """Python files of a package, or the file of a module, by name within it."""
    spec = find_spec(package)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and Path(spec.origin).is_file():
            yield package, Path(spec.origin)
        return
    for folder in map(Path, spec.submodule_search_locations):
        for file in sorted(folder.rglob("*.py")):
            yield str(file.relative_to(folder)), file
