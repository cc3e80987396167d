"""No sample goes to two places, every promise of each partition holds, and one seed decides everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkd_common.errors import DataError, UsageError
from fkd_shards.partitions import Partition, divide
from fkd_shards.plan import Streams, make_plan, partition_sha256

from .published import labels_of


def divided(
    spec: str, labels: np.ndarray, clients: int, seed: int = 0, **sites: np.ndarray
) -> list[np.ndarray]:
    classes = int(labels.max()) + 1
    return divide(Partition.parse(spec), labels, classes, clients, np.random.default_rng(seed), **sites)


def plan(
    spec: str = "iid", seed: int = 0, anchors: int = 20, public: int = 10, few_shot: int | None = None
) -> dict[str, np.ndarray]:
    return make_plan(
        labels_of(300, 3),
        3,
        None,
        published_test=None,
        test_fraction=0.2,
        anchors=anchors,
        public=public,
        partition=Partition.parse(spec),
        clients=4,
        streams=Streams.of(seed),
        few_shot=few_shot,
    )


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "classes:2"])
def test_parts_are_disjoint_and_complete(spec: str) -> None:
    parts = plan(spec)
    assert list(parts) == ["shard0", "shard1", "shard2", "shard3", "test", "anchors", "public"]
    assert [len(parts[name]) for name in ("test", "anchors", "public")] == [60, 20, 10]
    assert np.array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(300))


def test_test_part_has_its_share_of_every_class() -> None:
    assert np.bincount(labels_of(300, 3)[plan()["test"]]).tolist() == [20, 20, 20]


def test_anchors_and_subsets_of_sorted_data_are_shuffled() -> None:
    parts = plan()
    assert len(np.unique(labels_of(300, 3)[parts["anchors"]])) == 3
    assert (np.diff(parts["shard0"]) < 0).any()


@pytest.mark.parametrize("spec", ["iid", "dirichlet:1", "classes:1", "longtail:2", "sites"])
def test_shards_are_shuffled_whatever_the_partition(spec: str) -> None:
    for shard in divided(spec, labels_of(90, 3), 3, sites=np.repeat(["a", "b", "c"], 30)):
        assert (np.diff(shard) < 0).any()


def test_published_test_part_is_left_whole_and_training_untouched_by_it() -> None:
    parts = make_plan(
        labels_of(50, 2),
        2,
        None,
        published_test=7,
        test_fraction=0.2,
        anchors=5,
        public=0,
        partition=Partition.parse("iid"),
        clients=3,
        streams=Streams.of(0),
    )
    assert sorted(parts["test"]) == list(range(7))
    assert len(np.unique(np.concatenate([parts[f"shard{k}"] for k in range(3)] + [parts["anchors"]]))) == 50


def test_hash_changes_with_the_seed_and_not_with_a_second_run() -> None:
    assert partition_sha256(plan(seed=1)) == partition_sha256(plan(seed=1))
    assert partition_sha256(plan(seed=1)) != partition_sha256(plan(seed=2))


def test_hash_knows_order_and_boundaries() -> None:
    one, two = np.array([1, 2]), np.array([3])
    whole = partition_sha256({"shard0": one, "shard1": two})
    assert whole != partition_sha256({"shard0": one[::-1], "shard1": two})
    assert whole != partition_sha256({"shard0": np.array([1]), "shard1": np.array([2, 3])})


def test_few_shot_keeps_at_most_so_many_of_each_class_and_leaves_all_else() -> None:
    whole, few, labels = plan("dirichlet:0.5"), plan("dirichlet:0.5", few_shot=5), labels_of(300, 3)
    for name, positions in whole.items():
        if name.startswith("shard"):
            expected = np.minimum(np.bincount(labels[positions], minlength=3), 5)
            assert np.bincount(labels[few[name]], minlength=3).tolist() == expected.tolist()
            assert np.array_equal(few[name], positions[np.isin(positions, few[name])])
        else:
            assert np.array_equal(few[name], positions)


def test_more_anchors_leave_the_test_part_as_it_was() -> None:
    assert np.array_equal(plan(anchors=20)["test"], plan(anchors=40)["test"])


@pytest.mark.scenario(38)
def test_class_with_one_sample_stays_in_training() -> None:
    """Scenario 38: no stratify crash."""
    parts = make_plan(
        np.array([0] * 10 + [1]),
        2,
        None,
        published_test=None,
        test_fraction=0.2,
        anchors=0,
        public=0,
        partition=Partition.parse("iid"),
        clients=1,
        streams=Streams.of(0),
    )
    assert 10 in parts["shard0"]
    assert len(parts["test"]) == 2


def test_anchors_that_leave_no_training_samples_are_refused() -> None:
    with pytest.raises(DataError, match="240 anchors and 10 public samples leave none of 240"):
        plan(anchors=240)


@settings(deadline=None, max_examples=30)
@given(
    alpha=st.sampled_from([0.1, 0.5, 10.0]),
    clients=st.integers(1, 6),
    classes=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_divides_everything_and_leaves_each_client_ten(
    alpha: float, clients: int, classes: int, seed: int
) -> None:
    shards = divided(f"dirichlet:{alpha}", labels_of(600, classes), clients, seed)
    assert min(map(len, shards)) >= 10
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(600))


def test_small_alpha_is_more_skewed_than_large() -> None:
    labels = labels_of(5000, 10)

    def largest_share(spec: str) -> float:
        return float(
            np.mean([np.bincount(labels[shard]).max() / len(shard) for shard in divided(spec, labels, 5)])
        )

    assert largest_share("dirichlet:0.1") > 0.4
    assert largest_share("dirichlet:1000") < 0.15


def test_impossible_dirichlet_ends_with_advice() -> None:
    """Bounded redraws: one class in proportions nearly one-hot never reaches five clients."""
    with pytest.raises(DataError, match="larger alpha or fewer clients"):
        divided("dirichlet:0.001", np.zeros(100, np.int64), 5)
    with pytest.raises(DataError, match="there are 49 in all"):
        divided("dirichlet:1", np.zeros(49, np.int64), 5)


@settings(deadline=None, max_examples=50)
@given(
    clients=st.integers(1, 12),
    classes=st.integers(1, 8),
    per_client=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_classes_gives_each_client_exactly_q_and_covers_all(
    clients: int, classes: int, per_client: int, seed: int
) -> None:
    if per_client > classes:
        return
    labels = labels_of(30 * classes, classes)
    shards = divided(f"classes:{per_client}", labels, clients, seed)
    assert all(len(np.unique(labels[shard])) == per_client for shard in shards)
    used = np.concatenate(shards)
    assert len(np.unique(used)) == len(used)
    if clients * per_client >= classes:
        assert np.array_equal(np.sort(used), np.arange(len(labels)))
    else:
        assert len(np.unique(labels[used])) == clients * per_client


def test_samples_of_a_class_are_split_evenly_over_its_holders() -> None:
    labels = labels_of(40, 2)
    shards = divided("classes:1", labels, 4)
    assert [len(shard) for shard in shards] == [10, 10, 10, 10]


def test_long_tail_has_the_factor_asked_for() -> None:
    labels = labels_of(3000, 3)
    shards = divided("longtail:100", labels, 2)
    counts = np.bincount(labels[np.concatenate(shards)])
    assert counts.tolist() == [1000, 100, 10]
    assert abs(len(shards[0]) - len(shards[1])) <= 1


def test_long_tail_without_room_is_refused() -> None:
    with pytest.raises(DataError, match="class 1 without samples"):
        divided("longtail:100", labels_of(20, 2), 2)


def test_no_site_is_in_two_shards_and_sizes_balance() -> None:
    sites = np.repeat(["a", "b", "c", "d"], [6, 5, 4, 3])
    shards = divided("sites", np.zeros(18, np.int64), 2, sites=sites)
    assert [sorted(set(sites[shard])) for shard in shards] == [["a", "d"], ["b", "c"]]
    assert [len(shard) for shard in shards] == [9, 9]


def test_sites_need_sites_and_as_many_as_clients() -> None:
    labels = np.zeros(4, np.int64)
    with pytest.raises(DataError, match="source with sites"):
        divided("sites", labels, 2)
    with pytest.raises(DataError, match="3 clients need as many sites, the source has 2"):
        divided("sites", labels, 3, sites=np.array(["a", "a", "b", "b"]))


@pytest.mark.scenario(38)
def test_more_clients_than_samples_are_refused() -> None:
    """Scenario 38: no shard of 0 samples is ever made."""
    with pytest.raises(DataError, match="5 clients need at least 5 training samples"):
        divided("iid", labels_of(4, 2), 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "random",
        "dirichlet",
        "dirichlet:0",
        "dirichlet:nan",
        "dirichlet:-1",
        "classes:0",
        "classes:1.5",
        "iid:3",
    ],
)
def test_malformed_partitions_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="partition"):
        Partition.parse(text)


@pytest.mark.parametrize("text", ["dirichlet:0.1", "iid", "classes:2", "longtail:100", "sites"])
def test_partition_prints_as_it_was_written(text: str) -> None:
    assert str(Partition.parse(text)) == text
