"""The run's durable memory: one SQLite database beside two folders of blobs; the only writer of state, no decisions.

Every method that writes is one transaction, on disk when it returns (write-ahead log, ``synchronous=FULL``).
A blob is durable before the row that refers to it, so that no row ever names a file that is not there. When a
round closes, the database is copied, unless that was done just before; a damaged one is replaced by that copy when
the run is opened again. What the copy refers to is kept with it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter

from fkd_common.artifacts import Artifact, BlobStore, sync_folder, write_atomically
from fkd_common.errors import DataError
from fkd_common.failpoints import failpoint
from fkd_common.ledger import ByteCount, Ledger, LedgerKey
from fkd_server.method.federated_method import UPLOAD_KINDS, TensorUpload, UploadContent, stored_blob
from fkd_server.run_state import ClosedPhase, KnownClient, PhaseKey, Position

DATABASE = "state.db"
PREVIOUS = "state.previous.db"
CONFIG = "config.yaml"
"""Written when a run has begun, for people."""

COPY_S = 10.0
"""The database is copied at the end of a round, but no sooner than so many seconds after the last time."""

_COUNTS = ", ".join(field.name for field in fields(ByteCount))
_MIGRATIONS: tuple[str, ...] = (
    f"""
    CREATE TABLE run (
        only INTEGER PRIMARY KEY CHECK (only = 1), description TEXT NOT NULL, position TEXT NOT NULL,
        epoch INTEGER NOT NULL
    );
    CREATE TABLE clients (
        name TEXT PRIMARY KEY, session BLOB NOT NULL, num_samples INTEGER, ready INTEGER NOT NULL
    );
    CREATE TABLE uploads (
        round INTEGER, phase INTEGER, client TEXT, digest TEXT NOT NULL, kind TEXT NOT NULL, content TEXT NOT NULL,
        PRIMARY KEY (round, phase, client)
    );
    CREATE TABLE phases (round INTEGER, phase INTEGER, summary TEXT NOT NULL, PRIMARY KEY (round, phase));
    CREATE TABLE rounds (round INTEGER PRIMARY KEY, record TEXT NOT NULL, accuracy TEXT);
    CREATE TABLE ledger (client TEXT, round INTEGER, phase TEXT, {_COUNTS}, PRIMARY KEY (client, round, phase));
    """,
    "",  # a position may be paused: a release that does not know it would go on
    "ALTER TABLE clients ADD COLUMN relay INTEGER NOT NULL DEFAULT 0",
)
"""What brings a database from each schema version to the next; its version is how many have been applied.

