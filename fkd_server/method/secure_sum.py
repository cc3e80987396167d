"""The coordinator's half of secure sums: relays keys and shares, adds masked tensors up, takes the masks off the sum.

The protocol and its threat model are in ``fkd_common.secure_sum``. Everything a step needs is in a
:class:`~fkd_server.method.sum_state.SumState` and the uploads of the step, so that a restarted coordinator goes on
where it was. What a sum is for is decided in ``fkd_server.method.fkd_rtm``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from fkd_common.artifacts import Artifact, BlobStore
from fkd_common.method.student_layout import TensorSpec
from fkd_common.secure_sum.fixed_point import from_fixed
from fkd_common.secure_sum.masks import add_mask, commitment, is_usable, private_key, public_bytes
from fkd_common.secure_sum.roster import (
    KEYS_SCHEMA,
    REVEALED_SHARE,
    SEALED_SHARES,
    PublicKeys,
    Roster,
    as_bytes,
    key_share_name,
    seed_share_name,
)
from fkd_common.secure_sum.sharing import ThresholdRule, combine
from fkd_common.secure_sum.steps import SecureStep, Step, Summed
from fkd_common.tensors import Tensors, decode, encode
from fkd_server.method.federated_method import SecureUpload, TaskContent
from fkd_server.method.sum_state import SumState


class SecureSums:
    """Takes secure sums from step to step."""

    def __init__(self, rule: ThresholdRule, blobs: BlobStore, uploads: BlobStore) -> None:
        """Set up for a run.

        Args:
            rule: how many participants a sum needs.
            blobs: where rosters, inboxes and masked sums are kept and served from.
            uploads: where validated uploads wait.
        """
        self._rule = rule
        self._blobs = blobs
        self._uploads = uploads

    # -- what a phase asks ------------------------------------------------------------------------

    def chosen(self, state: SumState | None, place: SecureStep) -> tuple[str, ...]:
        """Who can do a step: those who did the one before; nobody if that was missed."""
        if state is None or state.summed is not place.summed:
            return ()
        answers = {
            (Step.KEYS, Step.SHARES): state.members,
            (Step.SHARES, Step.MASKED): tuple(sorted(state.inboxes)),
            (Step.MASKED, Step.UNMASK): state.delivered,
        }
        return answers.get((state.done, place.step), ())

    def needed(self, state: SumState | None, place: SecureStep) -> int:
        """Answers without which a step has no result."""
        if place.step is Step.KEYS or state is None:
            return self._rule.of(0)
        return self._rule.of(len(state.members))

    def task(self, state: SumState | None, place: SecureStep, client: str) -> TaskContent:
        """What a participant needs for a step, besides what is summed."""
        if state is None or client not in self.chosen(state, place):
            return TaskContent()
        if place.step is Step.SHARES:
            return TaskContent({"roster": state.roster})
        if place.step is Step.MASKED:
            return TaskContent({"inbox": state.inboxes[client]})
        return TaskContent(delivered=state.delivered)

    def schema(
        self, state: SumState | None, place: SecureStep, client: str, summand: Mapping[str, TensorSpec]
    ) -> Mapping[str, TensorSpec]:
        """Names, shapes and dtypes of a participant's answer.

        Args:
            state: the sum at hand.
            place: the step.
            client: who answers.
            summand: schema of what is summed.
        """
        if place.step is Step.KEYS:
            return KEYS_SCHEMA
        if place.step is Step.MASKED:
            return {name: TensorSpec(spec.shape, "uint64") for name, spec in summand.items()}
        if state is None or client not in self.chosen(state, place):
            return {}
        if place.step is Step.SHARES:
            return {peer: SEALED_SHARES for peer in state.members if peer != client}
        return {_share_name(state, peer): REVEALED_SHARE for peer in state.inboxes}

    # -- closing steps ----------------------------------------------------------------------------

    def close(
        self, state: SumState | None, place: SecureStep, uploads: Mapping[str, SecureUpload]
    ) -> SumState:
        """Take in the answers of any step but the last.

        Raises:
            ValueError: There are too few of them.
        """
        if place.step is Step.KEYS:
            return self._keys(place.summed, uploads)
        assert state is not None
        self._check_enough(len(uploads), len(state.members))
        if place.step is Step.SHARES:
            return replace(state, done=Step.SHARES, inboxes=self._inboxes(uploads))
        masked = self._blobs.put_tensors(self._masked_sum(uploads))
        return replace(state, done=Step.MASKED, masked=masked, delivered=tuple(sorted(uploads)))

    def total(self, state: SumState | None, uploads: Mapping[str, SecureUpload]) -> Tensors:
        """Take in the answers of the last step: the sum of what those who delivered sent, float64 by name.

        Raises:
            ValueError: There are too few answers, or what they reveal is not what was published.
        """
        assert state is not None
        assert state.masked is not None
        self._check_enough(len(uploads), len(state.members))
        total = {name: array.copy() for name, array in decode(self._blobs.read(state.masked.sha256)).items()}
        roster = self._roster(state)
        revealed = {roster.position(name): tensors for name, tensors in self._each(uploads)}
        for peer in sorted(state.inboxes):
            name = _share_name(state, peer)
            shares = {position: as_bytes(tensors[name]) for position, tensors in revealed.items()}
            secret = combine(shares, roster.threshold)
            if peer in state.delivered:
                self._take_off_own(total, roster, peer, secret)
            else:
                self._take_off_pairs(total, roster, peer, secret, state.delivered)
        return {name: from_fixed(array) for name, array in total.items()}

    def _check_enough(self, answered: int, participants: int) -> None:
        needed = self._rule.of(participants)
        if answered < needed:
            raise ValueError(
                f"{answered} of {participants} participants answered; a secure sum needs {needed}"
            )

    def _keys(self, summed: Summed, uploads: Mapping[str, SecureUpload]) -> SumState:
        """The roster: all but those whose keys the others would have to refuse."""
        sent = {name: PublicKeys.of(tensors) for name, tensors in self._each(uploads)}
        times = Counter(key for keys in sent.values() for key in (keys.mask, keys.seal))
        kept = {
            name: keys
            for name, keys in sent.items()
            if all(times[key] == 1 and is_usable(key) for key in (keys.mask, keys.seal))
        }
        self._check_enough(len(kept), len(kept))
        rows = Roster(summed, kept, self._rule).tensors()
        return SumState(summed, Step.KEYS, self._blobs.put_tensors(rows), tuple(sorted(rows)))

    def _inboxes(self, uploads: Mapping[str, SecureUpload]) -> dict[str, Artifact]:
        sealed = dict(self._each(uploads))
        return {
            recipient: self._blobs.put(
                encode(
                    {sender: shares[recipient] for sender, shares in sealed.items() if sender != recipient}
                )
            )
            for recipient in sealed
        }

    def _masked_sum(self, uploads: Mapping[str, SecureUpload]) -> Tensors:
        total: Tensors = {}
        for _, tensors in self._each(uploads):
            if not total:
                total = {name: array.copy() for name, array in tensors.items()}
                continue
            for name, array in tensors.items():
                # In place also where an array has no dimensions.
                np.add(total[name], array, out=total[name])
        return total

    def _roster(self, state: SumState) -> Roster:
        return Roster.of(state.summed, decode(self._blobs.read(state.roster.sha256)), self._rule)

    @staticmethod
    def _take_off_own(total: Tensors, roster: Roster, peer: str, seed: bytes) -> None:
        if commitment(seed) != roster.keys[peer].seed_digest:
            raise ValueError(f"the shares of {peer}'s seed do not add up to what it published")
        add_mask(total, roster.self_mask_key(seed), subtract=True)

    @staticmethod
    def _take_off_pairs(
        total: Tensors, roster: Roster, gone: str, secret: bytes, delivered: tuple[str, ...]
    ) -> None:
        """Take off the masks that the others share with one that dropped out."""
        key = private_key(secret, "mask key")
        if public_bytes(key) != roster.keys[gone].mask:
            raise ValueError(f"the shares of {gone}'s mask key do not add up to what it published")
        for peer in delivered:
            # peer added this mask if gone comes after it, and subtracted it otherwise.
            add_mask(total, roster.pair_mask_key(key, peer), subtract=peer < gone)

    def _each(self, uploads: Mapping[str, SecureUpload]) -> Iterator[tuple[str, Tensors]]:
        for name in sorted(uploads):
            yield name, decode(self._uploads.read(uploads[name].artifact.sha256))


def _share_name(state: SumState, peer: str) -> str:
    """Which of a peer's two secrets is uncovered: never both."""
    return seed_share_name(peer) if peer in state.delivered else key_share_name(peer)
