"""Keys and masks of a secure sum: X25519, HKDF-SHA256, AES-128-GCM, ChaCha20; no secret outlives its caller.

Primitives are those of the ``cryptography`` package. Every key is derived for one purpose in one sum: the HKDF info
names the purpose and the sum's context (``Roster.context``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 32
"""Of a public key, a pairwise secret and a mask key."""
SEALED_OVERHEAD = 12 + 16
"""Bytes that sealing adds: nonce and tag."""

_PIECE = 1 << 20
"""Keystream bytes made at a time, to bound memory."""


def derive(secret: bytes, purpose: str, context: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 (RFC 5869) of a secret, for one purpose in one context."""
    info = b"fkd secure sum v1|" + purpose.encode() + b"|" + context
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


def private_key(secret: bytes, purpose: str) -> X25519PrivateKey:
    """The X25519 key (RFC 7748) expanded from a 16-byte secret."""
    return X25519PrivateKey.from_private_bytes(derive(secret, purpose, b""))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The 32 bytes of a key that everybody may know."""
    return key.public_key().public_bytes_raw()


def agree(own: X25519PrivateKey, peer: bytes) -> bytes:
    """The secret two keys share.

    Raises:
        ValueError: The peer's key is malformed or of low order.
    """
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise ValueError(f"a public key cannot be used: {error}") from error


def is_usable(public: bytes) -> bool:
    """Whether a public key agrees with others; made-up ones of low order would stop everybody else."""
    try:
        agree(X25519PrivateKey.generate(), public)
    except ValueError:
        return False
    return True


def commitment(seed: bytes) -> bytes:
    """SHA-256 digest by which a revealed seed is recognised; says nothing of 128 random bits."""
    return hashlib.sha256(b"fkd secure sum v1|seed|" + seed).digest()


def seal(key: bytes, plain: bytes, associated: bytes) -> bytes:
    """Encrypt and authenticate: nonce, then AES-GCM ciphertext and tag."""
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, plain, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """What :func:`seal` sealed.

    Raises:
        ValueError: It was sealed with another key, for another purpose, or was changed.
    """
    try:
        return AESGCM(key).decrypt(sealed[:12], sealed[12:], associated)
    except InvalidTag as error:
        raise ValueError(
            "a sealed share does not open: it was changed, or meant for somebody else"
        ) from error


def add_mask(total: Mapping[str, NDArray[np.uint64]], key: bytes, *, subtract: bool = False) -> None:
    """Add PRG(key) to tensors, in place, modulo 2^64.

    Args:
        total: contiguous uint64 tensors; masked in the order of their names.
        key: 32 bytes, used for one mask only. PRG is the ChaCha20 keystream (RFC 8439) as little-endian uint64.
        subtract: take the mask off again.
    """
    # A key makes one stream only, so its nonce may be constant.
    stream: Any = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    for name in sorted(total):
        flat = total[name].reshape(-1)
        assert np.shares_memory(flat, total[name]) or not flat.size
        for start in range(0, flat.size, _PIECE // 8):
            piece = flat[start : start + _PIECE // 8]
            mask = np.frombuffer(stream.update(bytes(8 * piece.size)), dtype="<u8")
            if subtract:
                piece -= mask
            else:
                piece += mask
