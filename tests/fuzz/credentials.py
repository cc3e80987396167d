"""What proves who somebody is: tokens, certificates, keys, the list of revoked ones, and requests to join."""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import DecodeError

from fkd_client.join import _signing_request
from fkd_common.access.certificates import (
    CLIENT_FILES,
    SERVER_FILES,
    UNREADABLE,
    Credentials,
    holder_of,
    to_pem,
)
from fkd_common.access.join_token import decode_token
from fkd_common.access.roles import Role
from fkd_common.errors import FkdError
from fkd_common.identifiers import check_client_name
from fkd_common.pb import enrolment_pb2 as pb
from fkd_server.access.certificates import CertificateAuthority, new_key
from fkd_server.access.enrolment import Enrolment
from fkd_server.access.join_tokens import TokenStore
from fkd_server.access.revocation import REVOKED_FILE, RevokedList
from fkd_server.access.tls import ServerTls

from .framing import join, split
from .target import Target, demand

FILES = ("ca.pem", "server.pem", "server.key", "ca.key", REVOKED_FILE)

SECRET, REQUEST = 1, 2
"""Flags: put in the secret of a token that exists; put in a signing request that is sound."""


@functools.cache
def authority() -> Path:
    """A coordinator's folder, made once per process; inputs work on copies."""
    folder = Path(tempfile.mkdtemp()) / "tls"
    CertificateAuthority.create(folder, ["localhost"])
    return folder


def token(data: bytes, folder: Path) -> None:
    found, certificate = decode_token(data.decode(errors="replace"))
    check_client_name(found.name)
    to_pem(certificate)


def token_seeds(folder: Path) -> dict[str, bytes]:
    tokens = TokenStore(authority())
    text = tokens.create(CertificateAuthority(authority()), "shard3", timedelta(hours=1))
    return {"token": text.encode(), "cut": text.encode()[:-20]}


def certificate(data: bytes, folder: Path) -> None:
    try:
        found = x509.load_der_x509_certificate(data)
    except UNREADABLE:
        return
    check_client_name(holder_of(found).name)


def certificate_seeds(folder: Path) -> dict[str, bytes]:
    ours, key = CertificateAuthority(authority()), new_key()
    issued = {role.value: ours.issue(key.public_key(), role, "shard3") for role in Role}
    made = {"ca": ours.certificate, **issued}
    return {name: found.public_bytes(Encoding.DER) for name, found in made.items()}


def tls_folder(data: bytes, folder: Path) -> None:
    """A folder's files; one that is empty stands for the sound one, so that no key lies in the corpus."""
    for name, content in zip(FILES, split(data, len(FILES)), strict=True):
        (folder / name).write_bytes(content or _sound(name))
    shutil.copy(folder / "server.pem", folder / "cert.pem")
    shutil.copy(folder / "server.key", folder / "key.pem")
    for read in (
        lambda: Credentials.read(folder, SERVER_FILES),
        lambda: Credentials.read(folder, CLIENT_FILES),
        lambda: CertificateAuthority(folder),
        lambda: 5 in RevokedList(folder),
    ):
        with suppress(FkdError):
            read()


def tls_folder_seeds(folder: Path) -> dict[str, bytes]:
    return {
        "sound": join(b"", b"", b"", b"", b""),
        "revoked": join(b"", b"", b"", b"", b"5  # left\n0a:0b\n"),
    }


def mutate_folder(data: bytes, max_size: int, seed: int) -> bytes:
    """Change a byte, or leave out a line, of one of the files."""
    rng = random.Random(seed)
    files = split(data, len(FILES))
    at = rng.randrange(len(FILES))
    content = bytearray(files[at] or _sound(FILES[at]))
    if content and rng.random() < 0.7:
        content[rng.randrange(len(content))] = rng.randrange(256)
    else:
        lines = content.split(b"\n")
        del lines[rng.randrange(len(lines))]
        content = bytearray(b"\n".join(lines))
    files[at] = bytes(content)
    return join(*files)[:max_size]


def _sound(name: str) -> bytes:
    path = authority() / name
    return path.read_bytes() if path.exists() else b""


def enrolment(data: bytes, folder: Path) -> None:
    flags, raw = split(data, 2)
    own = folder / "tls"
    shutil.copytree(authority(), own)
    word = TokenStore(own).create(CertificateAuthority(own), "shard3", timedelta(hours=1))
    request: Any = pb.JoinRequest()
    with suppress(DecodeError):
        request.ParseFromString(raw)
        chosen = flags[0] if flags else 0
        if chosen & SECRET:
            request.secret = decode_token(word)[0].secret
        if chosen & REQUEST:
            request.signing_request = _signing_request(new_key(), "anybody")
        raw = request.SerializeToString()
    answer = pb.JoinResponse.FromString(Enrolment(ServerTls(own)).join(raw, "127.0.0.1"))
    named = holder_of(x509.load_pem_x509_certificate(answer.certificate))
    demand((named.name, named.role) == ("shard3", Role.CLIENT), "the token decides for whom a certificate is")


def enrolment_seeds(folder: Path) -> dict[str, bytes]:
    request = pb.JoinRequest(secret=bytes(32), signing_request=_signing_request(new_key(), "shard3"))
    raw = request.SerializeToString()
    return {
        "sound": join(bytes([SECRET]), raw), "wrong_token": join(b"\0", raw), "both": join(b"\3", b""),
        "bad_request": join(bytes([SECRET]), pb.JoinRequest(signing_request=b"0\x82\x01").SerializeToString()),
    }  # fmt: skip


TARGETS = (
    Target("token", token, token_seeds),
    Target("certificate", certificate, certificate_seeds),
    Target("tls_folder", tls_folder, tls_folder_seeds, mutate_folder),
    Target("enrolment", enrolment, enrolment_seeds),
)
