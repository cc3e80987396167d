"""A published model survives its file, byte for byte, with and without corrections."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_common.choices import Norm
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.method.residuals import AnchorCorrection, Standardiser
from fkd_common.method.student_layout import initial_student
from fkd_common.model_file import HEADER_KEY, ModelHeader, ModelParts, decode_model, encode_model
from fkd_common.tensors import decode, encode


def model(*, corrected: bool) -> ModelParts:
    rng = np.random.default_rng(0)
    standardiser = Standardiser(rng.normal(size=3), rng.uniform(1, 2, size=3))
    header = ModelHeader(
        classes=("cat", "dog"),
        published="anchors" if corrected else "student",
        config=RunConfig(hidden=(2,), dropout=(0.0,), norm=Norm.LAYER),
        moment_lambda=10.0 if corrected else 0.0,
        anchor_lambda=100.0 if corrected else 0.0,
        anchor_loo_r2=0.25 if corrected else 0.0,
        extractor_sha256="ab" * 32,
    )
    anchors = AnchorCorrection(standardiser, rng.normal(size=(3, 2)), rng.normal(size=2), 100.0, 0.25)
    V = rng.normal(size=(6, 2)).astype(np.float32)
    student = initial_student(1, 3, (2,), 2, Norm.LAYER)
    return ModelParts(header, student, standardiser, anchors if corrected else None, V if corrected else None)


@pytest.mark.parametrize("corrected", [False, True])
def test_a_model_comes_back_as_it_was(corrected: bool) -> None:
    sent = model(corrected=corrected)
    read = decode_model(encode_model(sent))
    assert read.header == sent.header
    assert read.student.keys() == sent.student.keys()
    for name, tensor in sent.student.items():
        assert read.student[name].tobytes() == tensor.tobytes()
    np.testing.assert_array_equal(read.standardiser.mean, sent.standardiser.mean)
    np.testing.assert_array_equal(read.standardiser.std, sent.standardiser.std)
    assert (read.anchor_correction is None, read.moment_solution is None) == (not corrected, not corrected)
    if read.anchor_correction is not None and sent.anchor_correction is not None:
        h = np.ones((1, 3), dtype=np.float32)
        np.testing.assert_array_equal(read.anchor_correction.apply(h), sent.anchor_correction.apply(h))
        assert (read.anchor_correction.strength, read.anchor_correction.loo_r2) == (100.0, 0.25)


@pytest.mark.parametrize("corrected", [False, True])
def test_equal_models_give_equal_bytes(corrected: bool) -> None:
    assert encode_model(model(corrected=corrected)) == encode_model(model(corrected=corrected))
    again = encode_model(decode_model(encode_model(model(corrected=corrected))))
    assert again == encode_model(model(corrected=corrected))


@pytest.mark.scenario(20)
def test_anything_else_is_refused() -> None:
    good = encode_model(model(corrected=False))
    without_standardiser = {n: a for n, a in decode(good).items() if not n.startswith("standardiser")}
    header = model(corrected=False).header.model_dump_json()
    for blob in (
        b"",
        b"not a model",
        encode({"w": np.zeros(1)}),
        encode({"w": np.zeros(1)}, {HEADER_KEY: "{}"}),
        encode(without_standardiser, {HEADER_KEY: header}),
        good[:-1],
    ):
        with pytest.raises(DataError, match="not a published model"):
            decode_model(blob)


@pytest.mark.scenario(11, 20)
@pytest.mark.parametrize(
    "name, other",
    [
        ("anchor_correction.intercept", None),
        ("anchor_correction.coefficients", np.zeros((2, 3))),
        ("moment_correction.V", np.zeros((5, 2), np.float32)),
        ("standardiser.std", np.zeros(4)),
        ("standardiser.mean", np.zeros((3, 1))),
        ("student.output.weight", np.zeros((2, 2))),
        ("student.output.bias", np.full(2, np.nan, np.float32)),
    ],
)
def test_tensors_that_do_not_fit_each_other_are_refused(name: str, other: np.ndarray | None) -> None:
    sent = model(corrected=True)
    tensors = decode(encode_model(sent))
    del tensors[name]
    if other is not None:
        tensors[name] = other
    with pytest.raises(DataError, match="not a published model"):
        decode_model(encode(tensors, {HEADER_KEY: sent.header.model_dump_json()}))
