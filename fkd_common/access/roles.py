"""What callers may do; reads no certificate, so that plain text needs no cryptography."""

from __future__ import annotations

from enum import StrEnum

OPERATOR_COMMAND = "`fkd-server certs issue NAME --role operator --out DIR`"
"""What makes an operator's certificate."""


class Role(StrEnum):
    """What a caller may do."""

    CLIENT = "client"
    """Take part in runs."""
    OPERATOR = "operator"
    """See and steer runs."""
