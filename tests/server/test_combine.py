"""Which uploads count, with what weight, and how they become one: two or three clients, numbers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.artifacts import BlobStore
from fkd_common.method.moments import accumulate, pack_symmetric
from fkd_common.tensors import Tensors, encode
from fkd_server.method.combine import Combined, combine_residuals, combine_students, moment_factors
from fkd_server.method.federated_method import TensorUpload, VoteUpload
from fkd_server.method.fkd_rtm import FkdRtm

from .tiny import ANCHORS, CLASSES, MOMENTS, VOTES, begun, tiny_config

START = {"w": np.zeros(3, np.float32), "norm.running_var": np.ones(1, np.float32), "steps": np.array(0)}


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "uploads")


def student(store: BlobStore, w: list[float], n: int = 100, r: float = 1.0, **other: float) -> TensorUpload:
    tensors: Tensors = {
        "w": np.array(w, dtype=np.float32),
        "norm.running_var": np.array([other.get("var", 1.0)], dtype=np.float32),
        "steps": np.array(int(other.get("steps", 5))),
    }
    return TensorUpload(store.put(encode(tensors)), n, r)


def students(store: BlobStore, uploads: dict[str, TensorUpload], **changes: Any) -> Combined:
    return combine_students(uploads, START, tiny_config(**changes), store, lambda average: None)


# -- students --


@pytest.mark.scenario(13)
def test_a_client_without_samples_is_excluded_and_named(store: BlobStore) -> None:
    """Scenario 13: n_k = 0."""
    combined = students(store, {"a": student(store, [1, 2, 3]), "b": student(store, [9, 9, 9], n=0)})
    np.testing.assert_array_equal(combined.tensors["w"], [1, 2, 3])
    assert (combined.weights, combined.excluded) == ({"a": 1.0}, {"b": "n_k = 0"})
    assert combined.record()["dropped"] == ["b"]


@pytest.mark.scenario(14)
def test_an_unreliable_client_is_excluded_with_the_reason(store: BlobStore) -> None:
    """Scenario 14."""
    uploads = {"a": student(store, [1, 2, 3], r=0.9), "b": student(store, [9, 9, 9], r=0.2)}
    combined = students(store, uploads, drop_below=0.5)
    assert combined.excluded == {"b": "r_k = 0.2, below drop_below = 0.5"}


@pytest.mark.scenario(14)
def test_when_nobody_may_count_it_is_said_why(store: BlobStore) -> None:
    """Scenario 14: no 0/0."""
    uploads = {"a": student(store, [1, 2, 3], n=0), "b": student(store, [1, 2, 3], r=0.1)}
    with pytest.raises(ValueError, match=r"0 students may count, min_cohort is 1 \(a: n_k = 0; b: r_k = 0.1"):
        students(store, uploads, drop_below=0.5)
    with pytest.raises(ValueError, match=r"0 students may count, min_cohort is 1 \(a: weight 0\)"):
        students(store, {"a": student(store, [1, 2, 3], r=0.0)}, tau_r=0.0)


def test_a_student_of_weight_0_hides_nobody(store: BlobStore) -> None:
    """The average of two, one of which weighs nothing, is the other's student."""
    uploads = {"a": student(store, [1, 2, 3], r=0.7), "b": student(store, [9, 9, 9], r=0.0)}
    with pytest.raises(ValueError, match=r"1 students may count, min_cohort is 2 \(b: weight 0\)"):
        students(store, uploads, tau_r=0.0, min_cohort=2)
    assert students(store, uploads, tau_r=0.1, min_cohort=2).excluded == {}
    # A median counts heads.
    by_median = students(store, uploads, tau_r=0.0, min_cohort=2, aggregation="median")
    np.testing.assert_array_equal(by_median.tensors["w"], [5, 5.5, 6])


@pytest.mark.scenario(12)
@pytest.mark.parametrize("rule, left_out", [("mean", "cd"), ("median", "d")])
def test_the_longest_updates_leave_an_average_that_is_not_sound(
    store: BlobStore, rule: str, left_out: str
) -> None:
    """Scenario 12: sound one by one, not together; those that stay are averaged as if they had been alone."""
    uploads = {
        "a": student(store, [1, 0, 0]),
        "b": student(store, [1, 0, 0]),
        "c": student(store, [0, 7, 0]),
        "d": student(store, [0, 9, 0]),
    }

    def flaw_of(average: Tensors) -> str | None:
        return "the second is not 0" if average["w"][1] != 0 else None

    config = tiny_config(min_cohort=2, aggregation=rule)
    combined = combine_students(uploads, START, config, store, flaw_of)
    np.testing.assert_array_equal(combined.tensors["w"], [1, 0, 0])
    assert sorted([*combined.weights, *left_out]) == ["a", "b", "c", "d"]
    reason = "the longest update of an average of which the second is not 0"
    assert combined.excluded == dict.fromkeys(left_out, reason)
    del uploads["a"], uploads["d"]
    config = tiny_config(min_cohort=2)
    with pytest.raises(ValueError, match=r"1 students may count, min_cohort is 2 \(c: the longest update"):
        combine_students(uploads, START, config, store, flaw_of)


