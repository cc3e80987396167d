"""Small and one-sided shards through every learner in turn."""

import numpy as np
import pytest

from fkd_client.global_model import GlobalModel, MomentCorrection, Published
from fkd_client.personal import PersonalData, personalise
from fkd_client.residual import fit_and_predict_residuals
from fkd_client.split import split_train_val
from fkd_client.student import outputs, soft_targets, train_student
from fkd_client.teacher import train_teacher
from fkd_common.choices import AbsentClasses, FinetuneScope, KdTargets, Norm
from fkd_common.method.moments import accumulate, centre, moment_targets, solve
from fkd_common.method.residuals import Standardiser, fit_anchor_correction, prepare_residual, residual
from fkd_common.method.student_layout import initial_student, student_layout
from tests.client.conftest import make_blobs

C, D = 4, 16


@pytest.mark.scenario(36, 37, 38)
@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("targets", KdTargets)
@pytest.mark.parametrize("absent", AbsentClasses)
@pytest.mark.parametrize(
    "labels",
    [[2], [1, 3], [0] * 30, [0, 1] * 20, [0] * 29 + [1], [0, 1, 2, 3] * 10],
    ids=["one sample", "one each of two", "one class", "two classes", "one against 29", "all classes"],
)
def test_any_shard_gives_finite_uploads_of_the_right_shape(config, labels, absent, targets, norm):
    config = config.model_copy(
        update={
            "norm": norm, "kd_targets": targets, "absent_classes": absent,
            "finetune_scope": FinetuneScope.HEAD, "beta": 0.25,
        }
    )  # fmt: skip
    y = np.array(labels, np.int64)
    h = make_blobs(len(y), [0, 1, 2, 3], seed=0).h
    anchors = make_blobs(20, [0, 1, 2, 3], seed=9).h
    train, val = split_train_val(y, config.val_fraction, seed=0)
    teacher = train_teacher(h[train], y[train], h[val], y[val], C, config, threads=1, seed=0)
    received = initial_student(0, D, config.hidden, C, norm)
    state = train_student(
        received, h[train], y[train], teacher.soft_source, teacher.present, config, round_number=1, seed=0
    )
    assert {k: (v.shape, v.dtype.name) for k, v in state.items()} == {
        k: (s.shape, s.dtype) for k, s in student_layout(D, config.hidden, C, norm).items()
    }
    assert all(np.isfinite(v).all() for v in state.values())

    student = outputs(state, h[train], config)
    soft = soft_targets(state, h[train], teacher.soft_source, teacher.present, config)
    r = residual(soft, student.logits, config.temperature, config.eps, config.residual_form)
    r = prepare_residual(r, teacher.present, config.residual_clip, config.residual_temperature)
    fused = fit_and_predict_residuals(h[train], r, anchors, config, threads=1, seed=0)
    assert fused.shape == (20, C)
    assert np.isfinite(fused).all()

    moments = MomentCorrection(np.zeros(0), Standardiser.of(anchors), config.moment_features)
    t = moment_targets(y[train], teacher.oof, C, config.kappa, config.beta)
    sums = accumulate(moments.vector(student.hidden, h[train]), t - centre(student.logits))
    moments = MomentCorrection(solve(sums.A, sums.B, 10.0), moments.standardiser, moments.features)
    correction = fit_anchor_correction(anchors, fused, config.anchor_lambda_grid)
    for published in Published:
        base = GlobalModel(state, config, correction, moments, published)
        model = personalise(
            base, PersonalData(h[train], y[train]), PersonalData(h[val], y[val]), teacher, config, seed=0
        )
        scores = model.scores(model.chosen, anchors)
        assert scores.shape == (20, C)
        assert np.isfinite(scores).all()
