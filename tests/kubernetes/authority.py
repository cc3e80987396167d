"""Signs what Certificate objects ask for and puts it into Secrets, as cert-manager does; a stand-in for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

USAGES = {"server auth": ExtendedKeyUsageOID.SERVER_AUTH, "client auth": ExtendedKeyUsageOID.CLIENT_AUTH}


class Authority:
    """The CA issuer of a namespace."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FKD authority")])
        self.certificate = (
            _begun(name, self._key, hours=87600)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def secret_for(self, certificate: dict[str, Any]) -> dict[str, bytes]:
        """The data of the Secret that a Certificate object asks for."""
        spec = certificate["spec"]
        assert (spec["privateKey"]["algorithm"], spec["privateKey"]["size"]) == ("ECDSA", 256)
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in spec.get("dnsNames", [])]
        names += [x509.UniformResourceIdentifier(uri) for uri in spec.get("uris", [])]
        # cert-manager leaves the subject empty where no commonName is given, and then marks the names as critical.
        signed = (
            _begun(x509.Name([]), key, hours=int(spec["duration"].removesuffix("h")))
            .issuer_name(self.certificate.subject)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([USAGES[usage] for usage in spec["usages"] if usage in USAGES]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return {
            "ca.crt": self.certificate.public_bytes(Encoding.PEM),
            "tls.crt": signed.public_bytes(Encoding.PEM),
            "tls.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        }


def _begun(subject: x509.Name, key: ec.EllipticCurvePrivateKey, hours: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=hours))
    )
