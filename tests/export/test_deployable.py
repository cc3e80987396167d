"""The network behind every export, against the project's own scores, for each way a run can be configured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkd_client.deployable import DeployableModel
from fkd_client.embedding import embed
from fkd_client.extractor import Extractor, dump_extractor, load_extractor
from fkd_client.global_model import GlobalModel, MomentCorrection, Published
from fkd_client.pretrain import initial_trunk
from fkd_common.choices import MomentFeatures, Norm
from fkd_common.config import RunConfig
from fkd_common.extractor_artifact import ExtractorSpec
from fkd_common.method.moments import num_moment_features
from fkd_common.method.probabilities import softmax
from fkd_common.method.residuals import AnchorCorrection, Standardiser
from fkd_common.method.student_layout import initial_student

C, D, SIZE = 5, 512, 48


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    """The usual trunk, with the stem of ImageNet."""
    spec = ExtractorSpec("resnet18", SIZE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return load_extractor(
        dump_extractor(initial_trunk(spec, torch.Generator().manual_seed(1)).state_dict(), spec)
    )


@pytest.mark.parametrize("published", Published)
@pytest.mark.parametrize("features", MomentFeatures)
@pytest.mark.parametrize("norm", Norm)
def test_it_scores_like_the_global_model(
    extractor: Extractor, published: Published, features: MomentFeatures, norm: Norm
) -> None:
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (6, SIZE, SIZE, 3), dtype=np.uint8)
    h = embed(extractor, images)
    config = RunConfig(
        hidden=(24, 12), dropout=(0.0, 0.0), norm=norm, moment_features=features, lambda_res=0.5
    )
    student = initial_student(0, D, config.hidden, C, norm)
    student["output.weight"][...] = rng.normal(size=student["output.weight"].shape)
    standardiser = Standardiser.of(h)
    anchors = AnchorCorrection(standardiser, 0.1 * rng.normal(size=(D, C)), rng.normal(size=C), 1.0, 0.5)
    p = num_moment_features(config.hidden, D, features)
    moments = MomentCorrection(0.1 * rng.normal(size=(p, C)), standardiser, features)
    model = GlobalModel(student, config, anchors, moments, published)
    expected = model.logits(h)
    with torch.inference_mode():
        scores, probabilities = DeployableModel(extractor, model)(
            torch.from_numpy(images).permute(0, 3, 1, 2)
        )
    np.testing.assert_allclose(scores.numpy(), expected, atol=2e-4)
    np.testing.assert_allclose(probabilities.numpy(), softmax(expected), atol=1e-5)
    np.testing.assert_array_equal(scores.numpy().argmax(1), expected.argmax(1))
