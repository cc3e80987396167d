"""What a certificate says about its holder, and the files credentials live in; nothing is signed here.

Who someone is stands in one place of a certificate: a subject alternative name of type URI,
``urn:fkd:client:shard3`` or ``urn:fkd:operator:alice``. Any certificate authority can write it (cert-manager
does); everything else in a certificate, its common name included, is decoration.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fkd_common.access.roles import OPERATOR_COMMAND, Role
from fkd_common.errors import InvalidUploadError, UnauthenticatedError, UsageError
from fkd_common.identifiers import check_client_name

MAX_FILE_BYTES = 1 << 20
"""Largest certificate or key file that is read."""

UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
"""What ``cryptography`` raises for bytes that are no certificate, key or request: it has no common base."""

_URI_PREFIX = "urn:fkd:"


@dataclass(frozen=True)
class Holder:
    """Whom a certificate names, and for how long."""

    role: Role
    name: str
    serial: int
    not_before: datetime
    not_after: datetime


def holder_uri(role: Role, name: str) -> str:
    """The URI that names a holder in a certificate."""
    return f"{_URI_PREFIX}{role.value}:{name}"


def holder_of(certificate: x509.Certificate) -> Holder:
    """Whom a certificate names.

    Raises:
        UnauthenticatedError: It names nobody, several, or a role or name that cannot be.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        uris = []
    ours = [uri for uri in uris if uri.startswith(_URI_PREFIX)]
    if len(ours) != 1:
        raise UnauthenticatedError(
            f"the certificate names {len(ours)} holders: expected exactly one subject alternative name such as "
            f"URI:{holder_uri(Role.CLIENT, 'NAME')}; issue one with `fkd-server certs issue NAME`",
            reason="NO_IDENTITY",
        )
    role, _, name = ours[0].removeprefix(_URI_PREFIX).partition(":")
    try:
        return Holder(
            Role(role),
            check_client_name(name),
            certificate.serial_number,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )
    except (ValueError, InvalidUploadError) as error:
        raise UnauthenticatedError(
            f"the certificate is for {ours[0][:120]!r}: expected urn:fkd:client:NAME or urn:fkd:operator:NAME",
            reason="NO_IDENTITY",
        ) from error


_HOW_TO_RENEW = {
    Role.CLIENT: "ask the coordinator's operator for a new one, or for a token and start with --join @TOKENFILE",
    Role.OPERATOR: f"make a new one where the coordinator is, with {OPERATOR_COMMAND}",
}


def check_period(holder: Holder, now: datetime) -> None:
    """Refuse a certificate outside its period, by the clock of this machine.

    Raises:
        UnauthenticatedError: It has expired, or is not valid yet.
    """
    if now > holder.not_after:
        raise UnauthenticatedError(
            f"the certificate of {holder.name} expired at {holder.not_after:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M} here: {_HOW_TO_RENEW[holder.role]}, or set the clock",
            reason="CERTIFICATE_EXPIRED",
        )
    if now < holder.not_before:
        raise UnauthenticatedError(
            f"the certificate of {holder.name} is valid from {holder.not_before:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M} here: one of the two clocks is wrong",
            reason="CERTIFICATE_NOT_YET_VALID",
        )


def utc_now() -> datetime:
    """The wall clock, which decides nothing but whether certificates and tokens are valid."""
    return datetime.now(UTC)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, as a person compares it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":")


@dataclass(frozen=True)
class FileNames:
    """How the three files of a folder may be called; the first name is ours, the second that of Kubernetes."""

    ca: tuple[str, ...]
    certificate: tuple[str, ...]
    key: tuple[str, ...]
    made_by: str
    """The command that makes them."""
    renewed_by: str
    """The command that replaces certificate and key where the authority is whole."""

    def remedy(self, path: Path) -> str:
        """The command that makes one of the files anew."""
        return self.made_by if path.name in self.ca else self.renewed_by


