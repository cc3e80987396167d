"""What other runtimes compute with an exported model, against the project's own scores on real images."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from fkd_client.deployable import deployable
from fkd_client.embedding import embed
from fkd_client.extractor import load_extractor
from fkd_client.global_model import GlobalModel
from fkd_client.onnx_file import as_onnx
from fkd_client.torchscript import as_torchscript
from fkd_common.exported_file import EXPORT_KEY, Candidate, ExportHeader, ModelFiles
from fkd_common.method.probabilities import softmax
from fkd_common.model_file import decode_model
from fkd_shards.pictures import ArrayPictures

from .finished_run import IMAGE_SIZE, FinishedRun

CORRECTED = ("anchors", "moments")
"""The student alone is a part of both."""


@pytest.fixture(scope="module", params=CORRECTED)
def files(run: FinishedRun, request: pytest.FixtureRequest) -> ModelFiles:
    return ModelFiles.of("run-1", run.model, run.extractor_file.read_bytes(), Candidate(request.param))


@pytest.fixture(scope="module")
def images(run: FinishedRun) -> NDArray[np.uint8]:
    """The test images as another runtime is to be given them: (n, 3, s, s)."""
    grey = ArrayPictures(np.asarray(run.test.images)).load(np.arange(run.test.num_samples), IMAGE_SIZE).images
    return np.ascontiguousarray(np.broadcast_to(grey, (*grey.shape[:3], 3)).transpose(0, 3, 1, 2))


@pytest.fixture(scope="module")
def expected(run: FinishedRun) -> dict[str, NDArray[np.float32]]:
    """The project's own scores by candidate."""
    h = embed(load_extractor(run.extractor_file), run.test.images)
    return GlobalModel.of(decode_model(run.model)).candidate_logits(h)


@pytest.fixture(scope="module")
def onnx_model(files: ModelFiles) -> bytes:
    return as_onnx(files)


def agree(found: list[NDArray[np.float32]], scores: NDArray[np.float32]) -> None:
    """Every decision is the same, every probability within 1e-5."""
    for output in found:
        np.testing.assert_array_equal(output.argmax(axis=1), scores.argmax(axis=1))
    np.testing.assert_allclose(found[1], softmax(scores), rtol=0, atol=1e-5)
    np.testing.assert_allclose(softmax(found[0]), softmax(scores), rtol=0, atol=1e-5)


@pytest.mark.parametrize("candidate", ["student", *CORRECTED])
def test_the_network_scores_like_the_project(
    run: FinishedRun, candidate: str, images: NDArray[np.uint8], expected: dict[str, NDArray[np.float32]]
) -> None:
    files = ModelFiles.of("r", run.model, run.extractor_file.read_bytes(), Candidate(candidate))
    with torch.inference_mode():
        found = [output.numpy() for output in deployable(files)(torch.from_numpy(images))]
    agree(found, expected[files.header.candidate])


def test_onnxruntime_scores_like_the_project(
    files: ModelFiles,
    onnx_model: bytes,
    images: NDArray[np.uint8],
    expected: dict[str, NDArray[np.float32]],
) -> None:
    session = onnxruntime.InferenceSession(onnx_model, providers=["CPUExecutionProvider"])
    scores = expected[files.header.candidate]
    agree(session.run(["scores", "probabilities"], {"images": images}), scores)
    agree(session.run(["scores", "probabilities"], {"images": images[:1]}), scores[:1])
    told = session.get_modelmeta().custom_metadata_map[EXPORT_KEY]
    assert ExportHeader.model_validate_json(told) == files.header


def test_an_onnx_model_takes_any_batch_and_tells_nothing_of_the_machine_that_made_it(
    onnx_model: bytes,
) -> None:
    proto = onnx.load_from_string(onnx_model)
    (taken,) = proto.graph.input
    batch, *rest = taken.type.tensor_type.shape.dim
    assert batch.dim_param
    assert [side.dim_value for side in rest] == [3, IMAGE_SIZE, IMAGE_SIZE]
    assert taken.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert {entry.version for entry in proto.opset_import if entry.domain == ""} == {20}
    assert str(Path.cwd()).encode() not in onnx_model
    assert b".py" not in onnx_model


ALONE = """
import json, sys, warnings

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("fkd"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Without())
warnings.simplefilter("ignore")  # torch calls its own format deprecated
import torch
extra = {"fkd.export": ""}
model = torch.jit.load("model.pt", _extra_files=extra)
images = torch.load("images.pt", weights_only=True)
with torch.inference_mode():
    scores, probabilities = model(images)
    one, _ = model(images[:1])
try:
    import fkd_common
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("the project is there")
assert torch.allclose(one, scores[:1], atol=1e-4)
print(json.dumps({"classes": json.loads(extra["fkd.export"])["classes"], "scores": scores.tolist(),
                  "probabilities": probabilities.tolist()}))
"""


def test_torchscript_scores_like_the_project_in_a_process_without_it(
    files: ModelFiles, images: NDArray[np.uint8], expected: dict[str, NDArray[np.float32]], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (tmp_path / "model.pt").write_bytes(as_torchscript(files))
    torch.save(torch.from_numpy(images), tmp_path / "images.pt")
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["classes"] == list(files.header.classes)
    found = [np.array(told[name], np.float32) for name in ("scores", "probabilities")]
    agree(found, expected[files.header.candidate])


def test_an_export_can_be_told_from_a_wrong_one(run: FinishedRun, images: NDArray[np.uint8]) -> None:
    """The comparison above can fail: without the normalisation of images it does."""
    files = ModelFiles.of("r", run.model, run.extractor_file.read_bytes(), Candidate.MOMENTS)
    wrong = deployable(files)
    wrong.shift.zero_()
    with torch.inference_mode():
        found = [output.numpy() for output in wrong(torch.from_numpy(images))]
    h = embed(load_extractor(run.extractor_file), run.test.images)
    with pytest.raises(AssertionError):
        agree(found, GlobalModel.of(decode_model(run.model)).candidate_logits(h)["moments"])
