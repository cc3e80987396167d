"""The coordinator's own certificate authority: makes certificates; what becomes of them is known elsewhere.

A folder holds everything: `ca.pem`, `ca.key`, `server.pem`, `server.key`, `issued/` with a copy of every
certificate, and `revoked`. Keys are elliptic-curve (NIST P-256), readable by their owner only.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fkd_common.access.certificates import UNREADABLE, holder_uri, replace, to_pem, utc_now, write_new
from fkd_common.access.roles import Role
from fkd_common.errors import InvalidUploadError, UsageError
from fkd_common.identifiers import check_client_name
from fkd_server.access.host_names import general_name
from fkd_server.access.records import keep_copy

CA_FILE, CA_KEY_FILE = "ca.pem", "ca.key"
SERVER_FILE, SERVER_KEY_FILE = "server.pem", "server.key"

CA_DAYS = 3650
SERVER_DAYS = 825
CLIENT_DAYS = 365
CLOCK_SKEW = timedelta(minutes=10)
"""Certificates are valid from a little before they are made: clocks differ."""


@dataclass(frozen=True)
class Renewed:
    """A coordinator's certificate that took another's place."""

    certificate: x509.Certificate
    new_key: bool
    """Whether the old key was lost."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as text; keep it in a file written with `private`."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class CertificateAuthority:
    """Signs certificates with the key in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open an authority that exists.

        Raises:
            UsageError: There is none, its files are damaged, or do not fit together.
        """
        at = folder / CA_FILE
        try:
            bundle = x509.load_pem_x509_certificates(at.read_bytes())
            at = folder / CA_KEY_FILE
            key = load_pem_private_key(at.read_bytes(), password=None)
            ours = [certificate for certificate in bundle if certificate.public_key() == key.public_key()]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(
                f"{folder}: no certificate authority there, for {at.name} is missing; make one with `fkd-server certs "
                f"init --tls {folder}`"
            ) from error
        except UNREADABLE as error:
            raise UsageError(
                f"{at} is damaged: put back a copy, or make another authority in a new folder, with `fkd-server certs "
                "init --tls FOLDER`"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not ours:
            raise UsageError(f"{folder}: {CA_KEY_FILE} is not the key of {CA_FILE}: put back the one that is")
        self.certificate = ours[0]
        self._folder = folder
        self._key = key

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
        names = [general_name(host) for host in hosts]
        for file in (CA_KEY_FILE, CA_FILE, SERVER_KEY_FILE, SERVER_FILE):
            if (folder / file).exists():
                raise UsageError(
                    f"{folder / file} exists, and is not overwritten: choose another folder, or add names to the "
                    f"coordinator's certificate with `fkd-server certs renew --host NAME --tls {folder}`"
                )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = new_key()
        # A name of its own, so that another authority's certificates are never taken for this one's.
        name = _common_name(f"fkd {socket.gethostname()[:40]} {secrets.token_hex(4)}")
        certificate = (
            _builder(name, key.public_key(), utc_now() + timedelta(days=CA_DAYS))
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_new(folder / CA_KEY_FILE, key_pem(key), private=True)
        write_new(folder / CA_FILE, to_pem(certificate))
        authority = cls(folder)
        server_key = new_key()
        write_new(folder / SERVER_KEY_FILE, key_pem(server_key), private=True)
        write_new(folder / SERVER_FILE, to_pem(authority._sign_server(server_key.public_key(), names)))
        return authority

    def renew_server(self, hosts: Sequence[str] = ()) -> Renewed:
        """Replace the coordinator's certificate by one for the same names and these; its key stays unless it is lost.

        Raises:
            UsageError: A host is no name or address; or the old names are lost and no others are given.
        """
        added = [general_name(host) for host in hosts]
        names = list(dict.fromkeys([*self._server_names(needed=not added), *added]))
        public_key, new = self._server_key()
        fresh = self._sign_server(public_key, names)
        replace(self._folder / SERVER_FILE, to_pem(fresh))
        return Renewed(fresh, new)

    def issue(
        self, public_key: ec.EllipticCurvePublicKey, role: Role, name: str, days: float = CLIENT_DAYS
    ) -> x509.Certificate:
        """Sign a certificate for a client or an operator, and keep a copy.

        Args:
            public_key: The holder's key, on curve P-256.
            role: What the holder may do.
            name: The holder's name: a client's id in every run.
            days: How long it is valid; never longer than the authority.

        Raises:
            UsageError: The name cannot be one, or the authority has expired.
        """
        check_name(name)
        identity = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder_uri(role, name))])
        certificate = self._finish(
            _builder(_common_name(name), public_key, self._until(days))
            .add_extension(identity, critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        )
        keep_copy(self._folder, name, certificate)
        return certificate

    def issue_folder(self, role: Role, name: str, out: Path, days: float = CLIENT_DAYS) -> x509.Certificate:
        """Make a key and a certificate, in a folder to be carried to whoever holds them.

        Raises:
            UsageError: The folder has credentials already, or the name cannot be one.
        """
        check_name(name)
        taken = [out / file for file in ("ca.pem", "cert.pem", "key.pem") if (out / file).exists()]
        if taken:
            raise UsageError(f"{taken[0]} exists, and is not overwritten: choose another folder with --out")
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = new_key()
        certificate = self.issue(key.public_key(), role, name, days)
        write_new(out / "key.pem", key_pem(key), private=True)
        write_new(out / "cert.pem", to_pem(certificate))
        write_new(out / "ca.pem", (self._folder / CA_FILE).read_bytes())
        return certificate

    def _until(self, days: float) -> datetime:
        """The end of a certificate that is made now.

        Raises:
            UsageError: The authority has expired.
        """
        now, end = utc_now(), self.certificate.not_valid_after_utc
        if end <= now:
            raise UsageError(
                f"the authority in {self._folder} expired on {end:%Y-%m-%d}: make another in a new folder, with "
                "`fkd-server certs init --tls FOLDER`, or set the clock"
            )
        return min(now + timedelta(days=days), end)

    def _server_names(self, *, needed: bool) -> list[x509.GeneralName]:
        """The names in the coordinator's certificate; none where they are lost, unless they are needed.

        Raises:
            UsageError: They are lost and needed.
        """
        path = self._folder / SERVER_FILE
        try:
            old = x509.load_pem_x509_certificate(path.read_bytes())
            return list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except (FileNotFoundError, x509.ExtensionNotFound, x509.DuplicateExtension, *UNREADABLE) as error:
            if not needed:
                return []
            raise UsageError(
                f"{path} is missing or damaged, and with it the names in it: give them, with --host NAME (repeat for "
                "more)"
            ) from error

    def _server_key(self) -> tuple[ec.EllipticCurvePublicKey | rsa.RSAPublicKey, bool]:
        """The coordinator's key, and whether it had to be made anew."""
        path = self._folder / SERVER_KEY_FILE
        try:
            kept = load_pem_private_key(path.read_bytes(), password=None)
            if isinstance(kept, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
                return kept.public_key(), False
        except (FileNotFoundError, *UNREADABLE):
            pass  # nothing is lost: it opens no door but this coordinator's, and its certificate is replaced with it
        key = new_key()
        replace(path, key_pem(key), private=True)
        return key.public_key(), True

    def _sign_server(
        self, public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, names: Sequence[x509.GeneralName]
    ) -> x509.Certificate:
        return self._finish(
            _builder(_common_name("fkd coordinator"), public_key, self._until(SERVER_DAYS))
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
    subject: x509.Name, public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(utc_now() - CLOCK_SKEW)
        .not_valid_after(until)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


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


@dataclass(frozen=True)
class OwnCertificate:
    """A certificate of the coordinator's own."""

    what: str
    """"authority" or "coordinator"."""
    certificate: x509.Certificate


def own_certificates(folder: Path) -> list[OwnCertificate]:
    """The authority's and the coordinator's certificate, as far as they are there and whole."""
    found = []
    for what, name in (("authority", CA_FILE), ("coordinator", SERVER_FILE)):
        try:
            certificate = x509.load_pem_x509_certificate((folder / name).read_bytes())
        except (OSError, *UNREADABLE):
            continue
        found.append(OwnCertificate(what, certificate))
    return found
