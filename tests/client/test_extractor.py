import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from fkd_client.extractor import Extractor, load_extractor
from fkd_common.choices import FinetuneScope
from fkd_common.errors import DataError
from fkd_common.extractor_artifact import (
    SPEC_KEY,
    ExtractorSpec,
    build_extractor_artifact,
    read_extractor_spec,
)

DESCRIPTION = {
    "architecture": "torchvision.models.resnet18 without fc (global average pool, 512 features)",
    "input": {"size": 48, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]},
}


def written(tmp_path, raw, description):
    weights = tmp_path / "trunk.safetensors"
    weights.write_bytes(raw)
    described = tmp_path / "trunk.json"
    described.write_text(json.dumps(description))
    return weights, described


def test_an_artifact_carries_its_description_and_the_same_tensors(tmp_path):
    weights, described = written(tmp_path, save({"a": torch.arange(3)}), DESCRIPTION)
    packed = build_extractor_artifact(weights, described)
    assert read_extractor_spec(packed) == ExtractorSpec("resnet18", 48, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    assert torch.equal(load(packed)["a"], torch.arange(3))
    assert build_extractor_artifact(weights) == packed  # the JSON beside the weights is found
    weights.write_bytes(packed)
    assert build_extractor_artifact(weights) == packed  # packing twice changes nothing


@pytest.mark.scenario(35)
def test_weights_of_another_hash_than_their_json_says_are_refused(tmp_path):
    raw = save({"a": torch.arange(3)})
    weights, described = written(tmp_path, raw, DESCRIPTION | {"sha256": "0" * 64})
    with pytest.raises(DataError) as caught:
        build_extractor_artifact(weights, described)
    found = hashlib.sha256(raw).hexdigest()
    assert str(caught.value) == f"extractor {weights} has sha256 {found}, its JSON says {'0' * 64}"


@pytest.mark.scenario(20)
def test_a_header_of_many_gigabytes_is_refused_before_it_is_read(tmp_path):
    weights, described = written(tmp_path, (1 << 40).to_bytes(8, "little") + b"{}", DESCRIPTION)
    with pytest.raises(DataError, match="not a safetensors file"):
        build_extractor_artifact(weights, described)


@pytest.mark.scenario(20)
def test_a_tensor_outside_the_file_is_refused(tmp_path):
    raw = save({"a": torch.arange(3)})
    weights, described = written(tmp_path, raw[:-8], DESCRIPTION)
    with pytest.raises(DataError, match="lies outside the file"):
        build_extractor_artifact(weights, described)


def test_weights_without_any_description_are_refused(tmp_path):
    weights = tmp_path / "trunk.safetensors"
    weights.write_bytes(save({"a": torch.arange(3)}))
    with pytest.raises(DataError, match=r"put its JSON beside it as trunk\.json"):
        build_extractor_artifact(weights)


def test_packing_needs_no_torch():
    code = "import sys, fkd_common.extractor_artifact; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_and_extra_tensors_are_named(artifact):
    tensors = load(artifact)
    tensors["fc.weight"] = tensors.pop("bn1.bias")
    changed = save(tensors, metadata={SPEC_KEY: read_extractor_spec(artifact).to_json()})
    with pytest.raises(DataError, match=r"missing bn1\.bias; extra fc\.weight"):
        load_extractor(changed)


def test_half_precision_weights_become_float32_and_stay_frozen(artifact):
    tensors = {name: t.half() if t.ndim == 4 else t for name, t in load(artifact).items()}
    loaded = load_extractor(save(tensors, metadata={SPEC_KEY: read_extractor_spec(artifact).to_json()}))
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in loaded.parameters())
    assert not loaded.train().trunk.bn1.training


@pytest.mark.parametrize("scope", FinetuneScope)
def test_tail_after_stem_is_the_whole_extractor(extractor, scope):
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = extractor(x)
        split = extractor.tail(scope)(extractor.stem_forward(x, scope))
    np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-6)
    assert whole.shape == (3, 512)


def test_training_a_tail_leaves_the_extractor_alone(extractor):
    before = extractor.trunk.layer4[1].conv1.weight.clone()
    tail = extractor.tail(FinetuneScope.BLOCK)
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.add_(1)
    assert torch.equal(extractor.trunk.layer4[1].conv1.weight, before)


def test_building_an_extractor_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    Extractor(ExtractorSpec("resnet18", 32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_published_weights_load(shared_data):
    packed = build_extractor_artifact(
        shared_data / "resnet18_tinyimagenet.safetensors", shared_data / "resnet18_tinyimagenet.json"
    )
    assert load_extractor(packed).spec.input_size == 48
