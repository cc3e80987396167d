"""Requests of gRPC calls, read when there is room for them and refused when they are too long; answers nothing."""

from __future__ import annotations

from typing import Any

from fkd_common.errors import InvalidUploadError, TooLargeError
from fkd_common.rpc import Method
from fkd_server.admission import Slot, Slots
from fkd_server.limits import MAX_CONTROL_BYTES


async def read_request(method: Method, slot: Slot, context: Any) -> bytes:
    """The request, once it is here.

    Raises:
        InvalidUploadError: There is none.
        BusyError: The peer is too slow.
    """
    raw = await slot.transfer(context.read())
    if not isinstance(raw, bytes):
        raise InvalidUploadError(
            f"not a {method.name} request: it ended before its message", reason="MALFORMED"
        )
    return raw


async def read_control(method: Method, caller: str, requests: Slots, context: Any) -> bytes:
    """A request that should be short.

    Raises:
        TooLargeError: It is not.
        InvalidUploadError: There is none.
        BusyError: The peer is too slow, or there is no room for it.
    """
    async with requests.slot(caller) as slot:
        raw = await read_request(method, slot, context)
    if len(raw) > MAX_CONTROL_BYTES:
        raise TooLargeError(f"{method.name} request of {len(raw)} bytes; at most {MAX_CONTROL_BYTES}")
    return raw
