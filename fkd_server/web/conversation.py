"""HTTP on the second port as aiohttp speaks it, and what it says to what is no request; knows no paths."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web

from fkd_common.logs import MAX_LIBRARY_CHARS, LibraryLog
from fkd_server.complaints import Complaints
from fkd_server.web.answers import plain, say_of_itself
from fkd_server.web.limits import MAX_HEADERS, MAX_LINE_BYTES, WebLimits


def conversations(
    server: web.Server, limits: WebLimits, complaints: Complaints
) -> Callable[[], asyncio.Protocol]:
    """What makes a conversation for each connection.

    Args:
        server: Answers requests.
        limits: How long a connection may be idle.
        complaints: Told of what is no request.
    """
    loop, log = asyncio.get_running_loop(), http_log()

    def begin() -> Conversation:
        begun = Conversation(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # none, as a runner may be told
            logger=log,
            keepalive_timeout=limits.idle_s,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=1.0,
            auto_decompress=False,
        )
        begun.complaints = complaints
        return begun

    return begin


def http_log() -> logging.Logger:
    """What aiohttp is to write to."""
    logger = logging.Logger("fkd.web", logging.WARNING)
    logger.addHandler(LibraryLog("bad_request"))
    return logger


class Conversation(web.RequestHandler):
    """HTTP on one connection; what is not HTTP is answered and complained of in our way."""

    complaints: Complaints

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what aiohttp cannot make a request of, or what no handler has taken care of."""
        detail = " ".join(f"{type(exc).__name__}: {exc}".split())[:MAX_LIBRARY_CHARS]
        self.complaints.warning("bad_request", request.remote or "", detail=detail)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        response = plain(status, f"{HTTPStatus(status).phrase}: this is no request that can be answered")
        say_of_itself(response)
        response.force_close()
        return response
