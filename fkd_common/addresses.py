"""Network addresses as people write them; nothing is resolved or opened here."""

from __future__ import annotations

import ipaddress

from fkd_common.errors import UsageError


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``.

    Raises:
        UsageError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--server {address!r}: expected HOST:PORT, for example 127.0.0.1:50051")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """``host:port``, or ``[::1]:port``: a bare IPv6 address would read its last group as the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
