"""The coordinator's own certificate authority: makes, lists and revokes certificates; opens no port.

A folder holds everything: `ca.pem`, `ca.key`, `server.pem`, `server.key`, `issued/` with a copy of every
certificate, and `revoked`. Keys are elliptic-curve (NIST P-256), readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fkd_common.access.certificates import (
    UNREADABLE,
    Holder,
    Role,
    holder_of,
    holder_uri,
    replace,
    to_pem,
    utc_now,
    write_new,
)
from fkd_common.errors import InvalidUploadError, UnauthenticatedError, UsageError
from fkd_common.identifiers import check_client_name
from fkd_server.access.revocation import RevokedList

CA_KEY_FILE = "ca.key"
ISSUED_FOLDER = "issued"

CA_DAYS = 3650
SERVER_DAYS = 825
CLIENT_DAYS = 365
CLOCK_SKEW = timedelta(minutes=10)
"""Certificates are valid from a little before they are made: clocks differ."""


@dataclass(frozen=True)
class Issued:
    """One certificate that this authority made."""

    holder: Holder
    revoked: bool


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as text; keep it in a file written with `private`."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def default_hosts() -> tuple[str, ...]:
    """Names under which clients may reach this machine, as far as it knows them."""
    return tuple(dict.fromkeys((socket.gethostname(), "localhost", "127.0.0.1", "::1")))


class CertificateAuthority:
    """Signs certificates with the key in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open an authority that exists.

        Raises:
            UsageError: There is none, or its files do not fit together.
        """
        try:
            bundle = x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())
            key = load_pem_private_key((folder / CA_KEY_FILE).read_bytes(), password=None)
            ours = [certificate for certificate in bundle if certificate.public_key() == key.public_key()]
        except (OSError, *UNREADABLE) as error:
            raise UsageError(
                f"{folder}: no certificate authority there ({error}); make one with `fkd-server certs init "
                f"--tls {folder}`"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not ours:
            raise UsageError(f"{folder}: {CA_KEY_FILE} is not the key of ca.pem")
        self.certificate = ours[0]
        self._folder = folder
        self._key = key
        self._issued = folder / ISSUED_FOLDER

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """Whether a folder can sign certificates."""
        return (folder / CA_KEY_FILE).exists()

    @classmethod
    def create(cls, folder: Path, hosts: Sequence[str]) -> CertificateAuthority:
        """Make an authority and the coordinator's own certificate.

        Raises:
            UsageError: The folder has one, or a host is no name or address.
        """
        names = [_host_name(host) for host in hosts]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = new_key()
        # A name of its own, so that another authority's certificates are never taken for this one's.
        name = _common_name(f"fkd {socket.gethostname()[:40]} {secrets.token_hex(4)}")
        certificate = (
            _builder(name, key.public_key(), CA_DAYS)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_new(folder / CA_KEY_FILE, key_pem(key), private=True)
        write_new(folder / "ca.pem", to_pem(certificate))
        authority = cls(folder)
        server_key = new_key()
        write_new(folder / "server.key", key_pem(server_key), private=True)
        write_new(folder / "server.pem", to_pem(authority._sign_server(server_key.public_key(), names)))
        return authority

    def renew_server(self, hosts: Sequence[str] = ()) -> x509.Certificate:
        """Replace the coordinator's certificate; its key stays, and so do its host names unless others are given."""
        path = self._folder / "server.pem"
        old = x509.load_pem_x509_certificate(path.read_bytes())
        names: list[x509.GeneralName] = [_host_name(host) for host in hosts]
        if not names:
            names = list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        fresh = self._sign_server(old.public_key(), names)  # type: ignore[arg-type]  # we made it: it is P-256
        replace(path, to_pem(fresh))
        return fresh

    def issue(
        self, public_key: ec.EllipticCurvePublicKey, role: Role, name: str, days: float = CLIENT_DAYS
    ) -> x509.Certificate:
        """Sign a certificate for a client or an operator, and keep a copy.

        Args:
            public_key: The holder's key, on curve P-256.
            role: What the holder may do.
            name: The holder's name: a client's id in every run.
            days: How long it is valid.

        Raises:
            UsageError: The name cannot be one.
        """
        check_name(name)
        identity = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder_uri(role, name))])
        certificate = self._finish(
            _builder(_common_name(name), public_key, days)
            .add_extension(identity, critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        )
        self._issued.mkdir(mode=0o700, exist_ok=True)
        write_new(self._issued / f"{name}-{certificate.serial_number:x}.pem", to_pem(certificate))
        return certificate

    def issue_folder(self, role: Role, name: str, out: Path, days: float = CLIENT_DAYS) -> x509.Certificate:
        """Make a key and a certificate, in a folder to be carried to whoever holds them.

        Raises:
            UsageError: The folder has credentials already, or the name cannot be one.
        """
        check_name(name)
        for file in ("ca.pem", "cert.pem", "key.pem"):
            if (out / file).exists():
                raise UsageError(
                    f"{out / file} exists, and is not overwritten: choose another folder with --out"
                )
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = new_key()
        certificate = self.issue(key.public_key(), role, name, days)
        write_new(out / "key.pem", key_pem(key), private=True)
        write_new(out / "cert.pem", to_pem(certificate))
        write_new(out / "ca.pem", (self._folder / "ca.pem").read_bytes())
        return certificate

    def _sign_server(
        self, public_key: ec.EllipticCurvePublicKey, names: Sequence[x509.GeneralName]
    ) -> x509.Certificate:
        return self._finish(
            _builder(_common_name("fkd coordinator"), public_key, SERVER_DAYS)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )

    def _finish(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            builder.issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(key_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def issued_in(folder: Path) -> list[Issued]:
    """The certificates a folder has copies of, by name and age; files that are none are passed over."""
    revoked, found = RevokedList(folder), []
    for path in (folder / ISSUED_FOLDER).glob("*.pem"):
        try:
            holder = holder_of(x509.load_pem_x509_certificate(path.read_bytes()))
        except (*UNREADABLE, UnauthenticatedError):
            continue
        found.append(Issued(holder, holder.serial in revoked))
    return sorted(found, key=lambda one: (one.holder.name, one.holder.not_before))


def revoke(folder: Path, name: str) -> list[Holder]:
    """Revoke every certificate of a name that still counts; a running coordinator notices at the next call.

    Raises:
        UsageError: There is none.
    """
    revoked, now = RevokedList(folder), utc_now()
    counting = [one.holder for one in issued_in(folder) if not one.revoked and one.holder.not_after > now]
    named = [holder for holder in counting if holder.name == name]
    if not named:
        known = ", ".join(sorted({holder.name for holder in counting})) or "nobody"
        raise UsageError(
            f"no certificate of {name!r} to revoke in {folder}; {known} have one (or give --serial)"
        )
    for holder in named:
        revoked.add(holder.serial, f"{holder.role} {holder.name}")
    return named


def check_name(name: str) -> None:
    """Refuse what cannot be a client's id.

    Raises:
        UsageError: Naming what is allowed.
    """
    try:
        check_client_name(name)
    except InvalidUploadError as error:
        raise UsageError(str(error)) from error


def _builder(
    subject: x509.Name, public_key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = utc_now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise UsageError(f"--host {host!r}: expected a host name or an address") from error


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
