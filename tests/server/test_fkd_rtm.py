"""The server half of the method on two clients and tensors small enough to compute by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.artifacts import BlobStore
from fkd_common.method.moments import accumulate, pack_symmetric
from fkd_common.method.residuals import Standardiser, fit_anchor_correction
from fkd_common.model_file import decode_model, encode_model
from fkd_common.tensors import Tensors, decode, encode
from fkd_server.method.federated_method import TensorUpload, VoteUpload
from fkd_server.method.fkd_rtm import FkdRtm
from fkd_server.validation import Background, UploadRules

from .tiny import ANCHORS, CLASSES, MOMENTS, RESIDUALS, STUDENT, VOTES, begun, filled, tiny_config


class Half:
    """The method and the stores it works on."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.blobs, self.uploads = BlobStore(folder / "blobs"), BlobStore(folder / "uploads")
        self.folder = folder
        config = tiny_config(**changes)
        self.method = begun(FkdRtm(config, CLASSES, ANCHORS, "ab" * 32, self.blobs, self.uploads))

    def upload(
        self, tensors: Tensors, n: int = 1, r: float = 1.0, counts: tuple[int, ...] = ()
    ) -> TensorUpload:
        return TensorUpload(self.uploads.put(encode(tensors)), n, r, counts)

    def student(self) -> Tensors:
        return decode(self.blobs.read(self.method.state.student.sha256))

    def files(self, name: str) -> int:
        return len(list((self.folder / name).iterdir()))

    def moments(self, z: np.ndarray, residual: np.ndarray, *, block_known: bool = False) -> TensorUpload:
        sums = accumulate(z, residual)
        A = pack_symmetric(sums.A, 4 if block_known else 0).astype(np.float32)
        return self.upload({"A": A, "B": sums.B.astype(np.float32)}, n=len(z))


@pytest.fixture
def half(tmp_path: Path) -> Half:
    return Half(tmp_path)


# -- stage 1 --


def test_the_first_student_says_nothing(half: Half) -> None:
    assert not np.any(half.student()["output.weight"])
    assert half.method.task(STUDENT, "a").inputs == {"student": half.method.state.student}


def test_students_are_averaged_by_size_times_reliability(half: Half) -> None:
    """Eqs. 14-15: 100·0.9 : 300·max(0.05, 0.1) = 90 : 30, so 0.75·0 + 0.25·4 = 1."""
    record = half.method.close(
        STUDENT,
        {
            "a": half.upload(filled(half.method, 0.0), n=100, r=0.9),
            "b": half.upload(filled(half.method, 4.0), n=300, r=0.05),
        },
    )
    assert record["weights"] == pytest.approx({"a": 0.75, "b": 0.25})
    assert record["student"] == half.method.state.student.sha256
    for tensor in half.student().values():
        np.testing.assert_array_equal(tensor, np.ones_like(tensor))


@pytest.mark.scenario(14)
def test_an_unreliable_client_can_be_left_out(tmp_path: Path) -> None:
    half = Half(tmp_path, drop_below=0.5)
    record = half.method.close(
        STUDENT,
        {
            "a": half.upload(filled(half.method, 1.0), r=0.5),
            "b": half.upload(filled(half.method, 9.0), r=0.4),
        },
    )
    assert (record["dropped"], record["weights"]) == (["b"], {"a": 1.0})
    assert half.student()["output.bias"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_student_that_equals_its_only_upload_stays_readable(half: Half, names: str) -> None:
    """One client, or clients that agree, come back bit for bit, and so under the same name."""
    for value in (1.0, 1.0, 2.0):
        half.method.close(STUDENT, {name: half.upload(filled(half.method, value)) for name in names})
        assert half.student()["output.bias"].tolist() == [value, value]


def test_a_student_that_returns_to_an_earlier_one_stays_readable(half: Half) -> None:
    for value in (1.0, 2.0, 1.0, 2.0, 2.0, 1.0):
        half.method.close(STUDENT, {"a": half.upload(filled(half.method, value))})
        assert half.student()["output.bias"][0] == value


@pytest.mark.scenario(12)
def test_an_average_that_nobody_could_compute_with_is_not_published(half: Half) -> None:
    """Scenario 12: finite, and absurd."""
    before = half.method.state
    with pytest.raises(ValueError, match=r"0 students may count.*at most 1e\+03 is accepted"):
        half.method.close(STUDENT, {n: half.upload(filled(half.method, 3e38), n=10**9) for n in "abc"})
    assert half.method.state == before


@pytest.mark.scenario(12)
def test_students_that_are_sound_one_by_one_can_have_an_average_that_is_not(tmp_path: Path) -> None:
    """Scenario 12: a's layers are 1; the liar's last is huge behind a first that is 0. The liar is left out."""
    half = Half(tmp_path, norm="batch")
    rules, liar = UploadRules.of(half.method), filled(half.method, 0.0)
    liar["output.weight"][:] = 9000.0
    rules.check_tensors(STUDENT, liar, Background.of(half.method, 1, STUDENT, "liar", 10))
    honest = {n: half.upload(filled(half.method, 1.0)) for n in "ab"}
    record = half.method.close(STUDENT, {**honest, "liar": half.upload(liar)})
    assert list(record["excluded"]) == ["liar"]
    assert half.student()["output.weight"].max() == 1.0


def test_what_is_in_use_does_not_grow_with_rounds(tmp_path: Path) -> None:
    half = Half(tmp_path, correction=("anchors", "moments"), rounds=20, residual_every=1)
    rng = np.random.default_rng(0)
    sizes = []
    for round_number in range(10):
        half.method.close(STUDENT, {n: half.upload(filled(half.method, rng.normal())) for n in "ab"})
        half.method.close(
            RESIDUALS,
            {n: half.upload({"residuals": rng.normal(size=(4, 2)).astype(np.float32)}) for n in "ab"},
        )
        z, known = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32), round_number > 0
        half.method.close(
            MOMENTS, {n: half.moments(z, rng.normal(size=(5, 2)), block_known=known) for n in "ab"}
        )
        half.blobs.sweep(half.method.in_use())
        sizes.append(half.files("blobs"))
    assert sizes[2:] == [sizes[2]] * 8


