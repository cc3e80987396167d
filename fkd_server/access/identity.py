"""Who is calling: what a connection proves about its peer; no certificates are read here.

Without TLS nothing is proved: the coordinator then listens on loopback only, and a client's name is what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fkd_common.access.roles import Role

if TYPE_CHECKING:
    from fkd_server.access.tls import ServerTls

__all__ = ["UNPROVEN", "Peer", "Role", "host_of", "peer_of"]


@dataclass(frozen=True)
class Peer:
    """The other end of a connection."""

    name: str | None = None
    """The name in its certificate; None where there is none."""
    role: Role | None = None
    """The role in its certificate; None where there is none."""


UNPROVEN = Peer()
"""A peer of a plain-text connection, or within this process."""


def peer_of(tls: ServerTls | None, context: Any) -> Peer:
    """Who makes a call; nobody in particular without TLS.

    Raises:
        UnauthenticatedError: The certificate does not count.
    """
    return UNPROVEN if tls is None else tls.peer_of(context)


def host_of(context: Any) -> str:
    """The address a call comes from, without its port: `127.0.0.1`, `::1`, or what gRPC calls another transport."""
    kind, _, rest = unquote(str(context.peer())).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else kind
