"""What an authority has issued: the copies in `issued/`, and revoking by name; nothing is signed here.

A copy is called NAME-SERIAL.pem, so that a certificate whose copy is damaged can still be listed and revoked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from fkd_common.access.certificates import UNREADABLE, Holder, holder_of, to_pem, utc_now, write_new
from fkd_common.errors import DataError, UnauthenticatedError, UsageError
from fkd_server.access.revocation import RevokedList

ISSUED_FOLDER = "issued"

_FILE_NAME = re.compile(r"(?P<name>.+)-(?P<serial>[0-9a-f]{1,40})")


@dataclass(frozen=True)
class Record:
    """The copy of one issued certificate."""

    path: Path
    name: str
    """The holder's; of a damaged copy as its file is called, empty if that tells nothing."""
    serial: int | None
    """None where neither the copy nor its file's name tells."""
    holder: Holder | None
    """None where the copy is damaged."""
    revoked: bool

    def counts(self, now: datetime) -> bool:
        """Whether the certificate may still open doors."""
        return not self.revoked and (self.holder is None or self.holder.not_after > now)


def keep_copy(folder: Path, name: str, certificate: x509.Certificate) -> None:
    """Keep a copy of a certificate, by which it can be revoked; before anybody is given it."""
    issued = folder / ISSUED_FOLDER
    issued.mkdir(mode=0o700, exist_ok=True)
    write_new(issued / f"{name}-{certificate.serial_number:x}.pem", to_pem(certificate))


def issued_in(folder: Path) -> list[Record]:
    """The certificates a folder has copies of, damaged ones too, by name.

    Raises:
        UsageError: There is no folder.
        DataError: Its list of revoked certificates cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"--tls {folder}: no folder there; expected one made by `fkd-server certs init`")
    revoked = RevokedList(folder)
    revoked.check()
    paths = sorted((folder / ISSUED_FOLDER).glob("*.pem"))
    return sorted((_record(path, revoked) for path in paths), key=lambda record: record.name)


def revoke(folder: Path, name: str) -> list[Record]:
    """Revoke every certificate of a name that still counts; a running coordinator notices at the next call.

    Raises:
        UsageError: There is none.
        DataError: A copy tells nothing, so that it may be of one more; all others are revoked.
    """
    revoked, now = RevokedList(folder), utc_now()
    counting = [record for record in issued_in(folder) if record.counts(now)]
    named = [record for record in counting if record.name == name]
    for record in named:
        assert record.serial is not None
        revoked.add(record.serial, f"{record.holder.role if record.holder else 'damaged copy of'} {name}")
    unknown = [record.path for record in counting if record.serial is None]
    if unknown:
        raise DataError(
            f"{len(named)} certificates of {name} are revoked, but {', '.join(map(str, unknown))} is damaged and may "
            "be of another: put back a copy and repeat, or revoke that one with --serial and remove the file"
        )
    if not named:
        known = ", ".join(sorted({record.name for record in counting})) or "nobody"
        raise UsageError(
            f"no certificate of {name!r} to revoke in {folder}: it has some of {known} (for one that was made "
            "elsewhere give --serial)"
        )
    return named


def _record(path: Path, revoked: RevokedList) -> Record:
    try:
        holder = holder_of(x509.load_pem_x509_certificate(path.read_bytes()))
    except (OSError, *UNREADABLE, UnauthenticatedError):
        found = _FILE_NAME.fullmatch(path.stem)
        if found is None:
            return Record(path, "", None, None, revoked=False)
        serial = int(found["serial"], 16)
        return Record(path, found["name"], serial, None, serial in revoked)
    return Record(path, holder.name, holder.serial, holder, holder.serial in revoked)