A change of what the columns hold is a version too."""


class TakenOverError(OSError):
    """Another process opened the state after this one: nothing can be written here any more."""


@dataclass(frozen=True)
class RunDescription:
    """What a run was started with; it never changes."""

    run_id: str
    config: Mapping[str, Any]
    """Every key of the run configuration."""
    sources: Mapping[str, str]
    """Where extractor and anchors came from, as the coordinator was told."""
    classes: tuple[str, ...]
    extractor: Artifact
    anchors: Artifact


_DESCRIPTION = TypeAdapter(RunDescription)
_POSITION = TypeAdapter(Position)


class RunStore:
    """A run's state; implements :class:`fkd_server.run_state.Journal`."""

    def __init__(self, database: sqlite3.Connection, folder: Path) -> None:
        """Wrap an open database; see :meth:`open`."""
        self.blobs = BlobStore(folder / "blobs")
        self.uploads = BlobStore(folder / "uploads")
        self.ledger = Ledger()
        self._database = database
        self._folder = folder
        self._lock = threading.RLock()
        for client, round_number, phase, *counts in database.execute("SELECT * FROM ledger"):
            self.ledger.book(LedgerKey(client, round_number, phase), ByteCount(*counts))
        self.ledger.saved(self.ledger.changed())
        self._unswept: tuple[Position, Collection[str]] | None = None
        """Where the run stands and what it needs, if a phase has closed since the last sweep."""
        self._copied_at = -math.inf
        self._copy_needs = None if (folder / PREVIOUS).exists() else frozenset[str]()
        """Blobs that the copy refers to; None while that is not known, since an earlier process made it."""
        self._epoch = 0
        with self._transaction("open") as writing:  # from here on whoever had the run before cannot write
            writing.execute("UPDATE run SET epoch = epoch + 1")
            self._epoch = self._stored_epoch()

    def _stored_epoch(self) -> int:
        row = self._database.execute("SELECT epoch FROM run").fetchone()
        return int(row[0]) if row else 0

    @classmethod
    def open(cls, folder: Path) -> RunStore:
        """Open or make the state in a run's folder; a damaged database gives way to the copy of the last round.

        Raises:
            DataError: It is damaged and there is no copy, or a newer release made it; names the file and the command.
        """
        path = folder / DATABASE
        try:
            database = _open_begun(path) if has_begun(folder) else _connect(path)
        except sqlite3.OperationalError as error:
            raise DataError(f"{path} cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            if not restore_previous(folder, str(error)):
                raise DataError(
                    f"{path} is damaged ({error}) and there is no copy: see `fkd-server doctor {folder}`, restore the "
                    "folder from a backup, or begin anew with --new-run"
                ) from error
            database = _connect(path)
        return cls(database, folder)

    def close(self) -> None:
        """Save the ledger and release the database."""
        self.tidy()
        with contextlib.suppress(OSError):
            self.save_ledger()
        self._database.close()

    # -- what is known ----------------------------------------------------------------------------

    def description(self) -> RunDescription | None:
        """What the run was started with; None if it never started."""
        row = self._database.execute("SELECT description FROM run").fetchone()
        return _DESCRIPTION.validate_json(row[0]) if row else None

    def position(self) -> Position:
        """Where the run stands.

        Raises:
            DataError: The run never started.
        """
        row = self._database.execute("SELECT position FROM run").fetchone()
        if row is None:
            raise DataError(f"{self._folder} holds no run")
        return _POSITION.validate_json(row[0])

    def clients(self) -> list[KnownClient]:
        """Everyone who ever registered, by name."""
        rows = self._database.execute(
            "SELECT name, session, ready, EXISTS (SELECT 1 FROM uploads WHERE client = name), relay "
            "FROM clients ORDER BY name"
        )
        return [KnownClient(name, session, *map(bool, flags)) for name, session, *flags in rows]

    def uploads_for(self, key: PhaseKey) -> dict[str, UploadContent]:
        """Accepted uploads of a phase, by client."""
        rows = self._database.execute(
            "SELECT client, kind, content FROM uploads WHERE round = ? AND phase = ? ORDER BY client",
            astuple(key),
        )
        return {client: UPLOAD_KINDS[kind].validate_json(content) for client, kind, content in rows}

    def digest_of(self, client: str, key: PhaseKey) -> str | None:
        """See :meth:`Journal.digest_of`."""
        with self._lock:
            row = self._database.execute(
                "SELECT digest FROM uploads WHERE round = ? AND phase = ? AND client = ?",
                (*astuple(key), client),
            ).fetchone()
        return str(row[0]) if row else None

    def num_samples(self, client: str) -> int | None:
        """n_k of a client's first upload, if it has made one."""
        found: int | None = self._of_client("num_samples", client)
        return found

    def is_relay(self, client: str) -> bool:
        """Whether a client has registered as one that sends sums over clients of its own."""
        return bool(self._of_client("relay", client))

    def _of_client(self, column: str, client: str) -> Any:
        """A column of a client's row; None where there is none."""
        with self._lock:
            row = self._database.execute(f"SELECT {column} FROM clients WHERE name = ?", (client,)).fetchone()  # noqa: S608
        return row[0] if row else None

    def uploads_by_client(self) -> dict[str, int]:
        """How many uploads of each client were ever accepted."""
        with self._lock:
            rows = self._database.execute("SELECT client, COUNT(*) FROM uploads GROUP BY client")
            return dict(rows.fetchall())

    def phase_summary(self, key: PhaseKey) -> dict[str, Any] | None:
        """What the record says of a phase; None if it has not been closed."""
        with self._lock:
            row = self._database.execute(
                "SELECT summary FROM phases WHERE round = ? AND phase = ?", astuple(key)
            ).fetchone()
        return json.loads(row[0]) if row else None

    def rounds(self) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
        """Records of the closed rounds, in order, each with its accuracies if they are known."""
        with self._lock:
            rows = self._database.execute("SELECT record, accuracy FROM rounds ORDER BY round").fetchall()
        return [(json.loads(record), json.loads(accuracy) if accuracy else None) for record, accuracy in rows]

    # -- what happens -----------------------------------------------------------------------------

    def begin(self, description: RunDescription, at: Position) -> None:
        """A run starts."""
        values = (_DESCRIPTION.dump_json(description).decode(), _POSITION.dump_json(at).decode())
        with self._transaction("begin") as database:
            database.execute("INSERT INTO run VALUES (1, ?, ?, 1)", values)
        self._epoch = 1

    def client_joined(self, name: str, session: bytes, relay: bool) -> None:
        """See :meth:`Journal.client_joined`."""
        with self._transaction("register") as database:
            database.execute(
                "INSERT INTO clients (name, session, ready, relay) VALUES (?, ?, 0, ?) ON CONFLICT (name) "
                "DO UPDATE SET session = excluded.session, ready = 0, relay = excluded.relay",
                (name, session, relay),
            )

    def client_away(self, name: str) -> None:
        """See :meth:`Journal.client_away`."""
        with self._transaction("away") as database:
            database.execute("UPDATE clients SET ready = 0 WHERE name = ?", (name,))

    def client_forgotten(self, name: str) -> None:
        """See :meth:`Journal.client_forgotten`."""
        with self._transaction("forget_client") as database:
            database.execute("DELETE FROM clients WHERE name = ?", (name,))

    def client_ready(self, name: str) -> None:
        """See :meth:`Journal.client_ready`."""
        with self._transaction("ready") as database:
            database.execute("UPDATE clients SET ready = 1 WHERE name = ?", (name,))

    def upload_accepted(self, key: PhaseKey, client: str, digest: str, content: UploadContent) -> None:
        """See :meth:`Journal.upload_accepted`."""
        kind = type(content).__name__
        row = (*astuple(key), client, digest, kind, UPLOAD_KINDS[kind].dump_json(content).decode())
        with self._transaction("upload") as database:
            database.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?)", row)
            if isinstance(content, TensorUpload):
                database.execute(
                    "UPDATE clients SET num_samples = ? WHERE name = ? AND num_samples IS NULL",
                    (content.num_samples, client),
                )

    def moved(
        self,
        to: Position,
        keep: Collection[str],
        *,
        closed: ClosedPhase | None = None,
        round_record: Mapping[str, Any] | None = None,
    ) -> None:
        """See :meth:`Journal.moved`."""
        with self._transaction("step") as database:
            database.execute("UPDATE run SET position = ?", (_POSITION.dump_json(to).decode(),))
            if closed is not None:
                row = (*astuple(closed.key), json.dumps(closed.summary))
                database.execute("INSERT INTO phases VALUES (?, ?, ?)", row)
            if round_record is not None:
                values = (round_record["round"], json.dumps(round_record))
                database.execute("INSERT INTO rounds (round, record) VALUES (?, ?)", values)
        if closed is not None or self._unswept is not None:
            self._unswept = (to, keep)
        if round_record is not None and time.monotonic() - self._copied_at >= COPY_S:
            # The step is made: whatever is wrong with the disk now must not undo it in memory.
            with contextlib.suppress(OSError, sqlite3.Error):
                self._keep_copy(keep)

    def set_accuracy(self, round_number: int, accuracy: Mapping[str, Any]) -> None:
        """A closed round has been scored."""
        with self._transaction("accuracy") as database:
            database.execute(
                "UPDATE rounds SET accuracy = ? WHERE round = ?", (json.dumps(accuracy), round_number)
            )

    def forget_upload(self, key: PhaseKey, client: str) -> None:
        """An accepted upload is lost with its file: the client will be asked again."""
        with self._transaction("forget_upload") as database:
            database.execute(
                "DELETE FROM uploads WHERE round = ? AND phase = ? AND client = ?", (*astuple(key), client)
            )

    def save_ledger(self) -> None:
        """Make the ledger durable between other transactions."""
        if self.ledger.changed():
            with self._transaction("ledger"):
                pass

    def tidy(self) -> None:
        """Sweep after a phase that was closed meanwhile: not while its clients wait to hear what comes next."""
        if self._unswept is None:
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            if self._stored_epoch() == self._epoch:  # else the files are another's by now
                self.sweep(*self._unswept)
        self._unswept = None

    def sweep(self, at: Position, keep: Collection[str]) -> None:
        """Remove files that neither the state nor its copy refers to, and interrupted writes.

        The rows that referred to them have gone before: a crash leaves files, never gaps.
        """
        description = self.description()
        assert description is not None
        failpoint("sweep.begun")
        waiting: set[str] = set()
        if at.open is not None:
            contents = self.uploads_for(PhaseKey(at.round, at.open.phase)).values()
            waiting = {blob.sha256 for content in contents if (blob := stored_blob(content)) is not None}
        with contextlib.suppress(OSError):  # tried again when the next phase closes
            if self._copy_needs is not None:
                setup = (description.extractor.sha256, description.anchors.sha256)
                self.blobs.sweep({*keep, *self._copy_needs, *setup})
            self.uploads.sweep(waiting)

    # -- how --------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, name: str) -> Iterator[sqlite3.Connection]:
        """One transaction that also saves the ledger.

        Raises:
            OSError: The disk does not take it; nothing has changed.
        """
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                if self._epoch and self._stored_epoch() != self._epoch:
                    raise TakenOverError(f"another fkd-server has taken over the run in {self._folder}")
                yield self._database
                booked = self.ledger.changed()
                self._database.executemany(
                    "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [(*astuple(key), *astuple(count)) for key, count in booked],
                )
                failpoint(f"{name}.committing")
                self._database.execute("COMMIT")
            except sqlite3.IntegrityError:
                self._roll_back()
                raise  # something was to count twice: a bug, not the disk's trouble
            except sqlite3.DatabaseError as error:
                self._roll_back()
                raise OSError(errno.EIO, f"{self._folder}/{DATABASE}: {error}") from error
            except BaseException:
                self._roll_back()
                raise
            self.ledger.saved(booked)
            failpoint(f"{name}.committed")

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _keep_copy(self, keep: Collection[str]) -> None:
        """Copy the database, for the day it is found damaged; does without where the disk is full.

        Args:
            keep: Hashes of the blobs that the state refers to.
        """
        temporary, copy = self._folder / f"{PREVIOUS}.unfinished", self._folder / PREVIOUS
        try:
            temporary.unlink(missing_ok=True)
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with self._lock, contextlib.closing(sqlite3.connect(temporary)) as target:
                target.execute("PRAGMA synchronous = OFF")  # once, below
                self._database.backup(target)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            failpoint("copy.synced")
            if self._copy_needs is not None:
                self._copy_needs = self._copy_needs.union(keep)
            temporary.replace(copy)
            failpoint("copy.renamed")
            sync_folder(self._folder)
            self._copy_needs, self._copied_at = frozenset(keep), time.monotonic()
        except (OSError, sqlite3.OperationalError) as error:
            structlog.get_logger().warning("state_not_copied", detail=str(error))


