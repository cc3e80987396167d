"""Folders that cells share: made whole or not at all, damage noticed by digest, and what killed processes left swept.

A folder has a file of digests, made with it. Who uses the folder sees first that all of its files still have them.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from fkd_bench.compare.source_files import content_sha256

_DIGESTS = "digests.json"
_MAKING = ".making"
"""Ends the name of a folder that is not whole yet."""
_UNFINISHED = (f"*{_MAKING}", f".*{_MAKING}.*", "cache/**/.writing-*")


def whole_folder(folder: Path, make: Callable[[Path], object]) -> list[Path]:
    """See that a folder is there as it was made, or make it; who calls it is the only one to write there.

    Args:
        folder: Which.
        make: Fills a folder that is not there yet.

    Returns:
        The file that was found damaged, so that all were made anew; empty if none was.
    """
    found = _damage(folder)
    if found == "":
        return []
    staging = folder.with_name(folder.name + _MAKING)
    shutil.rmtree(staging, ignore_errors=True)
    make(staging)
    digests = {str(file.relative_to(staging)): content_sha256(file) for file in _files(staging)}
    (staging / _DIGESTS).write_text(json.dumps(digests))
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    return [] if found is None else [folder / found]


def _damage(folder: Path) -> str | None:
    """The first file that is not as it was made; empty if there is none, None if nothing was finished here."""
    if not (folder / _DIGESTS).exists():
        return None
    try:
        digests: dict[str, str] = dict(json.loads((folder / _DIGESTS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return _DIGESTS
    for name, digest in digests.items():
        file = folder / name
        if not file.is_file() or content_sha256(file) != digest:
            return name
    return ""


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sweep(workspace: Path) -> None:
    """Remove what processes that were killed have left: whatever is unfinished and whose locks nobody holds.

    Args:
        workspace: Folder of what cells share, as :func:`fkd_bench.compare.cell_run.run_cell` fills it.
    """
    for folder in workspace.glob("data/*/"):
        for run in folder.glob("cells/*/"):
            _remove([run], [run.with_suffix(".lock")])
        unfinished = [path for pattern in _UNFINISHED for path in folder.glob(pattern)]
        _remove(unfinished, [folder.with_suffix(".lock"), *folder.glob("cells/*.lock")])
    _remove([*workspace.glob("bank/.writing-*")], workspace.glob("bank/*.lock"))


def _remove(leftovers: Sequence[Path], locks: Iterable[Path]) -> None:
    """Remove files and folders that were there before these locks were looked for, unless one of them is held."""
    with ExitStack() as held:
        for lock in locks if leftovers else ():
            try:
                fcntl.flock(held.enter_context(lock.open("a")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        for path in leftovers:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
