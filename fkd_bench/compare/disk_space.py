"""A full disk in one sentence that says where, and what may be deleted; frees nothing itself."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fkd_common.errors import FkdError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_said(place: Path) -> Iterator[None]:
    """Turn whatever a full disk leads to within the block into that sentence.

    Args:
        place: Where is written.

    Raises:
        FkdError: The disk is full.
    """
    try:
        yield
    except Exception as error:
        if _is_full(error):
            raise FkdError(
                f"the disk that has {place} is full: free some space there, the same command goes on then (what cells "
                "share, .cache/work in --out, may be deleted while nothing runs: it is made anew)"
            ) from error
        raise


def _is_full(error: BaseException | None) -> bool:
    """Whether a full disk is the cause of an error, or of what caused it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
