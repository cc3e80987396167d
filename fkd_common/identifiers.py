"""Names that travel: client names and run ids; text only."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

from fkd_common.errors import InvalidUploadError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_client_name(name: str) -> str:
    """Return the name if it can be a client's id.

    Raises:
        InvalidUploadError: It is empty, too long, or has characters that could escape a file name.
    """
    return _checked(name, "client name")


def check_run_id(name: str) -> str:
    """Return the name if it can be a run's id, which is also the name of its folder.

    Raises:
        InvalidUploadError: It is empty, too long, or has characters that could escape a file name.
    """
    return _checked(name, "run id")


def _checked(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidUploadError(
            f"{what} {name[:80]!r}: expected 1-64 letters, digits, '.', '_' or '-', starting with a letter or digit",
            reason="BAD_NAME",
        )
    return name


def new_run_id() -> str:
    """A sortable, unguessable run id such as 20260131-142501-9f3c."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
