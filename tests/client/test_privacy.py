"""What a site with noise uploads, counts and reports; the noise is nobody's to repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_client.embedding import embed
from fkd_client.extractor import Extractor
from fkd_client.pipeline import Pipeline
from fkd_client.privacy import RELEASES_FILE, ReleaseLog
from fkd_client.site import Site
from fkd_common.choices import MomentFeatures
from fkd_common.codecs.statistics import pack_moments, unpack_moments
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.moment_checks import OutputLayer, moment_flaw
from fkd_common.method.moments import unpack_symmetric
from fkd_common.method.student_layout import initial_student
from fkd_common.pb import types_pb2 as types
from fkd_common.privacy_accounting import Releases
from fkd_server.validation import Background, UploadRules
from fkd_shards.shard import Shard

NOISE: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "residual_l2_clip": 5.0,
    "feature_clip": 3.0,
    "target_clip": 6.0,
}


@pytest.fixture(scope="module")
def site(extractor: Extractor, tmp_path_factory: pytest.TempPathFactory) -> Site:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    shard = Shard("s", images, np.arange(40) % 3, ("a", "b", "c"), "cd" * 32)
    anchors = rng.integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)
    embeddings = embed(extractor, anchors, device="cpu")
    folder = tmp_path_factory.mktemp("cache")
    return Site("s", shard, extractor, "ef" * 32, anchors, embeddings, 3, folder, "cpu", 1)


def small(**changes: Any) -> RunConfig:
    return RunConfig(
        **{
            "hidden": (8, 4), "dropout": (0.0, 0.0), "teacher_trees": 3, "residual_trees": 3, "min_val": 5,
            "local_steps": 3, **changes,
        }
    )  # fmt: skip


def prepared(site: Site, config: RunConfig, releases: ReleaseLog | None = None) -> Pipeline:
    pipeline = Pipeline(site, config, releases)
    pipeline.prepare()
    return pipeline


def untrained(site: Site, config: RunConfig) -> dict[str, np.ndarray]:
    return initial_student(0, site.anchor_embeddings.shape[1], config.hidden, 3, config.norm)


@pytest.mark.parametrize(
    "changes", [{}, {"feature_clip": 3.0, "target_clip": 6.0, "residual_l2_clip": 5.0}, NOISE]
)
def test_what_a_site_uploads_passes_validation(site: Site, changes: dict[str, Any]) -> None:
    """Plain, clipped, and clipped and noised; the student has been trained, so its scores are not 0."""
    config = small(**changes)
    pipeline = prepared(site, config)
    state = pipeline.student(untrained(site, config), 1)
    d = site.anchor_embeddings.shape[1]
    rules = UploadRules(config, 3, 12, d, 8 + 4 + d + 1)
    n, output = pipeline.num_samples, OutputLayer(state["output.weight"], state["output.bias"])
    rules.check_tensors(types.PHASE_STUDENT, dict(state), Background(1, n))
    rules.check_tensors(types.PHASE_RESIDUALS, {"residuals": pipeline.residuals(state)}, Background(1, n))
    first = pipeline.moments(state, block_known=False)
    rules.check_tensors(types.PHASE_MOMENTS, dict(first), Background(1, n, None, output))
    block = first["A"][-(d + 1) * (d + 2) // 2 :]
    again = pipeline.moments(state, block_known=True)
    rules.check_tensors(types.PHASE_MOMENTS, dict(again), Background(1, n, block, output))
    start = pipeline.untrained_student()
    before = pipeline.moments(start, block_known=False, which=MomentFeatures.EMBEDDING)
    rules.check_tensors(types.PHASE_MOMENTS, dict(before), Background(0, n))
    if not config.refinements:
        return
    diagonal = unpack_symmetric(first["A"], 8 + 4 + d + 1, None).diagonal()
    for V in (np.zeros((8 + 4 + d + 1, 3)), np.random.default_rng(0).normal(size=(8 + 4 + d + 1, 3))):
        G = pipeline.gradient(state, V.astype(np.float32), config.moment_features)
        rules.check_tensors(types.PHASE_REFINE_1, dict(G), Background(1, n, diagonal=diagonal))


@pytest.mark.parametrize("changes", [{}, {"feature_clip": 3.0, "target_clip": 6.0}])
def test_what_a_site_says_of_the_block_it_leaves_out_is_what_was_in_it(
    site: Site, changes: dict[str, Any]
) -> None:
    """Its squares are what int16 counts the other products in: were they larger, A would not be semidefinite."""
    config = small(**changes, statistics_codec="int16")
    pipeline, d = prepared(site, config), site.anchor_embeddings.shape[1]
    state, p = untrained(site, config), 8 + 4 + d + 1
    whole = unpack_symmetric(pipeline.moments(state, block_known=False)["A"], p, None)
    squares = pipeline.embedding_squares()
    np.testing.assert_allclose(squares, whole.diagonal()[-d - 1 :], rtol=1e-5)
    again = pipeline.moments(state, block_known=True)
    packed = pack_moments(again["A"], again["B"], squares, config.statistics_codec, np.random.default_rng(0))
    received = unpack_moments(dict(packed), p, 3, d + 1, config.statistics_codec)
    A = unpack_symmetric(received["A"], p, whole[-d - 1 :, -d - 1 :])
    assert moment_flaw(A, received["B"], pipeline.num_samples, d, config, None) is None


def test_noise_is_different_every_time_and_counted_every_time(site: Site) -> None:
    config = small(**NOISE)
    first, second = prepared(site, config), prepared(site, config)
    state = untrained(site, config)
    assert not np.array_equal(first.residuals(state), second.residuals(state))
    assert not np.array_equal(first.residuals(state), first.residuals(state))
    A, B = (first.moments(state, block_known=False) for _ in range(2))
    assert not np.array_equal(A["B"], B["B"])
    assert first.releases.releases == Releases(residuals=3, moments=2)


def test_without_noise_equal_seeds_give_equal_bits_and_nothing_is_counted(site: Site) -> None:
    config = small()
    first, second = prepared(site, config), prepared(site, config)
    state = untrained(site, config)
    assert first.residuals(state).tobytes() == second.residuals(state).tobytes()
    A, same = (pipeline.moments(state, block_known=False)["A"] for pipeline in (first, second))
    assert A.tobytes() == same.tobytes()
    assert first.releases.releases == Releases()


def test_clipping_bounds_what_a_site_uploads(site: Site) -> None:
    config = small(residual_l2_clip=0.5, feature_clip=1.0, target_clip=2.0)
    pipeline, state = prepared(site, config), untrained(site, small())
    assert np.linalg.norm(pipeline.residuals(state)) <= 0.5 * 1.001
    B = pipeline.moments(state, block_known=False)["B"]
    assert np.abs(B).max() <= pipeline.num_samples * np.sqrt(3) * 2.0


def test_releases_are_counted_over_restarts(tmp_path: Path) -> None:
    log = ReleaseLog(tmp_path)
    log.add(residuals=1)
    log.add(moments=1)
    again = ReleaseLog(tmp_path)
    again.add(moments=1)
    assert ReleaseLog(tmp_path).releases == Releases(residuals=1, moments=2)


@pytest.mark.parametrize("text", ["", "[]", '{"residuals": 1, "votes": 2}', "nonsense"])
def test_a_count_that_cannot_be_read_is_not_taken_for_zero(tmp_path: Path, text: str) -> None:
    (tmp_path / RELEASES_FILE).write_text(text)
    with pytest.raises(DataError, match="does not say how many noised uploads were made"):
        ReleaseLog(tmp_path)