# -- stage 2: residuals on the anchors --


def residuals(value: float) -> Tensors:
    return {"residuals": np.array([[value, -value], [0, 0], [0, 0], [value, value]], dtype=np.float32)}


def fused_of(half: Half) -> np.ndarray:
    assert half.method.state.fused is not None
    return decode(half.blobs.read(half.method.state.fused.sha256))["fused_residuals"]


def test_residuals_are_fused_by_size(half: Half) -> None:
    """Eq. 12: (100·4 + 300·0) / 400 = 1."""
    half.method.close(
        RESIDUALS, {"a": half.upload(residuals(4.0), n=100), "b": half.upload(residuals(0.0), n=300)}
    )
    np.testing.assert_array_equal(fused_of(half), residuals(1.0)["residuals"])


def test_residuals_can_be_fused_by_class_counts(tmp_path: Path) -> None:
    """Column 0: (1·4 + 3·0)/4; column 1: only a has any."""
    half = Half(tmp_path, fusion="class_aware")
    a = half.upload(residuals(4.0), n=3, counts=(1, 2))
    half.method.close(RESIDUALS, {"a": a, "b": half.upload(residuals(0.0), n=3, counts=(3, 0))})
    np.testing.assert_array_equal(fused_of(half)[:, 0], [1, 0, 0, 1])
    np.testing.assert_array_equal(fused_of(half)[:, 1], [-4, 0, 0, 4])


def test_both_sides_fit_the_same_correction_from_what_travels(half: Half) -> None:
    """Eq. 13."""
    record = half.method.close(RESIDUALS, {"a": half.upload(residuals(4.0))})
    task = half.method.task(VOTES, "a")
    assert task.anchor_lambda == record["anchor_lambda"]
    client = fit_anchor_correction(ANCHORS, fused_of(half), task.anchor_lambda)
    server = half.method.model().anchor_correction
    assert server is not None
    np.testing.assert_array_equal(client.apply(ANCHORS), server.apply(ANCHORS))


# -- stage 2: pooled moments --