@pytest.mark.scenario(13)
def test_no_client_gets_more_than_the_largest_share(store: BlobStore) -> None:
    """Scenario 13: 900 : 50 : 50 samples, at most one half: 1/2, 1/4, 1/4."""
    uploads = {
        "a": student(store, [8, 0, 0], n=900),
        "b": student(store, [0, 8, 0], n=50),
        "c": student(store, [0, 0, 8], n=50),
    }
    combined = students(store, uploads, max_weight_share=0.5)
    np.testing.assert_array_equal(combined.tensors["w"], [4, 2, 2])
    assert combined.weights == {"a": 0.5, "b": 0.25, "c": 0.25}


def three(store: BlobStore) -> dict[str, TensorUpload]:
    """Updates of length 1, 2 and 100."""
    return {
        "a": student(store, [1, 0, 0], steps=7),
        "b": student(store, [0, 2, 0]),
        "c": student(store, [0, 0, 100]),
    }


@pytest.mark.scenario(12)
def test_a_long_update_is_shortened_and_named(store: BlobStore) -> None:
    """Scenario 12: at most 1.5 times the median 2."""
    combined = students(store, three(store), norm_bound=1.5)
    np.testing.assert_allclose(combined.tensors["w"], [1 / 3, 2 / 3, 1], rtol=1e-6)
    assert combined.clipped == {"c": pytest.approx(0.03)}
    assert not combined.excluded


@pytest.mark.scenario(12)
def test_a_long_update_can_be_left_out_instead(store: BlobStore) -> None:
    """Scenario 12."""
    combined = students(store, three(store), norm_bound=1.5, norm_action="reject")
    np.testing.assert_array_equal(combined.tensors["w"], [0.5, 1, 0])
    assert combined.excluded == {"c": "norm 100, more than 1.5 x median 2"}
    assert combined.weights == {"a": 0.5, "b": 0.5}


