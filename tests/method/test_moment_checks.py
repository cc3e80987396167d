"""Moments of real samples pass, whatever the samples; moments no samples have do not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fkd_common.choices import MomentFeatures
from fkd_common.config import RunConfig
from fkd_common.method.moment_checks import OutputLayer, moment_flaw, samples_per_class
from fkd_common.method.moments import accumulate, centre, moment_targets, moment_vector, pack_symmetric
from fkd_common.method.privacy import NoiseScale, clip_features, clip_rows

D, WIDTHS, C = 3, (4, 2), 3


@dataclass(frozen=True, eq=False)
class Upload:
    """What a client sends, as the coordinator reads it."""

    A: np.ndarray
    B: np.ndarray
    n: int
    output: OutputLayer | None

    def flaw(self, config: RunConfig) -> str | None:
        return moment_flaw(self.A.copy(), self.B, self.n, D, config, self.output)


def honest(
    n: int = 40,
    *,
    classes: tuple[int, ...] = (0, 1, 2),
    beta: float = 0.0,
    loud: float = 1.0,
    config: RunConfig | None = None,
    seed: int = 0,
) -> Upload:
    """Moments of n random samples; `loud` scales the student's last layer."""
    config, rng = (
        config or RunConfig(hidden=WIDTHS, dropout=(0.0, 0.0), beta=beta),
        np.random.default_rng(seed),
    )
    hidden = [rng.normal(size=(n, width)).astype(np.float32).clip(-0.2) for width in WIDTHS]
    embedding = rng.normal(size=(n, D)).astype(np.float32) * 2
    output = OutputLayer(
        (loud * rng.normal(size=(C, WIDTHS[-1]))).astype(np.float32),
        (loud * rng.normal(size=C)).astype(np.float32),
    )
    scores = hidden[-1] @ output.weight.T + output.bias
    labels, oof = rng.choice(classes, size=n), rng.dirichlet(np.ones(C), size=n)
    z = clip_features(moment_vector(hidden, embedding, config.moment_features), D, config.feature_clip)
    residual = moment_targets(labels, oof, C, config.kappa, beta) - centre(scores)
    sums = accumulate(z, clip_rows(residual, config.target_clip))
    known = output if config.moment_features is not MomentFeatures.EMBEDDING else None
    return Upload(sums.A.astype(np.float32).astype(float), sums.B.astype(np.float32), n, known)


def plain(**changes: Any) -> RunConfig:
    return RunConfig(**{"hidden": WIDTHS, "dropout": (0.0, 0.0), **changes})


@pytest.mark.parametrize("n", [1, 2, 5, 40, 20_000])
@pytest.mark.parametrize("classes", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("loud", [0.0, 1.0, 1e4])
def test_moments_of_real_samples_pass(n: int, classes: tuple[int, ...], loud: float) -> None:
    """One class, fewer samples than features, a student that shouts: none of it is a reason to refuse."""
    assert honest(n, classes=classes, loud=loud).flaw(plain()) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"beta": 0.5},
        {"moment_features": MomentFeatures.LAST},
        {"moment_features": MomentFeatures.EMBEDDING},
        {"feature_clip": 1.0, "target_clip": 4.0},
        {"feature_clip": 1.0},
        {"target_clip": 4.0},
    ],
)
def test_they_pass_in_every_configuration(changes: dict[str, Any]) -> None:
    config = plain(**changes)
    for seed in range(20):
        assert honest(60, beta=config.beta, config=config, seed=seed).flaw(config) is None


def test_moments_of_real_samples_pass_with_features_that_are_always_zero() -> None:
    upload = honest()
    A, B = upload.A.copy(), upload.B.copy()
    A[1], A[:, 1], B[1] = 0, 0, 0
    assert replace(upload, A=A, B=B).flaw(plain()) is None


def changed(A: dict[tuple[int, int], float] | None = None, B: float = 1.0, n: int = 40) -> Upload:
    upload = honest()
    matrix = upload.A.copy()
    for (i, j), value in (A or {}).items():
        matrix[i, j] = matrix[j, i] = value
    return replace(upload, A=matrix, B=upload.B * np.float32(B), n=n)


@pytest.mark.scenario(12)
@pytest.mark.parametrize(
    "upload, sentence",
    [
        (changed(n=41), "last entry of A is 40; expected n_k = 41"),
        (changed({(0, 0): -1.0}), "squares, which are at least 0"),
        (changed({(0, 0): 1e20}), "expected at most 4e"),
        (changed({(5, 5): 1e18}), "expected at most 4e"),
        (changed({(6, 6): 1e10}), "squares of embeddings add up to"),
        (changed({(0, 1): 1e5}), "A\\[0, 1\\]² is larger than"),
        (changed(B=-1.0), "B implies"),
        (changed(B=100.0), "B implies"),
    ],
)
def test_moments_no_samples_have_are_named(upload: Upload, sentence: str) -> None:
    """Scenario 12: finite but absurd values."""
    flaw = upload.flaw(plain())
    assert flaw is not None
    assert re.search(sentence, flaw), flaw


