"""The public keys of a secure sum's participants, and what follows from them: context, threshold, pairwise masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fkd_common.method.student_layout import TensorSpec
from fkd_common.secure_sum.masks import KEY_BYTES, SEALED_OVERHEAD, agree, derive
from fkd_common.secure_sum.sharing import SECRET_BYTES, ThresholdRule
from fkd_common.secure_sum.steps import Summed

KEYS_SCHEMA: Mapping[str, TensorSpec] = {
    "mask_key": TensorSpec((KEY_BYTES,), "uint8"),
    "seal_key": TensorSpec((KEY_BYTES,), "uint8"),
    "seed_digest": TensorSpec((KEY_BYTES,), "uint8"),
}
"""What a participant publishes first."""
ROSTER_ROW = TensorSpec((3 * KEY_BYTES,), "uint8")
"""The same of one participant within the roster, in the order of KEYS_SCHEMA."""
SEALED_SHARES = TensorSpec((2 * SECRET_BYTES + SEALED_OVERHEAD,), "uint8")
"""Two shares, of the mask key's secret and of the seed, sealed for one peer."""
REVEALED_SHARE = TensorSpec((SECRET_BYTES,), "uint8")
"""One share in clear."""


def as_bytes(array: NDArray[Any]) -> bytes:
    """The bytes of a uint8 tensor."""
    return array.tobytes()


def as_tensor(data: bytes) -> NDArray[np.uint8]:
    """Bytes as a uint8 tensor, the form in which keys and shares travel."""
    return np.frombuffer(data, dtype=np.uint8)


def seed_share_name(client: str) -> str:
    """Name of the tensor that reveals a share of the seed of a client that delivered."""
    return f"seed/{client}"


def key_share_name(client: str) -> str:
    """Name of the tensor that reveals a share of the mask key's secret of a client that dropped out."""
    return f"key/{client}"


@dataclass(frozen=True)
class PublicKeys:
    """What everybody knows of one participant."""

    mask: bytes
    seal: bytes
    seed_digest: bytes

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]]) -> PublicKeys:
        """From tensors of KEYS_SCHEMA."""
        return cls(*(as_bytes(tensors[name]) for name in KEYS_SCHEMA))

    def tensors(self) -> dict[str, NDArray[np.uint8]]:
        """As tensors of KEYS_SCHEMA."""
        values = (self.mask, self.seal, self.seed_digest)
        return {name: as_tensor(value) for name, value in zip(KEYS_SCHEMA, values, strict=True)}


@dataclass(frozen=True)
class Roster:
    """The participants of one secure sum; position i of their sorted names holds the shares numbered i + 1."""

    summed: Summed
    keys: Mapping[str, PublicKeys]
    rule: ThresholdRule

    @classmethod
    def of(cls, summed: Summed, rows: Mapping[str, NDArray[Any]], rule: ThresholdRule) -> Roster:
        """From the tensors of :meth:`tensors`.

        Raises:
            ValueError: A row has the wrong shape, or a key occurs twice.
        """
        keys = {}
        for name in sorted(rows):
            row = rows[name]
            if row.shape != ROSTER_ROW.shape or row.dtype != np.uint8:
                raise ValueError(
                    f"roster: the keys of {name} have shape {row.shape} of {row.dtype}, expected "
                    f"{ROSTER_ROW.shape} of uint8"
                )
            data = as_bytes(row)
            keys[name] = PublicKeys(*(data[i * KEY_BYTES :][:KEY_BYTES] for i in range(3)))
        published = [key for k in keys.values() for key in (k.mask, k.seal)]
        if len(set(published)) != len(published):
            raise ValueError("roster: a public key occurs twice; keys are never used again")
        return cls(summed, keys, rule)

    def tensors(self) -> dict[str, NDArray[np.uint8]]:
        """By participant, its public keys in one row: what every participant is sent."""
        return {name: as_tensor(k.mask + k.seal + k.seed_digest) for name, k in self.keys.items()}

    @property
    def threshold(self) -> int:
        """Participants without which nothing is revealed."""
        return self.rule.of(len(self.keys))

    @cached_property
    def context(self) -> bytes:
        """What binds keys to this sum: its kind, and the hash of everybody's fresh public keys and names."""
        digest = hashlib.sha256(self.summed.encode())
        for name, k in sorted(self.keys.items()):
            digest.update(b"|" + name.encode() + b"|" + k.mask + k.seal + k.seed_digest)
        return digest.digest()

    def position(self, name: str) -> int:
        """Number of a participant's shares, from 1."""
        return sorted(self.keys).index(name) + 1

    def pair_mask_key(self, own: X25519PrivateKey, peer: str) -> bytes:
        """Key of the mask that the owner of a mask key and a peer share; the same from either side."""
        return derive(agree(own, self.keys[peer].mask), "pair mask", self.context)

    def self_mask_key(self, seed: bytes) -> bytes:
        """Key of the mask that only its owner adds."""
        return derive(seed, "self mask", self.context)

    def seal_key(self, own: X25519PrivateKey, peer: str, sender: str, recipient: str) -> bytes:
        """Key that seals the shares of one sender for one recipient."""
        purpose = f"seal {sender} {recipient}"
        return derive(agree(own, self.keys[peer].seal), purpose, self.context, length=16)
