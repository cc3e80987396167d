"""From a token in a form to a cookie; whether the token is right is decided elsewhere."""

from __future__ import annotations

import structlog
from aiohttp import web

from fkd_common.errors import InvalidUploadError, UnauthenticatedError
from fkd_server.complaints import Complaints
from fkd_server.web.access import COOKIE, COOKIE_S, Gate
from fkd_server.web.answers import see_other
from fkd_server.web.look_token import MAX_TOKEN_CHARS


class LogIn:
    """Answers POST /login."""

    def __init__(self, gate: Gate, complaints: Complaints, *, secure: bool) -> None:
        """Take tokens.

        Args:
            gate: Knows which is right.
            complaints: Told of wrong ones.
            secure: Whether browsers are to keep the cookie to HTTPS.
        """
        self._gate = gate
        self._complaints = complaints
        self._secure = secure
        self._log = structlog.get_logger()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """To the page, with a cookie, or back to the form.

        Raises:
            InvalidUploadError: It is not the form.
            BusyError: Too many wrong tokens came from there.
        """
        token = await _token(request)
        try:
            self._gate.check_token(token, request.remote or "")
        except UnauthenticatedError as error:
            self._complaints.warning("look_refused", request.remote or "", path="/login", reason=error.reason)
            return see_other("/login#refused")
        self._log.info("logged_in", address=request.remote)
        answer = see_other("/")
        answer.set_cookie(
            COOKIE,
            self._gate.cookie(),
            max_age=COOKIE_S,
            httponly=True,
            samesite="Strict",
            secure=self._secure,
        )
        return answer


async def _token(request: web.Request) -> str:
    shown: object = None
    if request.content_type == "application/x-www-form-urlencoded":
        try:
            shown = (await request.post()).get("token")
        except (ValueError, LookupError):  # of another character set, or of one that there is not
            shown = None
    if not isinstance(shown, str):
        raise InvalidUploadError("expected the form of /login", reason="MALFORMED")
    return shown.strip()[: MAX_TOKEN_CHARS + 1]