def has_begun(folder: Path) -> bool:
    """Whether a run began in this folder, whatever has become of its database."""
    return (folder / PREVIOUS).exists() or (folder / CONFIG).exists()


def check_database(path: Path) -> None:
    """Look whether a database is there, whole and of a schema this release knows.

    Raises:
        sqlite3.DatabaseError: It is missing, damaged or empty.
        DataError: A newer release made it.
    """
    _open_begun(path).close()


def _open_begun(path: Path) -> sqlite3.Connection:
    """Open the database of a run that has begun; errors as of :func:`check_database`."""
    if not path.is_file():
        raise sqlite3.DatabaseError("it is missing")
    database = _connect(path)
    if database.execute("SELECT 1 FROM run").fetchone() is None:
        database.close()
        raise sqlite3.DatabaseError("it holds no run")
    return database


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database, check its integrity and bring its schema up to date.

    Raises:
        sqlite3.DatabaseError: It is damaged.
        DataError: A newer release made it.
    """
    if not path.exists():
        path.touch(mode=0o600)  # it holds the clients' sessions
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=2.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        found = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
        if found != ["ok"]:
            raise sqlite3.DatabaseError("; ".join(found))
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > len(_MIGRATIONS):
            raise DataError(
                f"{path} has schema version {version}; this release knows up to {len(_MIGRATIONS)}: install the "
                "release that made it"
            )
        for number in range(version, len(_MIGRATIONS)):
            database.executescript(
                f"BEGIN IMMEDIATE; {_MIGRATIONS[number]}; PRAGMA user_version = {number + 1}; COMMIT"
            )
    except BaseException:
        database.close()
        raise
    return database


def read_position(path: Path) -> Position:
    """Where the run of a database stands.

    Raises:
        sqlite3.DatabaseError: It is missing, damaged or empty.
        DataError: A newer release made it.
    """
    with contextlib.closing(_open_begun(path)) as database:
        return _POSITION.validate_json(database.execute("SELECT position FROM run").fetchone()[0])


def restore_previous(folder: Path, damage: str) -> bool:
    """Put the copy from the end of a round in the place of a damaged database, which is kept beside it."""
    copy, path = folder / PREVIOUS, folder / DATABASE
    if not copy.is_file():
        return False
    try:
        check_database(copy)
    except sqlite3.DatabaseError:
        return False
    kept = path.with_name(f"{DATABASE}.damaged") if path.exists() else None
    for ending in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{DATABASE}{ending}").replace(folder / f"{DATABASE}.damaged{ending}")
    write_atomically(path, copy.read_bytes())
    structlog.get_logger().error(
        "state_restored",
        damage=damage,
        kept=str(kept) if kept else None,
        detail="the run goes on from the end of a closed round; sites are asked again for what they sent since",
    )
    return True
