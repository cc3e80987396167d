"""Asks the coordinator in this container whether it answers: what HEALTHCHECK runs; needs nothing but Python.

Where the port is given by a flag rather than by FKD_HTTP_PORT or FKD_PORT, give it as an argument.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_S = 2.0


def alive(port: int) -> bool:
    """Whether /livez answers, over plain HTTP or, with --tls beyond loopback, over HTTPS."""
    unverified = ssl.create_default_context()  # the certificate names the host, not 127.0.0.1
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    ways = (
        HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S),
        HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=unverified),
    )
    return any(_answers(way) for way in ways)


def _answers(way: HTTPConnection) -> bool:
    with contextlib.closing(way):
        try:
            way.request("GET", "/livez")
            return way.getresponse().status == 200
        except (HTTPException, OSError):
            return False


def port_of(arguments: list[str]) -> int:
    """The port as given, else that of the environment, else the default: two after the main port."""
    given = arguments[0] if arguments else os.environ.get("FKD_HTTP_PORT", "")
    return int(given or int(os.environ.get("FKD_PORT") or 50051) + 2)


if __name__ == "__main__":
    sys.exit(0 if alive(port_of(sys.argv[1:])) else 1)
