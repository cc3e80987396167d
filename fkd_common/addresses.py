"""Network addresses as people write them; no connection is made here."""

from __future__ import annotations

import ipaddress
import socket

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


def reaches(host: str, listening: str) -> bool:
    """Whether a caller on this machine that connects to `host` comes to what listens on the address `listening`.

    A host whose name cannot be resolved reaches nobody.
    """
    own = _addresses(listening)
    everywhere = any(address.is_unspecified for address in own)
    return any(address in own or (everywhere and _is_this_machines(address)) for address in _addresses(host))


def _addresses(host: str) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """What a name stands for."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found}


def _is_this_machines(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
