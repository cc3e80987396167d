"""Names and addresses under which clients reach a coordinator, as certificates carry them; nothing is resolved."""

from __future__ import annotations

import ipaddress
import re
import socket

from cryptography import x509

from fkd_common.errors import UsageError

MAX_HOST_CHARS = 253

_LABEL = r"\w([\w-]*\w)?"
_HOST = re.compile(rf"(\*\.)?({_LABEL}\.)*(?!\d+$){_LABEL}", re.ASCII)
"""A name whose last part is a number would be a mistyped address."""


def default_hosts() -> tuple[str, ...]:
    """Names under which clients may reach this machine, as far as it knows them."""
    own = tuple(name for name in (socket.gethostname(),) if _is_host(name))
    return tuple(dict.fromkeys((*own, "localhost", "127.0.0.1", "::1")))


def general_name(host: str) -> x509.GeneralName:
    """A host name or an address as a subject alternative name.

    Raises:
        UsageError: It is neither.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _is_host(host):
        raise UsageError(f"--host {host!r}: expected a host name or an address, without a port")
    return x509.DNSName(host)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses that a coordinator's certificate is for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in names)


def _is_host(text: str) -> bool:
    return len(text) <= MAX_HOST_CHARS and _HOST.fullmatch(text) is not None