_ISSUED = "`fkd-server certs issue NAME`, or, in a new folder, by --join @TOKENFILE"
CLIENT_FILES = FileNames(
    ("ca.pem", "ca.crt"), ("cert.pem", "tls.crt"), ("key.pem", "tls.key"), _ISSUED, _ISSUED
)
OPERATOR_FILES = FileNames(
    CLIENT_FILES.ca, CLIENT_FILES.certificate, CLIENT_FILES.key, OPERATOR_COMMAND, OPERATOR_COMMAND
)
SERVER_FILES = FileNames(
    ("ca.pem", "ca.crt"),
    ("server.pem", "tls.crt"),
    ("server.key", "tls.key"),
    "`fkd-server certs init`",
    "`fkd-server certs renew --host NAME`",
)

Stamp = tuple[tuple[int, int, int], ...]
"""What changes when files are replaced: inode, size and time of each."""


@dataclass(frozen=True)
class Credentials:
    """The content of a folder: whom to trust, and what proves who we are."""

    ca: bytes
    """PEM; several certificates while one authority replaces another."""
    chain: bytes
    """PEM; our own certificate first."""
    key: bytes
    """PEM, unencrypted."""
    certificate: x509.Certificate
    paths: tuple[Path, Path, Path]
    """Where the three were read."""
    stamp: Stamp

    @classmethod
    def read(cls, folder: Path, names: FileNames) -> Credentials:
        """Read a folder's three files and see that they fit together.

        Raises:
            UsageError: A file is missing, unreadable, or the key is another certificate's.
        """
        paths = _paths(folder, names)
        stamp = stamp_of(paths)
        ca, chain, key = (_read(path) for path in paths)
        at = paths[0]
        try:
            x509.load_pem_x509_certificates(ca)
            at = paths[1]
            certificate = x509.load_pem_x509_certificates(chain)[0]
            certified = _public_bytes(certificate.public_key())
            at = paths[2]
            public = _public_bytes(load_pem_private_key(key, password=None).public_key())
        except UNREADABLE as error:
            kind = "key without a password" if at == paths[2] else "certificate"
            raise UsageError(
                f"{at} is damaged, or is no {kind} in PEM: put back a copy, or have it made anew by "
                f"{names.remedy(at)}"
            ) from error
        if public != certified:
            raise UsageError(
                f"--tls {folder}: {paths[2].name} is not the key of {paths[1].name}; both are made by "
                f"{names.renewed_by}"
            )
        return cls(ca, chain, key, certificate, paths, stamp)

    def changed(self, folder: Path, names: FileNames) -> bool:
        """Whether the files are no longer the ones that were read."""
        try:
            return stamp_of(_paths(folder, names)) != self.stamp
        except UsageError:
            return False


def stamp_of(paths: Sequence[Path]) -> Stamp:
    """What tells whether files were replaced; links are followed, as Kubernetes swaps them.

    Raises:
        UsageError: A file is gone.
    """
    try:
        found = [path.stat() for path in paths]
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    return tuple((entry.st_ino, entry.st_size, entry.st_mtime_ns) for entry in found)


def write_new(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file that must not exist yet, for its owner's eyes only if `private`.

    Raises:
        UsageError: It exists.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    except FileExistsError as error:
        raise UsageError(
            f"{path} exists, and is not overwritten: move it away, or choose another folder"
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes, *, private: bool = False) -> None:
    """Put a new file in place of an old one, whole."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:  # made with mode 0600
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if not private:
        Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def to_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as text."""
    return certificate.public_bytes(Encoding.PEM)


def _paths(folder: Path, names: FileNames) -> tuple[Path, Path, Path]:
    def find(candidates: tuple[str, ...]) -> Path:
        for name in candidates:
            if (folder / name).exists():
                return folder / name
        raise UsageError(
            f"--tls {folder}: no {candidates[0]} there; made by {names.remedy(folder / candidates[0])}"
        )

    return find(names.ca), find(names.certificate), find(names.key)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: over {MAX_FILE_BYTES} bytes, which is no certificate or key")
    return content


def _public_bytes(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]
