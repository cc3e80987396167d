import signal
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident, main_thread

import numpy as np
import pytest

from fkd_client.boosting import SideBySide
from fkd_client.progress import silent
from fkd_client.teacher import reliability, train_teacher
from fkd_common.choices import Calibrator, KdTargets, Reliability, TeacherKind
from fkd_common.errors import DataError
from tests.client.conftest import make_blobs

C = 5


@pytest.fixture(params=TeacherKind)
def config(config, request):
    return config.model_copy(update={"teacher": request.param, "teacher_epochs": 12, "lr": 0.01})


def taught(config, n=150, v=60, classes=(0, 1, 3), seed=0, threads=1):
    train, val = make_blobs(n, list(classes), seed=1), make_blobs(v, list(classes), seed=2)
    return train_teacher(train.h, train.y, val.h, val.y, C, config, threads=threads, seed=seed)


def same(a, b):
    probe = make_blobs(20, [0, 1, 2], seed=9).h
    return (
        a.calibrated(probe).tobytes() == b.calibrated(probe).tobytes()
        and a.soft_source.tobytes() == b.soft_source.tobytes()
        and a.reliability == b.reliability
    )


@pytest.mark.scenario(37)
def test_probabilities_cover_all_classes_and_absent_ones_stay_possible(config):
    p = taught(config).calibrated(make_blobs(30, [0, 1, 3], seed=4).h)
    assert p.shape == (30, C)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    assert (p[:, [2, 4]] > 0).all()


def test_the_teacher_learns_and_says_how_well(config):
    teacher = taught(config)
    assert teacher.report.val_accuracy > 0.8
    assert teacher.reliability == teacher.report.val_accuracy
    if config.teacher is TeacherKind.TREES:  # 8 of them are underconfident
        assert teacher.report.nll_after < teacher.report.nll_before


def test_out_of_fold_targets_are_less_sure_than_in_sample_ones(config):
    out_of_fold = taught(config)
    in_sample = taught(config.model_copy(update={"kd_targets": KdTargets.IN_SAMPLE}))
    y = make_blobs(150, [0, 1, 3], seed=1).y
    rows = np.arange(150)
    assert out_of_fold.soft_source[rows, y].mean() < in_sample.soft_source[rows, y].mean()
    assert in_sample.oof is None
    np.testing.assert_array_equal(out_of_fold.oof, out_of_fold.soft_source)


def test_moment_targets_get_out_of_fold_probabilities_when_beta_asks_for_them(config):
    teacher = taught(config.model_copy(update={"kd_targets": KdTargets.IN_SAMPLE, "beta": 0.2}))
    assert teacher.oof is not None
    assert not np.array_equal(teacher.oof, teacher.soft_source)


def test_training_twice_gives_equal_bits_whatever_the_threads(config):
    first = taught(config)
    assert same(first, taught(config))
    assert same(first, taught(config, threads=2))
    assert not same(first, taught(config, seed=1))


