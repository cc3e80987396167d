"""`fkd-server doctor`: is a run's state whole, and what can be done where it is not; changes nothing unless told to."""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fkd_common.artifacts import BlobStore
from fkd_common.errors import CorruptTransferError, DataError, ExitCode, NotFoundError, UsageError
from fkd_server.method.federated_method import TensorUpload
from fkd_server.prepare import ANCHORS_FILE, EXTRACTOR_FILE
from fkd_server.resume import unfinished_runs
from fkd_server.run_folder import RunFolder
from fkd_server.run_state import PhaseKey
from fkd_server.store import DATABASE, PREVIOUS, RunStore, check_database, restore_previous


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    path: str
    trouble: str = ""
    """Empty when it is whole."""
    remedy: str = ""
    """What was done, or can be."""
    mended: bool = False


def main(arguments: list[str]) -> int:
    """Entry point of the subcommand; 0 if everything is whole (or was mended), 3 if not."""
    parser = argparse.ArgumentParser(
        prog="fkd-server doctor",
        description="Check the state of a run that is not being served: database, artifacts, accepted uploads.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="run folder (default: the unfinished one in ./run)"
    )
    parser.add_argument("--repair", action="store_true", help="mend what can be mended")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    given = parser.parse_args(arguments)
    folder = given.folder or next(reversed(unfinished_runs(Path("run"))), None)
    if folder is None or not folder.is_dir():
        raise UsageError(f"{folder or 'run'}: no run folder there; name one: fkd-server doctor FOLDER")
    findings = examine(folder, repair=given.repair)
    if given.json:
        for finding in findings:
            print(json.dumps(asdict(finding)))
    else:
        _print(findings)
    return ExitCode.OK if all(not f.trouble or f.mended for f in findings) else ExitCode.DATA


def examine(folder: Path, *, repair: bool = False) -> list[Finding]:
    """Look at everything a run needs to go on.

    Raises:
        UsageError: A coordinator serves the run.
    """
    if not (folder / DATABASE).exists() and not (folder / PREVIOUS).exists():
        raise UsageError(f"{folder} holds no run: there is no {DATABASE} in it")
    held = RunFolder(folder)
    try:
        findings = [_database(folder, repair)]
        if findings[0].trouble and not findings[0].mended:
            return findings
        store = RunStore.open(folder)
        try:
            findings += [*_artifacts(folder, store, repair), *_uploads(store, repair)]
        finally:
            store.close()
        return findings
    finally:
        held.release()


def _database(folder: Path, repair: bool) -> Finding:
    path = folder / DATABASE
    try:
        check_database(path)
    except DataError as error:
        return Finding("state", str(path), str(error), "install that release")
    except sqlite3.DatabaseError as error:
        lost = "what was uploaded since the last closed round is asked for again"
        if repair and restore_previous(folder, str(error)):
            return Finding("state", str(path), str(error), f"{PREVIOUS} took its place: {lost}", mended=True)
        if _is_whole(folder / PREVIOUS):
            return Finding("state", str(path), str(error), f"--repair, or a restart, uses {PREVIOUS}: {lost}")
        return Finding("state", str(path), str(error), "restore the folder from a backup, or give --new-run")
    return Finding("state", str(path))


def _is_whole(path: Path) -> bool:
    try:
        check_database(path)
    except (sqlite3.DatabaseError, DataError):
        return False
    return True


def _artifacts(folder: Path, store: RunStore, repair: bool) -> Iterator[Finding]:
    """Extractor, anchors, and what the method's snapshot refers to."""
    description, position = store.description(), store.position()
    if description is None:
        yield Finding("run", str(folder / DATABASE), "the run never began", "give --new-run")
        return
    for name, artifact, file in (
        ("extractor", description.extractor, EXTRACTOR_FILE),
        ("anchors", description.anchors, ANCHORS_FILE),
    ):
        trouble = _trouble(store.blobs, artifact.sha256)
        remedy, source = f"put a copy of {file} of the prepared folder there", folder / "prepared" / file
        mended = bool(trouble) and repair and _put_back(store.blobs, artifact.sha256, source)
        if mended:
            remedy = f"copied from {source}"
        yield Finding(
            name, str(store.blobs.path(artifact.sha256)), trouble, remedy if trouble else "", mended
        )
    for name, sha256 in _referred({k: v for k, v in position.method.items() if k != "retired"}):
        trouble = _trouble(store.blobs, sha256)
        remedy = "restore it from a backup, or give --new-run" if trouble else ""
        yield Finding(name, str(store.blobs.path(sha256)), trouble, remedy)


def _put_back(blobs: BlobStore, sha256: str, source: Path) -> bool:
    """Replace a damaged artifact by the file it was made from, if that is still the same."""
    blobs.remove(sha256)
    return source.is_file() and blobs.adopt(source).sha256 == sha256


def _uploads(store: RunStore, repair: bool) -> Iterator[Finding]:
    """Accepted uploads of the open phase."""
    at = store.position()
    if at.open is None:
        return
    key = PhaseKey(at.round, at.open.phase)
    for client, content in store.uploads_for(key).items():
        if not isinstance(content, TensorUpload):
            continue
        trouble = _trouble(store.uploads, content.artifact.sha256)
        remedy = "--repair forgets it: the site is asked again" if trouble else ""
        if trouble and repair:
            store.forget_upload(key, client)
            remedy = "forgotten: the site is asked again"
        path = str(store.uploads.path(content.artifact.sha256))
        yield Finding(f"{client}'s upload for {key}", path, trouble, remedy, bool(trouble) and repair)


def _trouble(blobs: BlobStore, sha256: str) -> str:
    try:
        blobs.check(sha256)
    except NotFoundError:
        return "missing"
    except CorruptTransferError:
        return "damaged"
    return ""


def _referred(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Names and hashes of the artifacts anywhere in a snapshot."""
    if isinstance(value, Mapping):
        if isinstance(value.get("sha256"), str):
            yield name, value["sha256"]
            return
        for key, item in value.items():
            yield from _referred(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _referred(item, f"{name}.{index}")


def _print(findings: list[Finding]) -> None:
    table = Table("", "what", "file", "trouble", "remedy", box=None)
    for finding in findings:
        mark = "ok" if not finding.trouble else "mended" if finding.mended else "LOST"
        table.add_row(mark, finding.what, finding.path, finding.trouble, finding.remedy)
    Console().print(table)