def test_norm_clip_is_the_mean_of_updates_no_longer_than_the_median(store: BlobStore) -> None:
    combined = students(store, three(store), aggregation="norm_clip")
    np.testing.assert_allclose(combined.tensors["w"], [1 / 3, 2 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
@pytest.mark.scenario(44)
def test_coordinate_wise_rules_ignore_what_one_client_shouts(store: BlobStore, rule: str) -> None:
    """Scenario 44: n_k and r_k, which clients claim themselves, do not weigh."""
    uploads = {**three(store), "c": student(store, [-90, 70, -9], n=10**6, var=0.0)}
    combined = students(store, uploads, aggregation=rule, trim_fraction=0.4)
    np.testing.assert_array_equal(combined.tensors["w"], [0, 2, 0])
    assert combined.tensors["norm.running_var"].item() == 1.0
    assert combined.tensors["steps"] == 7
    assert combined.weights == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert {name: tensor.dtype for name, tensor in combined.tensors.items()} == {
        name: tensor.dtype for name, tensor in START.items()
    }


@pytest.mark.scenario(44)
def test_the_mean_documents_that_one_client_can_move_it_anywhere(store: BlobStore) -> None:
    """Scenario 44: what the default does not protect from."""
    combined = students(store, {**three(store), "c": student(store, [-90, 70, -9], n=10**7)})
    np.testing.assert_allclose(combined.tensors["w"], [-90, 70, -9], rtol=1e-4)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean", "norm_clip"])
@pytest.mark.scenario(12)
def test_sums_of_the_largest_values_stay_finite(store: BlobStore, rule: str) -> None:
    """Scenario 12: float32's largest values, in float64, do not overflow."""
    big = float(np.finfo(np.float32).max)
    uploads = {f"c{i}": student(store, [big, -big, big], n=10**7) for i in range(5)}
    combined = students(store, uploads, aggregation=rule)
    assert np.isfinite(combined.tensors["w"]).all()


# -- residuals --


def residual(
    store: BlobStore, rows: list[list[float]], n: int = 100, counts: tuple[int, ...] = ()
) -> TensorUpload:
    tensors = {"residuals": np.array(rows, dtype=np.float32)}
    return TensorUpload(store.put(encode(tensors)), n, 1.0, counts)


def fused(store: BlobStore, uploads: dict[str, TensorUpload], **changes: Any) -> np.ndarray:
    return combine_residuals(uploads, tiny_config(**changes), store).tensors["fused_residuals"]


@pytest.mark.scenario(43)
def test_residuals_are_fused_over_those_present_with_renormalised_weights(store: BlobStore) -> None:
    """Scenario 43: of three clients in stage 1, two came to stage 2: 100 : 300."""
    uploads = {"a": residual(store, [[4, -4]]), "c": residual(store, [[0, 0]], n=300)}
    combined = combine_residuals(uploads, tiny_config(), store)
    np.testing.assert_array_equal(combined.tensors["fused_residuals"], [[1, -1]])
    assert combined.record()["weights"] == {"a": 0.25, "c": 0.75}


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
@pytest.mark.scenario(44)
def test_a_constant_residual_does_not_move_coordinate_wise_fusion(store: BlobStore, rule: str) -> None:
    """Scenario 44."""
    uploads = {
        "a": residual(store, [[1, -1], [0, 0]]),
        "b": residual(store, [[2, -2], [-1, 1]]),
        "liar": residual(store, [[5, -5], [5, -5]], n=10**7),
    }
    np.testing.assert_array_equal(
        fused(store, uploads, aggregation=rule, trim_fraction=0.34), [[2, -2], [0, 0]]
    )
    assert fused(store, uploads)[1, 0] > 4.9  # the mean believes it


def test_class_aware_medians_ask_only_those_who_have_the_class(store: BlobStore) -> None:
    uploads = {
        "a": residual(store, [[3, 0]], counts=(9, 0)),
        "b": residual(store, [[0, 7]], counts=(0, 9)),
        "c": residual(store, [[0, 0]], counts=(0, 0)),
    }
    by_class = fused(store, uploads, aggregation="median", fusion="class_aware")
    np.testing.assert_array_equal(by_class, [[3, 7]])
    np.testing.assert_array_equal(fused(store, uploads, aggregation="median"), [[0, 0]])


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_a_class_that_too_few_have_gets_no_correction(store: BlobStore, rule: str) -> None:
    """Its column would be one site's own residuals, sent to everybody. Nobody has the third class."""
    uploads = {
        "a": residual(store, [[4, 0, 0]], n=10, counts=(10, 0, 0)),
        "b": residual(store, [[2, 7, 0]], n=20, counts=(10, 10, 0)),
    }
    config = tiny_config(fusion="class_aware", aggregation=rule, min_cohort=2)
    combined = combine_residuals(uploads, config, store)
    np.testing.assert_array_equal(combined.tensors["fused_residuals"], [[3, 0, 0]])
    assert combined.weights == {"a": 0.5, "b": 0.5}
    assert combined.record()["withheld_columns"] == 1
    alone = combine_residuals(uploads, tiny_config(fusion="class_aware", aggregation=rule), store)
    np.testing.assert_array_equal(alone.tensors["fused_residuals"], [[3, 7, 0]])
    assert "withheld_columns" not in alone.record()


def test_residual_matrices_obey_norm_bound_and_largest_share(store: BlobStore) -> None:
    """Lengths 1, 1, 10, at most 2; then 900 : 50 : 50 samples as 1/2, 1/4, 1/4, column by column as well."""
    uploads = {
        "a": residual(store, [[10, 0]], n=900, counts=(900, 0)),
        "b": residual(store, [[1, 0]], n=50, counts=(25, 25)),
        "c": residual(store, [[0, 1]], n=50, counts=(50, 0)),
    }
    combined = combine_residuals(uploads, tiny_config(norm_bound=2.0, max_weight_share=0.5), store)
    np.testing.assert_allclose(combined.tensors["fused_residuals"], [[1.25, 0.25]], rtol=1e-6)
    assert combined.clipped == {"a": pytest.approx(0.2)}
    by_class = fused(store, uploads, max_weight_share=0.5, fusion="class_aware")
    np.testing.assert_allclose(by_class, [[0.5 * 10 + 0.5 / 3, 0]], rtol=1e-6)


def test_without_samples_there_are_no_residuals(store: BlobStore) -> None:
    with pytest.raises(ValueError, match="0 residuals may count"):
        combine_residuals({"a": residual(store, [[1, 1]], n=0)}, tiny_config(), store)


# -- moments --


def test_sums_are_exact_unless_a_share_exceeds_the_cap() -> None:
    """900 : 50 : 50, at most one half: 500, 250, 250 of 1000."""
    artifact: Any = None
    uploads = {name: TensorUpload(artifact, n) for name, n in (("a", 900), ("b", 50), ("c", 50), ("d", 0))}
    assert moment_factors(uploads, tiny_config()) == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert moment_factors(uploads, tiny_config(max_weight_share=0.5)) == pytest.approx(
        {"a": 5 / 9, "b": 5.0, "c": 5.0}
    )
    with pytest.raises(ValueError, match="0 moments may count"):
        moment_factors({"d": uploads["d"]}, tiny_config())


@pytest.mark.scenario(13)
def test_no_vote_outweighs_the_others_by_more_than_the_largest_share(tmp_path: Path) -> None:
    """Scenario 13: of 80 : 10 : 10 validation samples, 50 : 25 : 25 count."""
    blobs, uploads = BlobStore(tmp_path / "blobs"), BlobStore(tmp_path / "uploads")
    method = FkdRtm(tiny_config(max_weight_share=0.5), CLASSES, ANCHORS, "ab" * 32, blobs, uploads)
    votes = {
        "a": VoteUpload({"student": 80}, 80),
        "b": VoteUpload({"student": 0}, 10),
        "c": VoteUpload({"student": 4}, 10),
    }
    record = method.close(VOTES, {**votes, "d": VoteUpload({"student": 0}, 0)})
    assert record["excluded"] == {"d": "no validation samples"}
    assert record["validation_accuracy"] == {"student": pytest.approx(0.6)}
    assert record["validation_samples"] == 100


def test_exclusions_never_leave_a_result_of_fewer_than_the_least_cohort(store: BlobStore) -> None:
    """One student of two that was left would be published as it is."""
    uploads = {"a": student(store, [1, 2, 3]), "b": student(store, [1, 2, 3], n=0)}
    with pytest.raises(ValueError, match=r"1 students may count, min_cohort is 2 \(b: n_k = 0\)"):
        students(store, uploads, min_cohort=2)


def test_the_ridge_solution_follows_the_capped_sums_and_forgets_clients_without_samples(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    blobs, uploads = BlobStore(tmp_path / "blobs"), BlobStore(tmp_path / "uploads")
    method = begun(FkdRtm(tiny_config(max_weight_share=0.5), CLASSES, ANCHORS, "ab" * 32, blobs, uploads))
    sent, A, B = {}, np.zeros((6, 6)), np.zeros((6, 2))
    for name, n, factor in (("a", 30, 2 / 3), ("b", 5, 2.0), ("c", 5, 2.0), ("d", 0, 0.0)):
        sums = accumulate(rng.integers(-4, 5, (n, 6)).astype(np.float32), rng.integers(-4, 5, (n, 2)))
        tensors = {"A": pack_symmetric(sums.A, 0).astype(np.float32), "B": sums.B.astype(np.float32)}
        sent[name] = TensorUpload(uploads.put(encode(tensors)), n)
        A, B = A + factor * sums.A, B + factor * sums.B
    record = method.close(MOMENTS, sent)
    solved = method.model().moment_solution
    np.testing.assert_allclose(solved, np.linalg.solve(A + np.eye(6), B), rtol=1e-5)
    assert (record["pooled_samples"], record["dropped"]) == (40, ["d"])
    assert record["scaled"] == pytest.approx({"a": 2 / 3, "b": 2.0, "c": 2.0})


def test_noised_sums_are_made_semidefinite_before_they_are_solved(tmp_path: Path) -> None:
    blobs, uploads = BlobStore(tmp_path / "blobs"), BlobStore(tmp_path / "uploads")
    config = tiny_config(noise_multiplier=1.0, feature_clip=1.0, target_clip=1.0, residual_l2_clip=1.0)
    method = begun(FkdRtm(config, CLASSES, ANCHORS, "ab" * 32, blobs, uploads))
    A = np.diag(
        [-0.999, 3.0, 3.0, 3.0, 3.0, 9.0]
    )  # with λ = 1 almost singular: the first solution would be 1000
    B = np.ones((6, 2), dtype=np.float32)
    sent = {"A": pack_symmetric(A, 0).astype(np.float32), "B": B}
    method.close(MOMENTS, {"a": TensorUpload(uploads.put(encode(sent)), 9)})
    solved = method.model().moment_solution
    assert solved is not None
    np.testing.assert_allclose(solved[:, 0], [1, 0.25, 0.25, 0.25, 0.25, 0.1], rtol=1e-5)