@pytest.mark.scenario(12)
def test_an_indefinite_matrix_is_refused_though_every_pair_of_entries_is_possible() -> None:
    """Scenario 12: correlations 1, 1 and -1 among three features contradict each other."""
    A = np.diag([40.0] * 10)
    for i, j, sign in ((0, 1, 1), (1, 2, 1), (0, 2, -1)):
        A[i, j] = A[j, i] = sign * 40.0
    flaw = replace(honest(), A=A).flaw(plain())
    assert flaw == "A is not positive semidefinite, as a sum of z zᵀ is"


def test_residuals_that_do_not_sum_to_zero_over_classes_are_refused() -> None:
    upload = honest()
    B = upload.B.copy()
    B[2, 0] += 5.0
    assert "row 2 of B does not sum to 0" in str(replace(upload, B=B).flaw(plain()))


def test_a_negative_number_of_samples_of_a_class_is_found_through_the_student_it_was_computed_with() -> None:
    upload = honest()
    B = upload.B.copy()
    B[-1] += np.array(
        [200.0, -100.0, -100.0], dtype=np.float32
    )  # 200/8 = 25 samples more, 12.5 fewer of two classes
    flaw = replace(upload, B=B).flaw(plain())
    assert flaw is not None
    assert "samples of class" in flaw
    # Where z lacks what the student's scores are made of, that cannot be seen.
    assert replace(upload, B=B, output=None).flaw(plain()) is None


def test_clipping_bounds_what_may_come() -> None:
    config = plain(feature_clip=1.0, target_clip=4.0)
    upload = honest(config=config)
    assert upload.flaw(config) is None
    A = upload.A.copy()
    A[0, 0] += 41.0
    assert "clipping allows at most 40" in str(replace(upload, A=A).flaw(config))
    assert "squares of hidden features" in str(honest().flaw(plain(feature_clip=0.1)))
    assert "residuals of length 4" in str(replace(upload, B=upload.B * np.float32(100)).flaw(config))


def test_under_noise_only_magnitudes_are_checked() -> None:
    config = plain(noise_multiplier=1.0, feature_clip=1.0, target_clip=4.0, residual_l2_clip=1.0)
    scale, upload = NoiseScale.of(config), honest(config=config)
    rng = np.random.default_rng(0)
    noise = np.triu(rng.normal(0, scale.A, upload.A.shape))
    noise[-1, -1] = 0.0
    noised = replace(
        upload, A=upload.A + noise + np.triu(noise, 1).T, B=upload.B + rng.normal(0, scale.B, upload.B.shape)
    )
    assert noised.flaw(config) is None
    assert noised.flaw(plain()) is not None
    assert "clipping and noise allow" in str(replace(noised, B=noised.B + 1e5).flaw(config))
    assert "expected n_k = 41" in str(replace(noised, n=41).flaw(config))


@pytest.mark.scenario(44)
def test_a_one_class_liar_is_consistent_and_passes() -> None:
    """Scenario 44: samples that do not exist look like samples; only the class counts in B give them away."""
    liar = honest(classes=(0,))
    ten_times = replace(liar, A=liar.A * 10, B=liar.B * np.float32(10), n=400)
    assert ten_times.flaw(plain()) is None


def test_moments_of_the_default_student_pass() -> None:
    """p = 1409, fewer samples than features."""
    rng, n, d = np.random.default_rng(0), 800, 512
    hidden = [rng.normal(size=(n, width)).astype(np.float32) for width in (512, 256, 128)]
    output = OutputLayer(rng.normal(size=(10, 128)).astype(np.float32), np.zeros(10, np.float32))
    z = moment_vector(hidden, rng.normal(size=(n, d)).astype(np.float32), MomentFeatures.HIDDEN)
    targets = moment_targets(rng.integers(0, 10, n), None, 10, 8.0, 0.0)
    sums = accumulate(z, targets - centre(hidden[-1] @ output.weight.T))
    A, B = sums.A.astype(np.float32).astype(float), sums.B.astype(np.float32)
    assert moment_flaw(A, B, n, d, RunConfig(), output) is None


@pytest.mark.parametrize("known_block", [0, D + 1])
def test_moments_tell_how_many_samples_of_each_class_there_are(known_block: int) -> None:
    upload = honest(40, classes=(0, 2))
    assert upload.output is not None
    packed = pack_symmetric(upload.A.astype(np.float32), known_block)
    counts = samples_per_class(packed, upload.B, upload.n, D, RunConfig().kappa, upload.output)
    assert counts.sum() == 40
    assert counts[1] == 0
    labels = np.random.default_rng(0)  # as in honest(): the same draws, in the same order
    for width in WIDTHS:
        labels.normal(size=(40, width))
    labels.normal(size=(40, D)), labels.normal(size=(C, WIDTHS[-1])), labels.normal(size=C)
    assert counts.tolist() == np.bincount(labels.choice((0, 2), size=40), minlength=C).tolist()
