"""A join token as text and back; whether it is still good is the coordinator's affair.

The token carries the coordinator's whole certificate authority (some 400 bytes on curve P-256), so that a new
site never talks to anybody it has not verified. Its secret is the only thing in it worth hiding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

from cryptography import x509
from google.protobuf.message import DecodeError

from fkd_common.access.certificates import UNREADABLE
from fkd_common.errors import InvalidUploadError, UsageError
from fkd_common.identifiers import check_client_name
from fkd_common.pb import enrolment_pb2 as pb

PREFIX = "fkd-join."
SECRET_BYTES = 32
MAX_TOKEN_CHARS = 8192
MAX_ENROLMENT_MESSAGE_BYTES = 8 << 10
"""Largest message of the enrolment service, in bytes: a request is under 1 KiB, an answer some 2 KiB."""
_CHECK_BYTES = 4


def encode_token(token: pb.JoinToken) -> str:
    """A token as one word of text."""
    raw = token.SerializeToString()
    return PREFIX + base64.urlsafe_b64encode(_check(raw) + raw).decode().rstrip("=")


def decode_token(text: str) -> tuple[pb.JoinToken, x509.Certificate]:
    """A token from what a person pasted, and the authority it carries.

    Raises:
        UsageError: It is not a whole token. The message never quotes it.
    """
    word = "".join(text.split())
    try:
        if not word.startswith(PREFIX) or len(word) > MAX_TOKEN_CHARS:
            raise ValueError("it does not begin like one")
        body = word.removeprefix(PREFIX)
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        check, raw = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        if _check(raw) != check:
            raise ValueError("part of it is missing or changed")
        token = pb.JoinToken.FromString(raw)
        check_client_name(token.name)
        if len(token.secret) != SECRET_BYTES:
            raise ValueError("its secret has the wrong length")
        return token, x509.load_der_x509_certificate(token.ca)
    except (*UNREADABLE, DecodeError, binascii.Error, InvalidUploadError) as error:
        raise UsageError(
            f"--join: this is not a whole token from `fkd-server token create` ({error}); paste all of it, or give "
            "@FILE"
        ) from error


def read_token(given: str) -> tuple[pb.JoinToken, x509.Certificate]:
    """A token as given on the command line: itself, or @FILE.

    Raises:
        UsageError: The file cannot be read, or it is not a whole token.
    """
    if not given.startswith("@"):
        return decode_token(given)
    try:
        with Path(given[1:]).open() as file:
            return decode_token(file.read(MAX_TOKEN_CHARS + 1))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--join {given}: the file cannot be read ({error})") from error


def secret_hash(secret: bytes) -> str:
    """What the coordinator keeps of a secret: SHA-256, hex. 256 random bits need no salt."""
    return hashlib.sha256(secret).hexdigest()


def _check(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()[:_CHECK_BYTES]
