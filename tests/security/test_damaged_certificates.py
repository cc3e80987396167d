"""Certificates, keys and requests whose bytes were changed end with a sentence, whatever the library makes of them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fkd_client.join import _checked, _signing_request
from fkd_common.access.certificates import SERVER_FILES, Credentials
from fkd_common.access.join_token import decode_token, encode_token
from fkd_common.access.roles import Role
from fkd_common.errors import InvalidUploadError, RefusedError, UnauthenticatedError, UsageError
from fkd_common.pb import enrolment_pb2 as pb
from fkd_server.access.certificates import CertificateAuthority, new_key
from fkd_server.access.enrolment import Enrolment
from fkd_server.access.records import issued_in
from fkd_server.access.tls import ServerTls, _holder

VERSION_3, VERSION_127 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x7e"
"""A certificate's version field in DER; `cryptography` has an exception of its own for the second."""


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "tls", ["localhost"])


@pytest.fixture
def odd(authority: CertificateAuthority) -> bytes:
    """A certificate of a version that does not exist, in DER."""
    sound = authority.issue(new_key().public_key(), Role.CLIENT, "a").public_bytes(Encoding.DER)
    assert VERSION_3 in sound
    return sound.replace(VERSION_3, VERSION_127, 1)


def pem(der: bytes) -> bytes:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n".encode()


@pytest.mark.scenario(31)
def test_a_certificate_of_no_known_version_names_nobody(odd: bytes) -> None:
    """Scenario 31."""
    with pytest.raises(UnauthenticatedError):
        _holder(pem(odd))


@pytest.mark.scenario(31)
@pytest.mark.parametrize("name", ["ca.pem", "server.pem"])
def test_a_folder_with_such_a_certificate_is_refused(
    authority: CertificateAuthority, odd: bytes, tmp_path: Path, name: str
) -> None:
    (tmp_path / "tls" / name).write_bytes(pem(odd))
    with pytest.raises(UsageError):
        Credentials.read(tmp_path / "tls", SERVER_FILES)
    if name == "ca.pem":
        with pytest.raises(UsageError):
            CertificateAuthority(tmp_path / "tls")


@pytest.mark.scenario(31)
def test_a_certificate_whose_key_cannot_be_is_refused(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """Scenario 31: a point that is not on the curve."""
    path = tmp_path / "tls" / "server.pem"
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    der = bytearray(certificate.public_bytes(Encoding.DER))
    point = certificate.public_key().public_numbers()  # type: ignore[union-attr]
    at = bytes(der).index(point.y.to_bytes(32, "big"))  # type: ignore[union-attr]
    der[at] ^= 1
    path.write_bytes(pem(bytes(der)))
    with pytest.raises(UsageError, match=r"server\.pem is damaged"):
        Credentials.read(tmp_path / "tls", SERVER_FILES)


@pytest.mark.scenario(15)
def test_a_token_with_such_an_authority_is_refused(odd: bytes) -> None:
    """Scenario 15."""
    token = pb.JoinToken(name="a", secret=bytes(32), ca=odd)
    with pytest.raises(UsageError, match="not a whole token"):
        decode_token(encode_token(token))


@pytest.mark.scenario(15)
def test_a_signing_request_of_no_known_version_is_refused(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """Scenario 15: anybody can send one."""
    sound = _signing_request(new_key(), "a")
    odd = sound.replace(b"\x02\x01\x00", b"\x02\x01\x7e", 1)
    assert odd != sound
    request = pb.JoinRequest(secret=bytes(32), signing_request=odd).SerializeToString()
    with pytest.raises(InvalidUploadError):
        Enrolment(ServerTls(tmp_path / "tls")).join(request, "127.0.0.1")


def test_an_answer_with_such_a_certificate_is_refused(odd: bytes) -> None:
    with pytest.raises(RefusedError):
        _checked(pb.JoinResponse(certificate=pem(odd), ca=pem(odd)), new_key(), "a")


def test_a_copy_of_such_a_certificate_is_listed_as_damaged(
    authority: CertificateAuthority, odd: bytes, tmp_path: Path
) -> None:
    issued = tmp_path / "tls" / "issued"
    (issued / "site-a-ab12.pem").write_bytes(pem(odd))
    (issued / "odd.pem").write_bytes(b"")
    damaged = [record for record in issued_in(tmp_path / "tls") if record.holder is None]
    assert [(record.name, record.serial) for record in damaged] == [("", None), ("site-a", 0xAB12)]
