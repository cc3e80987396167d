"""`fkd-server doctor`: is a run's state whole, and what can be done where it is not; changes nothing unless told to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fkd_common.artifacts import BlobStore
from fkd_common.errors import DataError, ExitCode, UsageError
from fkd_common.given_path import given_path
from fkd_common.places import RUNS
from fkd_common.printable import printable
from fkd_common.program import OneSentenceParser
from fkd_server.method.federated_method import stored_blob
from fkd_server.prepare import ANCHORS_FILE, EXTRACTOR_FILE
from fkd_server.resume import is_whole, put_back, unfinished_runs
from fkd_server.run_folder import RunFolder
from fkd_server.run_state import PhaseKey, Position
from fkd_server.store import (
    DATABASE,
    PREVIOUS,
    RunStore,
    check_database,
    has_begun,
    read_position,
    restore_previous,
)


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
    parser = OneSentenceParser(
        prog="fkd-server doctor",
        description="Check the state of a run that is not being served: database, artifacts, accepted uploads.",
    )
    parser.add_argument(
        "folder", nargs="?", type=given_path, help="run folder (default: the unfinished one in ./run)"
    )
    parser.add_argument("--repair", action="store_true", help="mend what can be mended")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    given = parser.parse_args(arguments)
    folder = given.folder or next(reversed(unfinished_runs(RUNS)), None)
    if folder is None:
        raise UsageError("no unfinished run in ./run: name a run's folder (fkd-server doctor FOLDER)")
    if not folder.is_dir():
        raise UsageError(f"{folder}: no run folder there; name one: fkd-server doctor FOLDER")
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
    if not (folder / DATABASE).exists() and not has_begun(folder):
        raise UsageError(f"{folder} holds no run: there is no {DATABASE} in it")
    held = RunFolder(folder, advice="stop it first")
    try:
        findings = [_database(folder, repair)]
        if findings[0].trouble and not findings[0].mended:
            return findings
        store = RunStore.open(folder)
        try:
            setup, parts = _setup(folder, store, repair), _parts(store.blobs, store.position())
            earlier = _earlier(folder, store.blobs) if any(part.trouble for part in parts) else None
            uploads = [] if earlier else list(_uploads(store, repair))
        finally:
            store.close()
        if earlier is not None:
            parts = [_gone_back(folder, part, earlier, repair) for part in parts]
        return [*findings, *setup, *parts, *uploads]
    finally:
        held.release()


def _database(folder: Path, repair: bool) -> Finding:
    path = folder / DATABASE
    try:
        check_database(path)
    except DataError as error:
        return Finding("state", str(path), str(error), "install that release")
    except sqlite3.DatabaseError as error:
        lost = "what was uploaded since it was made is asked for again"
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


def _setup(folder: Path, store: RunStore, repair: bool) -> list[Finding]:
    """Extractor and anchors."""
    description = store.description()
    assert description is not None
    findings = []
    for name, artifact, file in (
        ("extractor", description.extractor, EXTRACTOR_FILE),
        ("anchors", description.anchors, ANCHORS_FILE),
    ):
        path, source = str(store.blobs.path(artifact.sha256)), folder / "prepared" / file
        trouble, remedy, mended = _trouble(store.blobs, artifact.sha256), "", False
        if trouble:
            remedy = (
                f"start with --prepared and the folder that has the same {file}, or put a copy of that there"
            )
            mended = repair and put_back(store.blobs, artifact.sha256, source)
        findings.append(Finding(name, path, trouble, f"copied from {source}" if mended else remedy, mended))
    return findings


def _parts(blobs: BlobStore, at: Position) -> list[Finding]:
    """What the method's snapshot refers to: the global model, mostly."""
    referred = _referred({name: value for name, value in at.method.items() if name != "retired"})
    return [
        Finding(
            name,
            str(blobs.path(sha256)),
            trouble := _trouble(blobs, sha256),
            "restore it from a backup, or give --new-run" if trouble else "",
        )
        for name, sha256 in referred
    ]


def _earlier(folder: Path, blobs: BlobStore) -> Position | None:
    """Where the copy of the state stands, if everything it refers to is whole."""
    try:
        at = read_position(folder / PREVIOUS)
    except (sqlite3.DatabaseError, DataError):
        return None
    return None if any(part.trouble for part in _parts(blobs, at)) else at


def _gone_back(folder: Path, part: Finding, earlier: Position, repair: bool) -> Finding:
    """A damaged part of the model does not matter to a run that goes on from an earlier round."""
    if not part.trouble:
        return part
    done = repair and (
        not (folder / PREVIOUS).exists() or restore_previous(folder, f"{part.what} is {part.trouble}")
    )
    where = f"the end of round {earlier.round}, from where the run goes on"
    return replace(part, remedy=f"{'went' if done else '--repair goes'} back to {where}", mended=done)


def _uploads(store: RunStore, repair: bool) -> Iterator[Finding]:
    """Accepted uploads of the open phase."""
    at = store.position()
    if at.open is None:
        return
    key = PhaseKey(at.round, at.open.phase)
    for client, content in store.uploads_for(key).items():
        artifact = stored_blob(content)
        if artifact is None:
            continue
        trouble = _trouble(store.uploads, artifact.sha256)
        remedy = "--repair forgets it: the site is asked again" if trouble else ""
        if trouble and repair:
            store.forget_upload(key, client)
            remedy = "forgotten: the site is asked again"
        path = str(store.uploads.path(artifact.sha256))
        yield Finding(f"{client}'s upload for {key}", path, trouble, remedy, bool(trouble) and repair)


def _trouble(blobs: BlobStore, sha256: str) -> str:
    if not blobs.has(sha256):
        return "missing"
    return "" if is_whole(blobs, sha256) else "damaged"


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
    """What is whole in a line each, what is not with what can be done, and a last line that sums it up."""
    for finding in findings:
        mark = "ok" if not finding.trouble else "mended" if finding.mended else "LOST"
        print(f"{mark:<7} {printable(finding.what)}")
        if finding.trouble:
            # Names in a folder from elsewhere are text: nothing that a terminal would obey.
            for label, text in (
                ("file", finding.path),
                ("trouble", finding.trouble),
                ("remedy", finding.remedy),
            ):
                print(f"        {label}: {printable(text)}")
    lost = sum(1 for finding in findings if finding.trouble and not finding.mended)
    print(f"{len(findings)} things looked at, {f'{lost} lost' if lost else 'all whole'}")
