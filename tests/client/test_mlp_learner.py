"""The MLP that a teacher may learn with: what it says, that its bits are its own, and what it is kept as."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.utils import shuffle
from threadpoolctl import threadpool_info, threadpool_limits

from fkd_client.mlp_learner import MlpLearner
from fkd_client.progress import silent
from fkd_common.blas import one_blas_thread
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.probabilities import softmax
from fkd_common.method.residuals import Standardiser
from tests.client.conftest import make_blobs

CLASSES = [0, 1, 2]
blobs = make_blobs(120, CLASSES, seed=1)


def fitted(
    config: RunConfig, labels: Any = None, rows: Any = None, *, h: Any = None, threads: int = 1, seed: int = 0
) -> MlpLearner:
    """A learner of number 0."""
    labels = blobs.y if labels is None else labels
    parts = {0: np.arange(len(labels)) if rows is None else rows}
    h = blobs.h if h is None else h
    return MlpLearner.fit(h, labels, parts, config, threads=threads, seed=seed, binned=None, progress=silent)[
        0
    ]


def bits(learner: MlpLearner) -> bytes:
    return b"".join(array.tobytes() for array in learner.tensors().values())


@pytest.fixture
def config(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"teacher": "mlp", "teacher_epochs": 5, "lr": 0.01})


@pytest.mark.parametrize("classes", [2, 3])
def test_folding_the_standardisation_changes_nothing(classes: int) -> None:
    """Of two classes scikit-learn's MLP has one output."""
    rng = np.random.default_rng(0)
    part = make_blobs(90, list(range(classes)), seed=4)
    h = (part.h * rng.uniform(0.01, 5.0, 16) + rng.normal(size=16) * 20).astype(np.float32)
    h[:, 3] = 7.0  # a constant dimension
    standardiser = Standardiser.of(h)
    z = standardiser.apply(h)
    mlp = MLPClassifier((16, 8), max_iter=1, random_state=0, learning_rate_init=0.01)
    for _ in range(20):
        mlp.partial_fit(z, part.y, classes=np.arange(classes))
    learner = MlpLearner.folded(mlp, standardiser)
    margins = learner.margins(h, 1)
    assert margins.shape == (90, classes)
    np.testing.assert_allclose(softmax(margins), mlp.predict_proba(z), atol=1e-6)


def test_margins_by_hand() -> None:
    weights = (np.array([[1.0, -1.0]]), np.array([[2.0, 0.0], [0.0, 3.0]]))
    learner = MlpLearner(weights, (np.array([0.5, 0.0]), np.array([0.0, 1.0])))
    # h = 2: hidden relu(2.5, -2) = (2.5, 0); h = -1: relu(-0.5, 1) = (0, 1)
    assert learner.margins(np.array([[2.0], [-1.0]], np.float32), 1).tolist() == [[5.0, 1.0], [0.0, 4.0]]


def test_more_samples_than_are_scored_at_once_are_all_scored(
    monkeypatch: pytest.MonkeyPatch, config: RunConfig
) -> None:
    learner = fitted(config)
    whole = learner.margins(blobs.h, 1)
    monkeypatch.setattr("fkd_client.mlp_learner._CHUNK", 50)
    np.testing.assert_allclose(learner.margins(blobs.h, 1), whole, rtol=1e-12)


def test_the_bits_follow_from_the_seed_and_not_from_threads_or_company(config: RunConfig) -> None:
    wide = config.model_copy(update={"hidden": (96, 64), "batch_size": 64})  # enough work for threaded BLAS
    h, y = np.tile(blobs.h, (1, 16)), blobs.y
    alone = bits(fitted(wide, h=h))
    np.random.default_rng(0).normal(size=10)
    np.random.seed(5)
    with threadpool_limits(2, user_api="blas"):
        assert bits(fitted(wide, h=h, threads=2)) == alone
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda seed: bits(fitted(wide, h=h, seed=seed)), [0, 1, 0]))
    assert [found == alone for found in together] == [True, False, True]
    parts = {0: np.arange(len(y)), 3: np.arange(len(y))}
    both = MlpLearner.fit(h, y, parts, wide, threads=2, seed=0, binned=None, progress=silent)
    assert bits(both[0]) == alone != bits(both[3])  # a fold has a seed of its own


def test_epochs_are_not_shuffled_alike(monkeypatch: pytest.MonkeyPatch, config: RunConfig) -> None:
    """scikit-learn seeds itself anew in every call, where it is given a number."""
    seen = []

    def watched(rows: Any, random_state: Any) -> Any:
        seen.append(shuffle(rows, random_state=random_state).tolist())
        return np.array(seen[-1])

    monkeypatch.setattr("sklearn.neural_network._multilayer_perceptron.shuffle", watched)
    fitted(config)
    assert len(seen) == config.teacher_epochs
    assert seen[0] != seen[1]


def test_a_class_that_a_part_lacks_still_has_its_score(config: RunConfig) -> None:
    learner = fitted(config, rows=np.flatnonzero(blobs.y != 1))
    assert learner.margins(blobs.h[:2], 1).shape == (2, 3)


def test_it_learns_and_comes_back_from_its_tensors(config: RunConfig) -> None:
    learner = fitted(config.model_copy(update={"teacher_epochs": 20}))
    probe = make_blobs(60, CLASSES, seed=9)
    margins = learner.margins(probe.h, 1)
    assert (margins.argmax(axis=1) == probe.y).mean() > 0.8
    tensors = learner.tensors()
    shapes = [(16, 16), (16,), (16, 8), (8,), (8, 3), (3,)]
    assert [array.shape for array in tensors.values()] == shapes
    back = MlpLearner.of({**tensors, "present": np.arange(3)}, 3, 16)
    assert back.margins(probe.h, 1).tobytes() == margins.tobytes()


def test_weights_that_run_away_are_one_sentence(config: RunConfig) -> None:
    with pytest.raises(DataError, match=r"went to infinity in epoch \d+: give a smaller lr than 1e\+30"):
        fitted(config.model_copy(update={"lr": 1e30, "teacher_epochs": 50}))


def test_embeddings_that_are_no_numbers_are_refused(config: RunConfig) -> None:
    h = blobs.h.copy()
    h[5, 5] = np.nan
    with pytest.raises(DataError, match="needs embeddings that are finite"):
        fitted(config, h=h)


@pytest.mark.filterwarnings("error")
def test_few_samples_of_many_classes_are_no_reason_to_warn(config: RunConfig) -> None:
    many = make_blobs(30, list(range(10)), seed=2)
    labels = np.arange(30) % 20
    fitted(config, labels, h=many.h)


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_the_last_block_that_wants_one_blas_thread_puts_the_limit_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        first, second = one_blas_thread, one_blas_thread
        first.__enter__()
        second.__enter__()
        assert blas_threads() == {1}
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before
