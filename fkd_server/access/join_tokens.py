"""Join tokens as files: made, listed, withdrawn, used once; nothing is signed here.

Tokens are for clients only: what an operator holds is made where the authority's key is, and carried by hand.

`tokens/HASH.json` is a token that waits, `tokens/HASH.used.json` one that was used, with the certificate it was
traded for: a site whose answer got lost asks again with the same key and gets the same certificate.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import BaseModel, ConfigDict, ValidationError

from fkd_common.access.certificates import replace, utc_now
from fkd_common.access.join_token import SECRET_BYTES, encode_token, secret_hash
from fkd_common.errors import UnauthenticatedError, UsageError
from fkd_common.pb import enrolment_pb2 as pb
from fkd_server.access.certificates import CertificateAuthority, check_name

TOKENS_FOLDER = "tokens"
SHORT_ID = 12
"""Hex digits of a token's hash by which people call it."""

_USED = ".used.json"


class TokenState(StrEnum):
    """Where a token is in its life."""

    WAITING = "waiting"
    USED = "used"
    EXPIRED = "expired"
    DAMAGED = "damaged"
    """Its file tells nothing, and nobody gets anything for it."""


class StoredToken(BaseModel):
    """What the coordinator knows of a token: not the token itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    expires: datetime
    key_hash: str = ""
    """SHA-256 of the public key it was used with, hex."""
    certificate: str = ""
    """The certificate it was traded for, PEM."""


@dataclass(frozen=True)
class ListedToken:
    """A token for a list."""

    token_id: str
    state: TokenState
    stored: StoredToken | None
    """None where the file is damaged."""

    @property
    def name(self) -> str:
        """Whose it is, as far as is known."""
        return self.stored.name if self.stored else "?"


class TokenStore:
    """The tokens of a folder; two processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / TOKENS_FOLDER

    def create(self, authority: CertificateAuthority, name: str, valid: timedelta) -> str:
        """Make a token; returns its text, which is kept nowhere.

        Raises:
            UsageError: The name cannot be one.
        """
        check_name(name)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        secret = secrets.token_bytes(SECRET_BYTES)
        stored = StoredToken(name=name, expires=utc_now() + valid)
        replace(self._waiting(secret_hash(secret)), stored.model_dump_json().encode(), private=True)
        ca = authority.certificate.public_bytes(Encoding.DER)
        return encode_token(pb.JoinToken(ca=ca, name=name, secret=secret))

    def redeem(self, secret: bytes, key_hash: str, sign: Callable[[StoredToken], str]) -> StoredToken:
        """Trade a token for a certificate, once.

        Args:
            secret: The token's secret.
            key_hash: SHA-256 of the public key that asks, hex.
            sign: Makes the certificate, PEM.

        Returns:
            The token, used, with its certificate.

        Raises:
            UnauthenticatedError: There is no such token, or it was used with another key, or has expired.
        """
        token_hash = secret_hash(secret)
        used = self._read(self._used(token_hash))
        if used is None:
            waiting = self._read(self._waiting(token_hash))
            if waiting is None:
                raise UnauthenticatedError(
                    "no such token here: it was withdrawn, or made by another coordinator; ask for one from "
                    "`fkd-server token create NAME`",
                    reason="TOKEN_UNKNOWN",
                )
            _check_expiry(waiting)
            used = self._consume(
                token_hash, waiting.model_copy(update={"key_hash": key_hash, "certificate": sign(waiting)})
            )
        _check_expiry(used)
        if used.key_hash != key_hash:
            raise UnauthenticatedError(
                f"the token for {used.name} was used before, with another key; if that was not you, revoke "
                f"{used.name} and look who has it; else ask for a new token",
                reason="TOKEN_USED",
            )
        return used

    def listed(self) -> list[ListedToken]:
        """All tokens, by name; damaged ones too.

        Raises:
            UsageError: There is no folder.
        """
        if not self._folder.parent.is_dir():
            raise UsageError(
                f"--tls {self._folder.parent}: no folder there; expected one made by `fkd-server certs init`"
            )
        found = [self._listed(path) for path in sorted(self._folder.glob("*.json"))]
        return sorted(
            found, key=lambda token: (token.name, token.stored.expires if token.stored else utc_now())
        )

    def _listed(self, path: Path) -> ListedToken:
        stored = self._read(path)
        if path.name.endswith(_USED):
            state = TokenState.USED
        elif stored is None:
            state = TokenState.DAMAGED
        else:
            state = TokenState.EXPIRED if stored.expires < utc_now() else TokenState.WAITING
        return ListedToken(path.name[:SHORT_ID], state, stored)

    def withdraw(self, name_or_id: str) -> list[ListedToken]:
        """Make tokens that wait worthless.

        Raises:
            UsageError: No token of that name or id waits.
        """
        gone = [
            token
            for token in self.listed()
            if name_or_id in (token.name, token.token_id) and token.state is not TokenState.USED
        ]
        if not gone:
            raise UsageError(
                f"no token of {name_or_id!r} waits to be used; `fkd-server token list` shows them"
            )
        for token in gone:
            for path in self._folder.glob(f"{token.token_id}*.json"):
                if not path.name.endswith(_USED):
                    path.unlink(missing_ok=True)
        return gone

    def _consume(self, token_hash: str, used: StoredToken) -> StoredToken:
        """Mark a token as used, whole and exactly once; whoever was first stays so."""
        waiting, claimed = self._waiting(token_hash), self._folder / f".{token_hash}.{secrets.token_hex(4)}"
        replace(claimed, used.model_dump_json().encode(), private=True)
        try:
            os.link(claimed, self._used(token_hash))  # fails if it is there, unlike a rename
        except FileExistsError:
            first = self._read(self._used(token_hash))
            assert first is not None
            used = first
        finally:
            claimed.unlink()
        waiting.unlink(missing_ok=True)
        return used

    def _waiting(self, token_hash: str) -> Path:
        return self._folder / f"{token_hash}.json"

    def _used(self, token_hash: str) -> Path:
        return self._folder / f"{token_hash}{_USED}"

    @staticmethod
    def _read(path: Path) -> StoredToken | None:
        try:
            return StoredToken.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None


def _check_expiry(token: StoredToken) -> None:
    if utc_now() > token.expires:
        raise UnauthenticatedError(
            f"the token for {token.name} expired at {token.expires:%Y-%m-%d %H:%M} UTC: ask for a new one, or set the "
            "coordinator's clock",
            reason="TOKEN_EXPIRED",
        )
