"""Which run a coordinator goes on with: the same as it is asked for, with whole files; starts nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from fkd_common.artifacts import BlobStore
from fkd_common.config import RunConfig
from fkd_common.errors import (
    DamagedFileError,
    DataError,
    InvalidUploadError,
    RefusedError,
    UsageError,
)
from fkd_common.identifiers import check_run_id, new_run_id
from fkd_server.method.federated_method import UploadContent, stored_blob
from fkd_server.prepare import ANCHORS_FILE, EXTRACTOR_FILE
from fkd_server.run_state import PhaseKey
from fkd_server.settings import ServerSettings
from fkd_server.store import DATABASE, RunDescription, RunStore

SUMMARY = "summary.json"
"""A run is finished when it has one."""


def folder_for(settings: ServerSettings) -> Path:
    """The run's folder: the one named, else the unfinished run that was active last, else a new one.

    Raises:
        UsageError: The run named is finished, or must be new and is not.
    """
    if settings.run_id is not None:
        try:
            check_run_id(settings.run_id)
        except InvalidUploadError as error:
            raise UsageError(f"--run-id: {error}") from error
        folder = settings.runs / settings.run_id
        if (folder / SUMMARY).exists() and not settings.serve:
            raise UsageError(
                f"run {folder} is finished: see its {SUMMARY}, show it with --serve, or choose another --run-id"
            )
        if settings.new_run and folder.exists():
            raise UsageError(f"run folder {folder} exists: choose another --run-id")
        return folder
    unfinished = [] if settings.new_run else unfinished_runs(settings.runs)
    return unfinished[-1] if unfinished else settings.runs / new_run_id()


def unfinished_runs(runs: Path) -> list[Path]:
    """Folders of runs that began and have no result yet, the one active last at the end."""
    if not runs.is_dir():
        return []
    began = [folder for folder in runs.iterdir() if (folder / DATABASE).is_file()]
    return sorted(
        (folder for folder in began if not (folder / SUMMARY).exists()),
        key=_last_active,
    )


def _last_active(folder: Path) -> float:
    """When its state was last written, which may be in the write-ahead log alone; wall-clock seconds."""
    files = (folder / DATABASE, folder / f"{DATABASE}-wal")
    return max(file.stat().st_mtime for file in files if file.exists())


def check_same(stored: RunDescription, settings: ServerSettings) -> None:
    """Refuse to go on with a run under other settings than it began with.

    Raises:
        RefusedError: Naming every difference.
    """
    differences = [
        *_differences(stored.config, settings.run_config().model_dump(mode="json")),
        *_differences(stored.sources, sources_of(settings, stored)),
    ]
    if differences:
        raise RefusedError(
            f"run {stored.run_id} is unfinished and began with other settings ({'; '.join(differences)}): start it "
            "as it was to go on with it, or give --new-run to begin another",
            reason="CONFIGURATION_CHANGED",
        )


def sources_of(settings: ServerSettings, stored: RunDescription | None = None) -> dict[str, str]:
    """What extractor and anchors are made from: hashes of a prepared folder, or the extractor's name and a hash.

    A folder that is gone is no difference to a run that has its own copy, and neither is one that lies elsewhere.
    """
    if settings.prepared is None:
        anchors = settings.data_folder("anchors", settings.anchors)
        known = stored.sources["anchors"] if stored is not None and "anchors" in stored.sources else ""
        if Path(known).is_absolute():  # of an earlier release, which wrote down where they were
            return {"extractor": settings.extractor, "anchors": str(anchors.resolve())}
        if known and not anchors.is_dir():
            return {"extractor": settings.extractor, "anchors": known}
        return {"extractor": settings.extractor, "anchors": _folder_digest(anchors)}
    files = {"extractor": EXTRACTOR_FILE, "anchors": ANCHORS_FILE}
    if stored is not None and not all((settings.prepared / file).is_file() for file in files.values()):
        return dict(stored.sources)
    return {name: _digest(settings.prepared / file) for name, file in files.items()}


def put_back_setup(began: RunDescription, blobs: BlobStore, *sources: Path | None) -> None:
    """Replace a damaged extractor or anchor artifact by the file it was made from, where that is still the same."""
    for artifact, file in ((began.extractor, EXTRACTOR_FILE), (began.anchors, ANCHORS_FILE)):
        if is_whole(blobs, artifact.sha256):
            continue
        for source in sources:
            if source is not None and put_back(blobs, artifact.sha256, source / file):
                structlog.get_logger().warning("artifact_restored", file=file, source=str(source))
                break


def put_back(blobs: BlobStore, sha256: str, source: Path) -> bool:
    """Replace a damaged blob by a file, if that file is what the blob was; says whether it did."""
    if not source.is_file() or _digest(source) != sha256:
        return False
    blobs.remove(sha256)
    blobs.adopt(source)
    return True


def is_whole(blobs: BlobStore, sha256: str) -> bool:
    """Whether a blob is there and matches its name."""
    try:
        blobs.check(sha256)
    except DamagedFileError:
        return False
    return True


def whole_uploads(store: RunStore, key: PhaseKey) -> dict[str, UploadContent]:
    """Accepted uploads of a phase; one whose file is damaged is forgotten, so that its site is asked again."""
    uploads = store.uploads_for(key)
    for client, content in list(uploads.items()):
        artifact = stored_blob(content)
        if artifact is None or is_whole(store.uploads, artifact.sha256):
            continue
        store.forget_upload(key, client)
        del uploads[client]
        structlog.get_logger().error(
            "upload_lost",
            client=client,
            file=str(store.uploads.path(artifact.sha256)),
            detail="its file is missing or damaged: the site is asked again",
        )
    return uploads


def check_blobs(folder: Path, blobs: BlobStore, needed: Mapping[str, str]) -> None:
    """Refuse to go on with a missing or damaged file.

    Args:
        folder: The run's folder.
        blobs: Where the files are.
        needed: By hash, what each file is.

    Raises:
        DataError: Naming the file and the command.
    """
    for sha256, what in needed.items():
        try:
            blobs.check(sha256)
        except DamagedFileError as error:
            raise DataError(
                f"{what} of run {folder.name} is lost: {error}; `fkd-server doctor {folder}` says what can be done"
            ) from error


def _folder_digest(folder: Path) -> str:
    """One hash of a shard folder's files and their names."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.glob("*") if path.is_file()):
        with path.open("rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path.parent} is not a folder made by `fkd-server prepare`: {error}") from error


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """`key: old → new` for every key that differs; a key that one side lacks has its default there."""
    defaults = {name: field.default for name, field in RunConfig.model_fields.items()}
    found = []
    for name in sorted({*stored, *given}):
        old, new = (_plain(side.get(name, defaults.get(name))) for side in (stored, given))
        if old != new:
            found.append(f"{name}: {_short(old)} → {_short(new)}")
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
