"""Several byte strings in one fuzzer input, so that a mutation of one leaves the others whole."""

from __future__ import annotations


def join(*parts: bytes) -> bytes:
    """Parts as one input: each but the last behind its length, 4 bytes little-endian."""
    *head, last = parts
    return b"".join(len(part).to_bytes(4, "little") + part for part in head) + last


def split(data: bytes, count: int) -> list[bytes]:
    """The parts of an input; what is missing is empty, a length too large takes the rest."""
    parts = []
    for _ in range(count - 1):
        length = int.from_bytes(data[:4], "little")
        parts.append(data[4 : 4 + length])
        data = data[4 + length :]
    return [*parts, data]


def split_all(data: bytes, at_most: int) -> list[bytes]:
    """All parts of an input, up to a number of them."""
    parts = []
    while data and len(parts) < at_most:
        length = int.from_bytes(data[:4], "little")
        parts.append(data[4 : 4 + length])
        data = data[4 + length :]
    return parts


def join_all(parts: list[bytes]) -> bytes:
    """The inverse of :func:`split_all`."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