def test_teachers_trained_in_threads_are_those_trained_alone(config):
    alone = [taught(config, seed=s) for s in range(2)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda s: taught(config, seed=s), range(2)))
    assert all(same(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.scenario(37)
def test_one_class_needs_no_learner_and_gives_a_constant(config):
    teacher = taught(config, n=30, v=20, classes=[2])
    p = teacher.calibrated(make_blobs(3, [0, 1, 2], seed=9).h)
    assert teacher.model.learner is None
    np.testing.assert_allclose(p[:, 2], 1 / (1 + 4 / 22), atol=1e-6)  # four absent classes of 1/(20+2)
    np.testing.assert_array_equal(teacher.soft_source[0], p[0])


@pytest.mark.scenario(38)
@pytest.mark.parametrize(
    ("n", "classes"), [(1, [3]), (2, [0, 1]), (3, [0, 1, 2]), (12, [0, 1]), (13, [0, 0, 0, 0, 0, 1])]
)
def test_tiny_shards_without_validation_samples_work(config, n, classes):
    teacher = taught(config, n=n, v=0, classes=classes)
    assert teacher.soft_source.shape == (n, C)
    assert np.isfinite(teacher.soft_source).all()
    np.testing.assert_allclose(teacher.soft_source.sum(1), 1, atol=1e-6)
    assert teacher.reliability == 0.0
    assert np.isnan(teacher.report.val_accuracy)


@pytest.mark.scenario(38)
def test_a_class_of_one_sample_stays_possible_out_of_fold(config):
    h, y = make_blobs(31, [0, 1], seed=0).h, np.array([0, 1] * 15 + [4])
    teacher = train_teacher(h, y, h[:0], y[:0], C, config, threads=1, seed=0)
    assert teacher.soft_source[30, 4] > 1e-3  # no fold that predicted it had seen its class


@pytest.mark.scenario(36)
def test_a_class_met_only_in_validation_counts_as_wrong(config):
    train, val = make_blobs(60, [0, 1], seed=1), make_blobs(40, [0, 1], seed=2)
    y_val = val.y.copy()
    y_val[:20] = 4
    teacher = train_teacher(train.h, train.y, val.h, y_val, C, config, threads=1, seed=0)
    assert teacher.reliability <= 0.5


@pytest.mark.parametrize("calibrator", Calibrator)
def test_every_calibrator_keeps_probabilities(config, calibrator):
    teacher = taught(config.model_copy(update={"calibrator": calibrator}))
    np.testing.assert_allclose(teacher.soft_source.sum(1), 1, atol=1e-6)


def test_reliability_by_hand():
    y_val = np.array([0, 0, 0, 1])  # majority 0.75
    assert reliability(0.9, y_val, Reliability.ACCURACY) == 0.9
    assert reliability(0.9, y_val, Reliability.SKILL) == pytest.approx(0.6)
    assert reliability(0.5, y_val, Reliability.SKILL) == 0.0
    assert reliability(1.0, np.zeros(4, np.int64), Reliability.SKILL) == 0.0
    assert reliability(0.9, y_val, Reliability.NONE) == 1.0
    assert reliability(float("nan"), y_val[:0], Reliability.ACCURACY) == 0.0


@pytest.mark.scenario(38)
def test_an_empty_training_part_is_refused(config):
    with pytest.raises(DataError, match="at least 1 training sample"):
        taught(config, n=0, v=0)


def test_what_was_asked_lately_is_not_predicted_again(config, monkeypatch):
    model = taught(config).model
    asked = [make_blobs(20, [0, 1, 3], seed=seed).h for seed in range(5)]
    first = [model.probabilities(h) for h in asked]
    predicted = []
    monkeypatch.setattr(
        "fkd_client.teacher._probabilities", lambda learner, h, *rest: predicted.append(h) or np.ones((20, 3))
    )
    assert model.probabilities(asked[4].copy()).tobytes() == first[4].tobytes()
    assert not predicted
    model.probabilities(asked[0])
    assert len(predicted) == 1
    with pytest.raises(ValueError, match="read-only"):
        first[4][0, 0] = 2.0


def test_fits_side_by_side_stop_when_one_fails():
    started = Barrier(2, timeout=30)
    told = []

    def fit(number, progress):
        started.wait()
        if number == 1:
            raise ValueError("no such tree")
        for tree in range(30_000):  # half a minute, unless it is stopped
            progress(tree / 30_000, "growing")
            told.append(tree)
            time.sleep(0.001)

    with pytest.raises(ValueError, match="no such tree"):
        SideBySide(2, 2).run(fit, silent)
    assert len(told) < 20_000


def test_fits_aside_leave_the_callers_thread_to_signals():
    threads = SideBySide(2, 1, aside=True).run(lambda number, told: get_ident(), silent)
    assert get_ident() not in threads
    assert SideBySide(2, 1).run(lambda number, told: get_ident(), silent) == [get_ident()] * 2


@pytest.fixture
def as_at_a_terminal():
    """What Ctrl-C does, whatever a program that ran in this process has made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("as_at_a_terminal")
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_the_training(config, threads):
    """scikit-learn swallows it where it meets it."""
    config = config.model_copy(update={"teacher_trees": 1000, "teacher_epochs": 1000})
    train, told = make_blobs(300, [0, 1, 2], seed=1), []

    def interrupted(fraction, what):
        told.append(fraction)
        if len(told) == 1:  # the others may not have been started yet
            signal.pthread_kill(main_thread().ident, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_teacher(
            train.h,
            train.y,
            train.h[:0],
            train.y[:0],
            C,
            config,
            threads=threads,
            seed=0,
            progress=interrupted,
        )
    assert len(told) < 1000


@pytest.mark.parametrize(
    ("fits", "threads", "at_once", "each"), [(4, 1, 1, 1), (4, 2, 2, 1), (4, 16, 4, 4), (1, 8, 1, 8)]
)
def test_threads_are_shared_out_among_fits(fits, threads, at_once, each):
    plan = SideBySide(fits, threads)
    assert (plan.at_once, plan.threads_each) == (at_once, each)


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_of_all_fits_ends_at_one_and_never_goes_back(config, threads):
    train = make_blobs(90, [0, 1, 2], seed=1)
    told = []
    train_teacher(
        train.h, train.y, train.h[:0], train.y[:0], C, config, threads=threads, seed=0,
        progress=lambda fraction, what: told.append(fraction),
    )  # fmt: skip
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    steps = config.teacher_trees if config.teacher is TeacherKind.TREES else config.teacher_epochs
    assert len(told) == steps * (1 + config.kd_folds)
