"""Both halves against each other, without a run: sums come out, drop-outs are made up for, nothing more is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from fkd_client.secure_sum import Participant
from fkd_common.artifacts import BlobStore
from fkd_common.errors import SecureSumError
from fkd_common.secure_sum.roster import PublicKeys, Roster
from fkd_common.secure_sum.sharing import ThresholdRule
from fkd_common.secure_sum.steps import SecureStep, Step, Summed
from fkd_common.tensors import Tensors, decode, encode
from fkd_server.method.federated_method import SecureUpload
from fkd_server.method.secure_sum import SecureSums
from fkd_server.method.sum_state import SumState

RULE = ThresholdRule(2 / 3)
KEYS, SHARES, MASKED, UNMASK = (SecureStep(Summed.STUDENT, step) for step in Step)


class Sum:
    """Four clients a, b, c, d (threshold 3) that add 1, 10, 100, 1000, and the coordinator's half."""

    def __init__(self, folder: Path, names: str = "abcd") -> None:
        self.blobs, self.uploads = BlobStore(folder / "blobs"), BlobStore(folder / "uploads")
        self.half = SecureSums(RULE, self.blobs, self.uploads)
        self.parts = {name: Participant(name, Summed.STUDENT, RULE) for name in names}
        self.values = {
            name: {"w": np.array([10.0**i, -0.5]), "n": np.array(i)} for i, name in enumerate(names)
        }
        self.state: SumState | None = None

    def upload(self, tensors: Tensors) -> SecureUpload:
        return SecureUpload(self.uploads.put(encode(tensors)))

    def read(self, name: str, kind: str) -> Tensors:
        assert self.state is not None
        artifact = self.state.roster if kind == "roster" else self.state.inboxes[name]
        return decode(self.blobs.read(artifact.sha256))

    def close(self, place: SecureStep, answers: dict[str, Tensors]) -> None:
        uploads = {name: self.upload(tensors) for name, tensors in answers.items()}
        self.state = self.half.close(self.state, place, uploads)

    def keys(self, who: Iterable[str]) -> None:
        self.close(KEYS, {name: self.parts[name].keys() for name in who})

    def shares(self, who: Iterable[str]) -> None:
        self.close(SHARES, {name: self.parts[name].shares(self.read(name, "roster")) for name in who})

    def masked(self, who: Iterable[str]) -> dict[str, Tensors]:
        sent = {name: self.parts[name].masked(self.values[name], self.read(name, "inbox")) for name in who}
        self.close(MASKED, sent)
        return sent

    def total(self, who: Iterable[str], change: Callable[[Tensors], Tensors] = lambda same: same) -> Tensors:
        assert self.state is not None
        answers = {name: self.upload(change(self.parts[name].revealed(self.state.delivered))) for name in who}
        return self.half.total(self.state, answers)


@pytest.fixture
def sum_(tmp_path: Path) -> Sum:
    return Sum(tmp_path)


def test_the_sum_of_all_comes_out_exactly(sum_: Sum) -> None:
    """1 + 10 + 100 + 1000, 4·(-0.5), 0 + 1 + 2 + 3: all multiples of the quantum."""
    for step in (sum_.keys, sum_.shares, sum_.masked):
        step("abcd")
    total = sum_.total("abcd")
    assert total["w"].tolist() == [1111.0, -2.0]
    assert total["n"].shape == ()
    assert float(total["n"]) == 6.0


@pytest.mark.parametrize(
    "keys, shares, masked, unmask, expected",
    [
        ("bcd", "bcd", "bcd", "bcd", 1110.0),  # a never came
        ("abcd", "bcd", "bcd", "bcd", 1110.0),  # a left before it sent shares: it takes no part
        ("abcd", "abcd", "bcd", "bcd", 1110.0),  # a left before it sent its tensors: its masks are taken off
        ("abcd", "abcd", "abc", "abc", 111.0),
        ("abcd", "abcd", "abcd", "bcd", 1111.0),  # a left after it sent its tensors: they count
        ("abcd", "abcd", "abcd", "acd", 1111.0),
    ],
)
def test_who_drops_out_is_made_up_for_at_every_step(
    sum_: Sum, keys: str, shares: str, masked: str, unmask: str, expected: float
) -> None:
    sum_.keys(keys)
    sum_.shares(shares)
    sum_.masked(masked)
    assert float(sum_.total(unmask)["w"][0]) == expected


