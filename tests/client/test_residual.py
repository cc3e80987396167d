import numpy as np
import pytest

from fkd_client.boosting import BinnedEmbeddings
from fkd_client.residual import ResidualLearners, fit_and_predict_residuals
from fkd_client.teacher import train_teacher
from fkd_common.choices import TeacherKind
from tests.client.conftest import make_blobs

blobs, anchors = make_blobs(120, [0, 1, 2], seed=1), make_blobs(40, [0, 1, 2], seed=2)


def residuals():
    r = np.zeros((120, 4))
    r[:, :3] = np.eye(3)[blobs.y] - 1 / 3
    return r


def test_residuals_are_learnt_and_predicted_on_anchors(config):
    config = config.model_copy(update={"residual_trees": 30})
    found = fit_and_predict_residuals(blobs.h, residuals(), anchors.h, config, threads=1, seed=0)
    assert found.shape == (40, 4)
    assert found.dtype == np.float32
    assert (found[:, :3].argmax(1) == anchors.y).mean() > 0.8


def test_a_zero_column_stays_exactly_zero(config):
    found = fit_and_predict_residuals(blobs.h, residuals(), anchors.h, config, threads=1, seed=0)
    assert not found[:, 3].any()


def test_a_second_round_on_the_same_bins_equals_a_fresh_one(config):
    learners = ResidualLearners(blobs.h, config, threads=1, seed=0)
    learners.fit_and_predict(-3 * residuals(), anchors.h)
    again = learners.fit_and_predict(residuals(), anchors.h)
    fresh = fit_and_predict_residuals(blobs.h, residuals(), anchors.h, config, threads=1, seed=0)
    np.testing.assert_array_equal(again, fresh)


@pytest.mark.scenario(38)
def test_one_sample_predicts_its_residual_everywhere(config):
    r = np.array([[0.5, -0.5]])
    found = fit_and_predict_residuals(blobs.h[:1], r, anchors.h, config, threads=1, seed=0)
    np.testing.assert_allclose(found, np.tile(r, (40, 1)), atol=1e-6)


def test_progress_ends_at_one(config):
    told = []
    fit_and_predict_residuals(
        blobs.h, residuals(), anchors.h, config, threads=1, seed=0, progress=lambda f, _: told.append(f)
    )
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_an_mlp_teacher_makes_no_bins(config, monkeypatch):
    binned = BinnedEmbeddings(blobs.h, config, 1, 0)
    monkeypatch.setattr(BinnedEmbeddings, "with_labels", None)
    config = config.model_copy(update={"teacher": TeacherKind.MLP, "teacher_epochs": 2})
    train_teacher(blobs.h, blobs.y, anchors.h, anchors.y, 4, config, threads=1, seed=0, binned=binned)


def test_bins_shared_with_the_teacher_give_the_bits_of_bins_made_alone(config):
    binned = BinnedEmbeddings(blobs.h, config, 1, 0)
    of_two = [
        train_teacher(
            blobs.h, blobs.y, anchors.h, anchors.y, 4, config, threads=1, seed=0, binned=given
        ).soft_source.tobytes()
        for given in (binned, None, binned)
    ]
    assert len(set(of_two)) == 1
    shared = ResidualLearners(blobs.h, config, threads=1, seed=0, binned=binned)
    found = shared.fit_and_predict(residuals(), anchors.h)
    alone = fit_and_predict_residuals(blobs.h, residuals(), anchors.h, config, threads=1, seed=0)
    np.testing.assert_array_equal(found, alone)
    assert found.any()
