import numpy as np
import pytest

from fkd_client.split import split_train_val, stratified_folds


def test_parts_are_sorted_disjoint_and_complete():
    labels = np.array([0] * 20 + [1] * 10)
    train, val = split_train_val(labels, 0.1, seed=3)
    assert np.bincount(labels[val]).tolist() == [2, 1]
    np.testing.assert_array_equal(np.sort(np.concatenate([train, val])), np.arange(30))
    assert (np.diff(train) > 0).all()
    assert (np.diff(val) > 0).all()


@pytest.mark.scenario(38)
def test_every_class_of_five_is_validated_and_smaller_ones_are_not():
    labels = np.array([0] * 5 + [1] * 4 + [2] * 1)
    _, val = split_train_val(labels, 0.1, seed=0)
    assert labels[val].tolist() == [0]


@pytest.mark.scenario(38)
@pytest.mark.parametrize("labels", [[7], [3, 3]])
def test_every_class_keeps_a_training_sample(labels):
    train, val = split_train_val(np.array(labels), 0.49, seed=0)
    assert len(train) >= 1
    assert len(train) + len(val) == len(labels)


@pytest.mark.scenario(38)
def test_a_single_sample_is_trained_on():
    train, val = split_train_val(np.array([4]), 0.1, seed=0)
    assert train.tolist() == [0]
    assert val.tolist() == []


def test_the_split_follows_the_seed():
    labels = np.repeat(np.arange(3), 20)
    same = [split_train_val(labels, 0.2, seed=5)[1].tolist() for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != split_train_val(labels, 0.2, seed=6)[1].tolist()


def test_nothing_is_held_out_at_fraction_zero():
    assert len(split_train_val(np.zeros(50, np.int64), 0.0, seed=0)[1]) == 0


def test_folds_spread_every_class_and_split_pairs():
    labels = np.array([0] * 9 + [1] * 2 + [2])
    folds = stratified_folds(labels, 3, seed=0)
    assert np.bincount(folds[labels == 0]).tolist() == [3, 3, 3]
    assert len(set(folds[labels == 1])) == 2