def test_below_the_threshold_no_step_has_a_result(sum_: Sum) -> None:
    sum_.keys("abcd")
    with pytest.raises(ValueError, match="2 of 4 participants answered; a secure sum needs 3"):
        sum_.shares("ab")
    sum_.shares("abcd")
    with pytest.raises(ValueError, match="2 of 4"):
        sum_.masked("ab")
    sum_.masked("abcd")
    with pytest.raises(ValueError, match="2 of 4"):
        sum_.total("ab")


def test_one_masked_upload_looks_like_noise_and_never_twice_the_same(tmp_path: Path) -> None:
    """Nothing of 4096 zeros shows: bits are set as often as not, and another sum of the same values differs."""
    seen = []
    for again in "12":
        sum_ = Sum(tmp_path / again)
        sum_.values["a"] = {"w": np.zeros(4096)}
        sum_.values.update({name: {"w": np.zeros(4096)} for name in "bcd"})
        sum_.keys("abcd")
        sum_.shares("abcd")
        seen.append(sum_.masked("abcd")["a"]["w"])
    for masked in seen:
        ones = np.unpackbits(masked.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 0.01  # 262,144 bits: ten standard deviations
    assert not np.any(seen[0] == seen[1])


def test_masks_of_different_sums_share_nothing(sum_: Sum, tmp_path: Path) -> None:
    """Same two key pairs, other kind or other company: other masks."""
    keys = {name: PublicKeys.of(part.keys()) for name, part in sum_.parts.items()}
    contexts = {
        Roster(Summed.STUDENT, keys, RULE).context,
        Roster(Summed.MOMENTS, keys, RULE).context,
        Roster(Summed.STUDENT, {name: keys[name] for name in "abc"}, RULE).context,
    }
    assert len(contexts) == 3


# -- what a client refuses to say --


def test_a_client_never_reveals_both_secrets_of_a_peer(sum_: Sum) -> None:
    for step in (sum_.keys, sum_.shares, sum_.masked):
        step("abcd")
    first = sum_.parts["a"].revealed(["a", "b", "c"])
    assert sorted(first) == ["key/d", "seed/a", "seed/b", "seed/c"]
    assert sorted(sum_.parts["a"].revealed(["c", "b", "a"])) == sorted(first)  # asked again: the same answer
    with pytest.raises(SecureSumError, match="another list of who delivered"):
        sum_.parts["a"].revealed(["a", "b", "c", "d"])


def test_a_client_reveals_nothing_below_the_threshold(sum_: Sum) -> None:
    for step in (sum_.keys, sum_.shares, sum_.masked):
        step("abcd")
    with pytest.raises(SecureSumError, match="only 2 of 4 delivered; below 3 nothing is revealed"):
        sum_.parts["a"].revealed(["a", "b"])


@pytest.mark.parametrize("delivered", [["a", "b", "e"], ["a", "b", "b"]])
def test_a_client_reveals_nothing_about_a_list_that_cannot_be(sum_: Sum, delivered: list[str]) -> None:
    for step in (sum_.keys, sum_.shares, sum_.masked):
        step("abcd")
    with pytest.raises(SecureSumError, match="not in this secure sum, or named twice"):
        sum_.parts["a"].revealed(delivered)


def test_a_client_masks_one_summand_only(sum_: Sum) -> None:
    """Two under one mask would show their difference."""
    sum_.keys("abcd")
    sum_.shares("abcd")
    part, inbox = sum_.parts["a"], sum_.read("a", "inbox")
    sent = part.masked(sum_.values["a"], inbox)
    again = part.masked(sum_.values["a"], inbox)
    assert all(np.array_equal(sent[name], again[name]) for name in sent)
    with pytest.raises(SecureSumError, match="refusing to mask again"):
        part.masked({"w": np.array([2.0, 2.0]), "n": np.array(0)}, inbox)


def test_a_client_shares_its_secrets_with_one_roster_only(sum_: Sum) -> None:
    sum_.keys("abcd")
    part, rows = sum_.parts["a"], sum_.read("a", "roster")
    assert part.shares(rows) is part.shares(rows)
    with pytest.raises(SecureSumError, match="two different rosters"):
        part.shares({name: rows[name] for name in "abc"})


def test_a_client_refuses_a_roster_without_its_own_keys(sum_: Sum) -> None:
    sum_.keys("abcd")
    rows = sum_.read("a", "roster")
    with pytest.raises(SecureSumError, match="does not hold the keys this client published"):
        sum_.parts["a"].shares({**rows, "a": rows["b"][::-1].copy()})


def test_keys_are_never_used_again(sum_: Sum) -> None:
    sum_.keys("abcd")
    rows = sum_.read("a", "roster")
    with pytest.raises(SecureSumError, match="a public key occurs twice"):
        sum_.parts["a"].shares({**rows, "c": rows["b"]})


def test_a_client_refuses_a_sum_of_too_few(sum_: Sum) -> None:
    sum_.keys("abcd")
    sum_.shares("abcd")
    inbox = sum_.read("a", "inbox")
    with pytest.raises(SecureSumError, match="2 of 4 sent shares; a secure sum needs 3"):
        sum_.parts["a"].masked(sum_.values["a"], {"b": inbox["b"]})


def test_a_changed_share_is_noticed_by_its_recipient(sum_: Sum) -> None:
    sum_.keys("abcd")
    sum_.shares("abcd")
    inbox = sum_.read("a", "inbox")
    with pytest.raises(SecureSumError, match="from b: a sealed share does not open"):
        sum_.parts["a"].masked(sum_.values["a"], {**inbox, "b": inbox["c"]})


def test_a_value_that_does_not_fit_is_refused_before_anything_is_sent(sum_: Sum) -> None:
    sum_.keys("abcd")
    sum_.shares("abcd")
    with pytest.raises(SecureSumError, match="does not fit a secure sum over 4 participants"):
        sum_.parts["a"].masked({"w": np.array([1e13])}, sum_.read("a", "inbox"))


def test_a_client_that_shared_nothing_cannot_take_part(sum_: Sum) -> None:
    with pytest.raises(SecureSumError, match="sent no shares"):
        sum_.parts["a"].masked(sum_.values["a"], {})
    with pytest.raises(SecureSumError, match="sent no shares"):
        sum_.parts["a"].revealed(["a", "b", "c"])


def test_a_client_refuses_a_key_that_agrees_with_none(sum_: Sum) -> None:
    """X25519's points of low order give everybody the same secret."""
    sum_.keys("abcd")
    rows = sum_.read("a", "roster")
    rows["b"] = np.concatenate([rows["b"][:32], np.zeros(32, np.uint8), rows["b"][64:]])
    with pytest.raises(SecureSumError, match="the keys of b: a public key cannot be used"):
        sum_.parts["a"].shares(rows)


# -- what the coordinator notices --


def test_who_publishes_unusable_or_copied_keys_takes_no_part(tmp_path: Path) -> None:
    """One client's nonsense must not stop the others."""
    sum_ = Sum(tmp_path, "abcdef")
    sent = {name: part.keys() for name, part in sum_.parts.items()}
    sent["d"] = {**sent["d"], "mask_key": np.zeros(32, np.uint8)}
    sent["f"] = {**sent["f"], "seal_key": sent["e"]["seal_key"]}
    sum_.close(KEYS, sent)
    assert sum_.state is not None
    assert sum_.state.members == ("a", "b", "c")
    sum_.shares("abc")
    sum_.masked("abc")
    assert float(sum_.total("abc")["w"][0]) == 111.0


def test_wrong_shares_of_a_seed_are_noticed(sum_: Sum) -> None:
    for step in (sum_.keys, sum_.shares, sum_.masked):
        step("abcd")
    with pytest.raises(ValueError, match=r"the shares of a's seed do not add up to what it published"):
        sum_.total("abcd", lambda shares: {name: ~value for name, value in shares.items()})


def test_wrong_shares_of_a_mask_key_are_noticed(sum_: Sum) -> None:
    sum_.keys("abcd")
    sum_.shares("abcd")
    sum_.masked("bcd")

    def change(shares: Tensors) -> Tensors:
        return {name: ~value if name.startswith("key/") else value for name, value in shares.items()}

    with pytest.raises(ValueError, match="the shares of a's mask key do not add up to what it published"):
        sum_.total("bcd", change)