def clients(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features z (n, 6) and residuals (n, 2) of two clients, small integers so that float32 is exact."""
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(-4, 5, (n, 6)).astype(np.float32), rng.integers(-4, 5, (n, 2)).astype(float))
        for n in (20, 9)
    ]


def solutions_of(half: Half) -> Tensors:
    assert half.method.state.moment_solutions is not None
    return decode(half.blobs.read(half.method.state.moment_solutions.sha256))


def test_moments_of_two_clients_solve_the_ridge_problem_of_their_pooled_data(half: Half) -> None:
    (z1, r1), (z2, r2) = clients(0)
    record = half.method.close(MOMENTS, {"a": half.moments(z1, r1), "b": half.moments(z2, r2)})
    Z, R = np.vstack([z1, z2]).astype(float), np.vstack([r1, r2])
    for i, lam in enumerate((1.0, 10.0)):
        pooled = np.linalg.solve(Z.T @ Z + lam * np.eye(6), Z.T @ R)
        np.testing.assert_allclose(solutions_of(half)[f"V.{i}"], pooled, rtol=1e-6)
    assert (record["pooled_samples"], record["features"]) == (29, 6)


def test_the_embedding_block_is_needed_only_once(half: Half) -> None:
    (z1, r1), (z2, r2) = clients(0)
    assert not half.method.task(MOMENTS, "a").embedding_block_known
    half.method.close(MOMENTS, {"a": half.moments(z1, r1), "b": half.moments(z2, r2)})
    first = half.method.state.moment_solutions
    half.method.close(STUDENT, {"a": half.upload(filled(half.method, 1.0))})
    assert half.method.task(MOMENTS, "a").embedding_block_known
    assert not half.method.task(MOMENTS, "c").embedding_block_known
    half.method.close(
        MOMENTS,
        {"a": half.moments(z1, r1, block_known=True), "b": half.moments(z2, r2, block_known=True)},
    )
    assert half.method.state.moment_solutions == first


def test_a_client_that_joins_later_sends_its_block_while_others_do_not(half: Half) -> None:
    (z1, r1), (z2, r2) = clients(0)
    half.method.close(MOMENTS, {"a": half.moments(z1, r1), "b": half.moments(z2, r2)})
    both = half.method.state.moment_solutions
    later = Half(half.folder / "later")
    later.method.close(MOMENTS, {"a": later.moments(z1, r1)})
    later.method.close(MOMENTS, {"a": later.moments(z1, r1, block_known=True), "b": later.moments(z2, r2)})
    assert later.method.state.moment_solutions == both


# -- the vote --


def voted(half: Half, *counts: tuple[int, int, int, int]) -> dict[str, Any]:
    """Close a vote over student, anchors, moments.0, moments.1; every client has 10 samples."""
    half.method.close(RESIDUALS, {"a": half.upload(residuals(1.0))})
    half.method.close(MOMENTS, {"a": half.moments(*clients(0)[0])})
    names = half.method.candidates()
    assert names == ["student", "anchors", "moments.0", "moments.1"]
    votes = {f"c{i}": VoteUpload(dict(zip(names, count, strict=True)), 10) for i, count in enumerate(counts)}
    return half.method.close(VOTES, votes)


def test_the_candidate_with_most_correct_answers_over_all_clients_is_published(half: Half) -> None:
    record = voted(half, (5, 5, 9, 5), (5, 4, 2, 8))
    # 10, 9, 11 and 13 of 20.
    assert record["published"] == "moments.1"
    assert record["validation_samples"] == 20
    assert record["validation_accuracy"] == {
        "student": 0.5, "anchors": 0.45, "moments.0": 0.55, "moments.1": 0.65,
    }  # fmt: skip
    model = half.method.model()
    assert (model.header.published, model.header.moment_lambda) == ("moments", 10.0)
    assert model.moment_solution is not None
    np.testing.assert_array_equal(model.moment_solution, solutions_of(half)["V.1"])


@pytest.mark.parametrize(
    "count, published, moments",
    [
        ((5, 5, 5, 5), "student", "moments.0"),
        ((4, 5, 5, 5), "anchors", "moments.0"),
        ((4, 4, 5, 5), "moments.0", "moments.0"),
        ((5, 4, 3, 4), "student", "moments.1"),
    ],
)
def test_ties_go_to_the_simpler_candidate(
    half: Half, count: tuple[int, int, int, int], published: str, moments: str
) -> None:
    assert voted(half, count)["published"] == published
    assert half.method.state.best_moments == moments


def test_too_few_votes_over_validation_samples_are_no_vote(tmp_path: Path) -> None:
    """Published accuracies would be one site's. A skipped vote leaves the student published."""
    half = Half(tmp_path, min_cohort=2)
    votes = {"a": VoteUpload({"student": 1}, 1), "b": VoteUpload({"student": 0}, 0)}
    with pytest.raises(ValueError, match="1 votes are over validation samples, min_cohort is 2"):
        half.method.close(VOTES, votes)
    assert half.method.state.published == "student"


def test_a_new_student_takes_the_corrections_of_the_old_one_with_it(half: Half) -> None:
    voted(half, (5, 5, 9, 5))
    half.method.close(STUDENT, {"a": half.upload(filled(half.method, 1.0))})
    assert half.method.candidates() == ["student"]
    assert (half.method.state.published, list(half.method.artifacts())) == ("student", ["student"])


def test_the_published_model_can_be_read_back(half: Half) -> None:
    voted(half, (5, 9, 5, 5))
    model = decode_model(encode_model(half.method.model()))
    assert (model.header.published, model.header.classes) == ("anchors", CLASSES)
    np.testing.assert_array_equal(model.standardiser.mean, Standardiser.of(ANCHORS).mean)
    assert model.header.anchor_lambda == half.method.state.anchor_lambda
