import numpy as np
import pytest

from fkd_client.global_model import GlobalModel, MomentCorrection, Published
from fkd_client.student import outputs
from fkd_common.choices import MomentFeatures
from fkd_common.errors import DataError
from fkd_common.method.residuals import AnchorCorrection, Standardiser
from fkd_common.method.student_layout import initial_student
from fkd_common.model_file import ModelHeader, ModelParts, decode_model, encode_model
from tests.client.conftest import make_blobs

C, D = 4, 16
h = make_blobs(30, [0, 1, 2, 3], seed=1).h


def corrected(config, published=Published.STUDENT, scale=1.0):
    rng = np.random.default_rng(3)
    state = initial_student(0, D, config.hidden, C, config.norm)
    state["output.weight"][...] = rng.normal(size=state["output.weight"].shape)
    standardiser = Standardiser.of(h)
    p = sum(config.hidden) + D + 1
    anchors = AnchorCorrection(standardiser, scale * rng.normal(size=(D, C)), np.zeros(C), 10.0, 0.5)
    moments = MomentCorrection(scale * rng.normal(size=(p, C)), standardiser, MomentFeatures.HIDDEN)
    return GlobalModel(state, config, anchors, moments, published)


def test_candidates_are_the_student_with_and_without_each_correction(config):
    config = config.model_copy(update={"lambda_res": 0.5})
    model = corrected(config)
    S = outputs(model.state, h, config).logits
    found = model.candidate_logits(h)
    assert list(found) == ["student", "anchors", "moments"]
    np.testing.assert_array_equal(found["student"], S)
    np.testing.assert_allclose(found["anchors"], S + 0.5 * model.anchors.apply(h), rtol=1e-5, atol=1e-6)
    z = model.moments.vector(outputs(model.state, h, config).hidden, h)
    centred = S - S.mean(1, keepdims=True)
    np.testing.assert_allclose(found["moments"], centred + 0.5 * z @ model.moments.V, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("published", Published)
def test_logits_are_those_of_the_published_candidate(config, published):
    model = corrected(config, published)
    np.testing.assert_array_equal(model.logits(h), model.candidate_logits(h)[published])


def test_a_correction_of_zero_changes_no_decision(config):
    found = corrected(config, scale=0.0).candidate_logits(h)
    np.testing.assert_array_equal(found["anchors"], found["student"])
    np.testing.assert_array_equal(found["moments"].argmax(1), found["student"].argmax(1))


def test_publishing_an_absent_correction_is_refused(config):
    with pytest.raises(ValueError, match="anchors"):
        GlobalModel(initial_student(0, D, config.hidden, C, config.norm), config, published=Published.ANCHORS)


def test_the_hash_follows_every_part(config):
    model = corrected(config)
    first = model.sha256()
    assert corrected(config).sha256() == first
    assert corrected(config, Published.MOMENTS).sha256() != first
    model.moments.V[0, 0] += 1
    assert model.sha256() != first


def parts_of(model, published):
    header = ModelHeader(
        classes=tuple("abcd"), published=published, config=model.config, moment_lambda=1.0, anchor_lambda=10.0,
        anchor_loo_r2=0.5, extractor_sha256="e" * 64,
    )  # fmt: skip
    V = model.moments.V.astype(np.float32) if model.moments else None
    return ModelParts(header, dict(model.state), Standardiser.of(h), model.anchors, V)


def test_a_published_model_file_scores_like_the_model(config):
    model = corrected(config, Published.MOMENTS)
    loaded = GlobalModel.of(decode_model(encode_model(parts_of(model, "moments"))))
    assert loaded.published == "moments"
    for name, logits in model.candidate_logits(h).items():
        np.testing.assert_allclose(loaded.candidate_logits(h)[name], logits, rtol=1e-4, atol=1e-4)


def test_a_model_file_without_what_it_publishes_is_refused(config):
    bare = GlobalModel(corrected(config).state, config)
    with pytest.raises(DataError, match="does not contain it"):
        GlobalModel.of(decode_model(encode_model(parts_of(bare, "moments"))))
