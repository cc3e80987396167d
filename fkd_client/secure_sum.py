"""A client's half of secure sums: its secrets, what it says at each step, what it refuses to say; no network.

The protocol and its threat model are in ``fkd_common.secure_sum``. Secrets live in this object's memory for one sum
and are dropped when their last step is done: a client that restarts in between cannot finish, says so, and the
others' shares make up for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import SecureSumError
from fkd_common.secure_sum.fixed_point import from_fixed, to_fixed
from fkd_common.secure_sum.masks import add_mask, commitment, private_key, public_bytes, seal, unseal
from fkd_common.secure_sum.roster import (
    SEALED_SHARES,
    PublicKeys,
    Roster,
    as_bytes,
    as_tensor,
    key_share_name,
    seed_share_name,
)
from fkd_common.secure_sum.sharing import SECRET_BYTES, ThresholdRule, split
from fkd_common.secure_sum.steps import Summed
from fkd_common.tensors import Tensors


class Participant:
    """One client in one secure sum; its steps are called in order, and a repeated step says the same again."""

    def __init__(self, name: str, summed: Summed, rule: ThresholdRule) -> None:
        """Make fresh secrets.

        Args:
            name: this client.
            summed: what is summed.
            rule: how many are needed.
        """
        self._name, self._summed, self._rule = name, summed, rule
        self._key_secret, self._seed = os.urandom(SECRET_BYTES), os.urandom(SECRET_BYTES)
        self._mask_key = private_key(self._key_secret, "mask key")
        self._seal_key = private_key(os.urandom(SECRET_BYTES), "seal key")
        self._public = PublicKeys(
            public_bytes(self._mask_key), public_bytes(self._seal_key), commitment(self._seed)
        )
        self._roster: Roster | None = None
        self._sealed: Tensors = {}
        self._own_shares = b""
        self._opened: dict[str, bytes] = {}
        self._masked: bytes | None = None
        self._delivered: tuple[str, ...] | None = None

    def keys(self) -> Tensors:
        """Step 1: the public keys."""
        return dict(self._public.tensors())

    def shares(self, rows: Mapping[str, NDArray[Any]]) -> Tensors:
        """Step 2: for every peer, sealed for it alone, a share of this client's two secrets.

        Args:
            rows: the roster, as the coordinator sent it.

        Returns:
            By recipient, uint8 tensors.

        Raises:
            SecureSumError: The roster is not acceptable, or is another one than before.
        """
        with _refusing():
            roster = Roster.of(self._summed, rows, self._rule)
        if self._roster is not None:
            if self._roster.context != roster.context:
                raise SecureSumError(
                    "the coordinator sent two different rosters for one secure sum: refusing to go on"
                )
            return self._sealed
        if roster.keys.get(self._name) != self._public:
            raise SecureSumError("the coordinator's roster does not hold the keys this client published")
        if len(roster.keys) < roster.threshold:
            raise SecureSumError(
                f"a secure sum over {len(roster.keys)} participants; at least {roster.threshold} are needed"
            )
        key_shares = split(self._key_secret, roster.threshold, len(roster.keys))
        seed_shares = split(self._seed, roster.threshold, len(roster.keys))
        for peer in roster.keys:
            both = key_shares[roster.position(peer) - 1] + seed_shares[roster.position(peer) - 1]
            if peer == self._name:
                self._own_shares = both
                continue
            with _refusing(f"the keys of {peer}: "):
                key = roster.seal_key(self._seal_key, peer, self._name, peer)
            self._sealed[peer] = as_tensor(seal(key, both, roster.context))
        self._roster = roster
        return self._sealed

    def masked(self, values: Mapping[str, NDArray[Any]], inbox: Mapping[str, NDArray[Any]]) -> Tensors:
        """Step 3: this client's summand, hidden.

        Args:
            values: real tensors to be summed.
            inbox: by sender, the shares that peers sealed for this client; they take part, and nobody else does.

        Returns:
            uint64 tensors of the same names and shapes.

        Raises:
            SecureSumError: Step 2 was not done here, too few peers take part, a share does not open, a value does
                not fit, or other values were masked before.
        """
        roster = self._known_roster()
        with _refusing():
            total = {name: to_fixed(array, len(roster.keys)) for name, array in values.items()}
        self._open(roster, inbox)
        for peer in self._opened:
            if peer != self._name:
                with _refusing(f"the keys of {peer}: "):
                    key = roster.pair_mask_key(self._mask_key, peer)
                add_mask(total, key, subtract=peer < self._name)
        add_mask(total, roster.self_mask_key(self._seed))
        # Two summands under one mask would show their difference.
        digest = _digest(total)
        if self._masked not in (None, digest):
            raise SecureSumError("other values were masked before in this secure sum: refusing to mask again")
        self._masked = digest
        return total

    def revealed(self, delivered: Sequence[str]) -> Tensors:
        """Step 4: what takes the remaining masks off the sum.

        Args:
            delivered: whose masked tensors are in the sum; all others that took part dropped out.

        Returns:
            uint8 tensors: a share of the seed of each that delivered, of the mask key's secret of each other.

        Raises:
            SecureSumError: Too few delivered, somebody delivered who takes no part, or this client answered before
                for other ones: both shares of one peer would uncover it.
        """
        roster, names = self._known_roster(), tuple(sorted(delivered))
        strangers = sorted(set(names) - set(self._opened))
        if strangers or len(set(names)) != len(names):
            raise SecureSumError(f"not in this secure sum, or named twice: {', '.join(strangers or names)}")
        if len(names) < roster.threshold:
            raise SecureSumError(
                f"only {len(names)} of {len(roster.keys)} delivered; below {roster.threshold} nothing is revealed"
            )
        if self._delivered not in (None, names):
            raise SecureSumError(
                "the coordinator asks again with another list of who delivered: refusing to answer"
            )
        self._delivered = names
        shares: Tensors = {}
        for peer, both in self._opened.items():
            if peer in names:
                shares[seed_share_name(peer)] = as_tensor(both[SECRET_BYTES:])
            else:
                shares[key_share_name(peer)] = as_tensor(both[:SECRET_BYTES])
        return shares

    def _known_roster(self) -> Roster:
        if self._roster is None:
            raise SecureSumError(
                "this client sent no shares in this secure sum: it cannot take part any more"
            )
        return self._roster

    def _open(self, roster: Roster, inbox: Mapping[str, NDArray[Any]]) -> None:
        """Open the shares of those who take part, at most once."""
        senders = {*inbox, self._name}
        strangers = sorted(senders - set(roster.keys))
        if strangers:
            raise SecureSumError(f"shares of {', '.join(strangers)}, not in the roster")
        if len(senders) < roster.threshold:
            raise SecureSumError(
                f"{len(senders)} of {len(roster.keys)} sent shares; a secure sum needs {roster.threshold}"
            )
        if self._opened and set(self._opened) != senders:
            raise SecureSumError("the coordinator names other participants than before: refusing to go on")
        opened = {self._name: self._own_shares}
        for sender in sorted(inbox):
            sealed = inbox[sender]
            if sealed.shape != SEALED_SHARES.shape or sealed.dtype != np.uint8:
                raise SecureSumError(
                    f"the shares of {sender} have shape {sealed.shape} of {sealed.dtype}, expected "
                    f"{SEALED_SHARES.shape} of uint8"
                )
            with _refusing(f"from {sender}: "):
                key = roster.seal_key(self._seal_key, sender, sender, self._name)
                opened[sender] = unseal(key, as_bytes(sealed), roster.context)
        self._opened = opened


class OwnSums:
    """This client's part in the secure sum at work; at most one is at work at a time."""

    def __init__(self, name: str, rule: ThresholdRule) -> None:
        """Set up for a run.

        Args:
            name: this client.
            rule: how many participants a sum needs.
        """
        self._name, self._rule = name, rule
        self._at_work: tuple[int, Summed, Participant] | None = None

    def begin(self, round_number: int, summed: Summed) -> Participant:
        """Take part in a sum; secrets of an earlier one are dropped. Beginning twice changes nothing."""
        if self._at_work is None or self._at_work[:2] != (round_number, summed):
            self._at_work = (round_number, summed, Participant(self._name, summed, self._rule))
        return self._at_work[2]

    def going_on(self, round_number: int, summed: Summed) -> Participant:
        """This client's part in the sum that it began.

        Raises:
            SecureSumError: It began none, or another one.
        """
        if self._at_work is None or self._at_work[:2] != (round_number, summed):
            raise SecureSumError(
                f"this client holds no secrets for the {summed} sum of round {round_number}: it was started again "
                "since the sum began, or has given its last answer; the others can finish without it"
            )
        return self._at_work[2]

    def end(self) -> None:
        """Drop the secrets."""
        self._at_work = None


def student_summand(state: Mapping[str, NDArray[Any]], weight: float) -> Tensors:
    """A client's part of Eqs. 14-15: its student times its weight, and the weight.

    Args:
        state: the student's tensors; integer ones, the step counters, take no part: times a weight they would
            soon leave the range of the fixed point, and the sum has no use for them.
        weight: w_k = n_k·max(r_k, τ_r), or 0 for a client that stays out of the average.

    Returns:
        float64 by name, and "weight", shape ().
    """
    weight = float(from_fixed(to_fixed(np.array(weight), 1)))  # numerator and denominator with the same bits
    weighted: Tensors = {
        name: np.asarray(array, dtype=np.float64) * weight
        for name, array in state.items()
        if not np.issubdtype(array.dtype, np.integer)
    }
    return {**weighted, "weight": np.array(weight, dtype=np.float64)}


@contextmanager
def _refusing(where: str = "") -> Iterator[None]:
    """What others sent cannot be used: refuse to go on, and say why."""
    try:
        yield
    except ValueError as error:
        raise SecureSumError(f"{where}{error}") from error


def _digest(tensors: Tensors) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.digest()
