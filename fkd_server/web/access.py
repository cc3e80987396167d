"""Who may look: by certificate, by token, or by being on this machine; knows requests, not what they ask for.

On loopback whoever is there may look, as operators may steer there, unless there is a token; a page of another origin
that has its own name resolve to this machine is told apart by the Host header. With a token, and beyond loopback, it
takes the token, in a header for programs and in a cookie for browsers, or an operator's certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from fkd_common.access.roles import OPERATOR_COMMAND
from fkd_common.addresses import is_loopback
from fkd_common.errors import BusyError, ForbiddenError, UnauthenticatedError, UsageError
from fkd_server.access.identity import Role
from fkd_server.web.look_token import LookToken

if TYPE_CHECKING:
    from fkd_server.access.tls import ServerTls

COOKIE = "fkd_look"
COOKIE_S = 12 * 3600
"""How long a browser may look without showing the token again."""

FREE_GUESSES = 3
"""Wrong tokens from one address before others that are wrong have to wait."""
MAX_WAIT_S = 60.0
MAX_GUESSERS = 4096
"""Addresses that are remembered; the longest unseen is forgotten first."""


@dataclass(frozen=True)
class Viewer:
    """Who looks, as far as it is proved."""

    name: str


class Gate:
    """Decides who may look."""

    def __init__(
        self,
        host: str,
        token: LookToken | None,
        tls: ServerTls | None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Decide for one port.

        Args:
            host: Where it listens.
            token: What lets in, besides certificates.
            tls: Tells operators' certificates.
            clock: Seconds, to slow guesses down.
            wall_clock: Seconds since 1970, for the end of cookies.

        Raises:
            UsageError: Nobody could prove anything.
        """
        self.on_loopback = is_loopback(host)
        if not (self.on_loopback or token or tls):
            raise UsageError(
                f"--http-host {host} would show the run to everybody who can reach it: give --http-token @FILE, or "
                "--tls for operators' certificates"
            )
        self._token = token
        self._tls = tls
        self._wall_clock = wall_clock
        self._guesses = Guesses(clock)

    @property
    def takes_token(self) -> bool:
        """Whether a token lets in."""
        return self._token is not None

    @property
    def open_to_this_machine(self) -> bool:
        """Whether nobody has to prove anything."""
        return self.on_loopback and self._token is None

    def check_host(self, request: web.BaseRequest) -> None:
        """On loopback: see that the request is for this machine.

        Raises:
            ForbiddenError: It is for another.
        """
        if self.on_loopback:
            _check_host(request)

    def viewer(self, request: web.BaseRequest) -> Viewer:
        """Who looks.

        Raises:
            UnauthenticatedError: Nothing that counts was shown.
            ForbiddenError: The caller is known and may not look, or the request is for another host.
            BusyError: Too many wrong tokens came from there.
        """
        self.check_host(request)
        if self.open_to_this_machine:
            return Viewer("this machine")
        kind, _, shown = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            self.check_token(shown.strip(), request.remote or "")
            return Viewer("token")
        if self.holds_cookie(request.cookies.get(COOKIE, "")):
            return Viewer("token")
        if (operator := self._operator(request)) is not None:
            return Viewer(f"operator {operator}")
        raise UnauthenticatedError(
            "this is for operators: expected the header `Authorization: Bearer TOKEN` with the coordinator's "
            f"--http-token, a log-in at /login, or the certificate of one, made by {OPERATOR_COMMAND}"
        )

    def check_token(self, shown: str, address: str) -> None:
        """See that this is the token; the right one is let in whatever came from there before.

        Args:
            shown: What was shown.
            address: Where from.

        Raises:
            UnauthenticatedError: It is not, or there is none.
            BusyError: Too many wrong ones came from there.
        """
        if self._token is None or not _same(shown, self._token.current()):
            self._guesses.check(address)
            self._guesses.wrong(address)
            raise UnauthenticatedError(
                "that token is not this coordinator's --http-token", reason="WRONG_TOKEN"
            )
        self._guesses.right(address)

    def cookie(self) -> str:
        """What a browser keeps in place of the token: when it ends, and our signature."""
        ends = str(int(self._wall_clock()) + COOKIE_S)
        return f"{ends}.{self._signature(ends)}"

    def holds_cookie(self, shown: str) -> bool:
        """Whether this is a cookie of ours that has not ended."""
        ends, _, signature = shown.partition(".")
        if self._token is None or not ends.isdecimal() or not ends.isascii() or len(ends) > 12:
            return False
        return _same(signature, self._signature(ends)) and int(ends) > self._wall_clock()

    def _signature(self, ends: str) -> str:
        # Keyed by the token itself: it outlives a restart, and another token ends it.
        assert self._token is not None
        return hmac.new(
            self._token.current().encode(), f"fkd page until {ends}".encode(), hashlib.sha256
        ).hexdigest()

    def _operator(self, request: web.BaseRequest) -> str | None:
        """The operator whose certificate the connection shows, if it counts; asked at every request."""
        connection = request.transport.get_extra_info("ssl_object") if request.transport else None
        shown = connection.getpeercert(binary_form=True) if connection is not None else None
        if self._tls is None or not shown:
            return None
        peer = self._tls.peer_with(ssl.DER_cert_to_PEM_cert(shown).encode())
        if peer.role is not Role.OPERATOR:
            raise ForbiddenError(
                f"the page is for operators: expected the certificate of one, made by {OPERATOR_COMMAND}, got "
                f"{peer.role} {peer.name}",
                reason="NOT_AN_OPERATOR",
            )
        return peer.name


class Guesses:
    """Wrong tokens by address: after a few, others have to wait, each time twice as long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Let it try.

        Raises:
            BusyError: It has to wait.
        """
        _, until = self._wrong.get(address, (0, 0.0))
        if (left := until - self._clock()) > 0:
            raise BusyError(
                f"too many wrong tokens from {address}: try again in {left:.0f} s", reason="TOO_MANY_GUESSES"
            )

    def wrong(self, address: str) -> None:
        """It was wrong."""
        count = self._wrong.get(address, (0, 0.0))[0] + 1
        wait = min(MAX_WAIT_S, 2.0 ** min(count - FREE_GUESSES, 16)) if count > FREE_GUESSES else 0.0
        self._wrong[address] = (count, self._clock() + wait)
        self._wrong.move_to_end(address)
        if len(self._wrong) > MAX_GUESSERS:
            self._wrong.popitem(last=False)

    def right(self, address: str) -> None:
        """It was right."""
        self._wrong.pop(address, None)


def _same(shown: str, meant: str) -> bool:
    """In a time that does not tell how much of it is right; headers may hold any bytes."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), meant.encode())


def _check_host(request: web.BaseRequest) -> None:
    """On loopback: the browser means this machine, and not a name that somebody else has resolve to it.

    Raises:
        ForbiddenError: It means another.
    """
    meant = request.headers.get("Host", "")
    name = meant.rpartition("]")[0].lstrip("[") if meant.startswith("[") else meant.partition(":")[0]
    if not is_loopback(name.lower()):
        raise ForbiddenError(
            f"this page is for this machine, and the request is for {meant[:80]!r}: use localhost, or serve "
            "beyond this machine with --http-host",
            reason="WRONG_HOST",
        )
