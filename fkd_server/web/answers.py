"""Answers of the second port: texts, JSON, files and refusals, with the headers of all; decides nothing."""

from __future__ import annotations

import json
import mimetypes
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web

from fkd_common.errors import (
    BusyError,
    FkdError,
    ForbiddenError,
    InvalidUploadError,
    NotFoundError,
    UnauthenticatedError,
    UnreachableError,
)

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""

_STATUS: dict[type[FkdError], HTTPStatus] = {
    UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    NotFoundError: HTTPStatus.NOT_FOUND,
    InvalidUploadError: HTTPStatus.BAD_REQUEST,
    BusyError: HTTPStatus.TOO_MANY_REQUESTS,
    UnreachableError: HTTPStatus.SERVICE_UNAVAILABLE,
}


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """aiohttp asks for them before it sends an answer."""
    say_of_itself(response)


def say_of_itself(response: web.StreamResponse) -> None:
    """What every answer says of itself; a handler's own word stands."""
    response.headers["Server"] = "fkd"
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def read_page(folder: Path) -> dict[str, tuple[str, bytes]]:
    """The page's files by name, with their types: small, and read once, so that no path is ever made of a request."""
    files = {}
    for path in sorted(folder.iterdir()):
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        text = kind.startswith("text/") or kind.endswith("javascript")
        files[path.name] = (f"{kind}; charset=utf-8" if text else kind, path.read_bytes())
    return files


def json_answer(content: dict[str, Any], status: int = HTTPStatus.OK) -> web.Response:
    """For programs."""
    return web.json_response(content, status=status, dumps=_dumps)


def _dumps(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


def plain(status: int, text: str, headers: Any = None) -> web.Response:
    """One sentence; of the headers of an HTTP error only what helps."""
    kept = {"Allow": headers["Allow"]} if headers and "Allow" in headers else None
    return web.Response(status=status, text=f"{text}\n", headers=kept)


def see_other(path: str) -> web.Response:
    """Send a browser elsewhere."""
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})


def refusal(request: web.Request, error: FkdError) -> web.Response:
    """What is wrong, for a person, and for a program that asked for JSON."""
    status = next(
        (_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), HTTPStatus.INTERNAL_SERVER_ERROR
    )
    if request.path.startswith("/api/"):
        answer = json_answer({"error": str(error), "reason": error.reason}, status)
    else:
        answer = plain(status, str(error))
    if status is HTTPStatus.UNAUTHORIZED:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="fkd"'
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        answer.headers["Retry-After"] = "1"
    return answer
