import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fkd_client.embedding import embed
from fkd_client.extractor import load_extractor
from fkd_client.pretrain import pretrain_extractor
from fkd_common.errors import DataError


def digits(start, stop):
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))[start:stop]
    return np.rint(bunch.images[order] * (255 / 16)).astype(np.uint8)[..., None], bunch.target[order]


def test_a_pretrained_extractor_separates_unseen_digits():
    images, labels = digits(0, 100)
    extractor = load_extractor(pretrain_extractor(images, labels, input_size=16, epochs=3, seed=0))
    h = embed(extractor, digits(300, 700)[0])
    y = digits(300, 700)[1]
    X = np.c_[(h - h[:200].mean(0)) / (h[:200].std(0) + 1e-6), np.ones(400)].astype(np.float64)
    W = np.linalg.solve(X[:200].T @ X[:200] + 100 * np.eye(513), X[:200].T @ np.eye(10)[y[:200]])
    assert ((X[200:] @ W).argmax(1) == y[200:]).mean() >= 0.8  # three short epochs; chance is 0.1


def test_equal_seeds_give_equal_artifacts_and_the_global_generator_is_not_used():
    images, labels = digits(0, 40)
    before = torch.get_rng_state()
    first, second = (pretrain_extractor(images, labels, epochs=1, seed=3) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert load_extractor(first).spec.input_size == 16


def test_images_without_their_labels_are_refused():
    with pytest.raises(DataError, match="10 with 9 labels"):
        pretrain_extractor(digits(0, 10)[0], digits(0, 9)[1], seed=0)
