"""An extractor that is made in no time: random weights are good enough to see that everything fits together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fkd_client.extractor import dump_extractor
from fkd_client.pretrain import initial_trunk
from fkd_common.extractor_artifact import ExtractorSpec


@pytest.fixture(scope="session")
def extractor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = ExtractorSpec("resnet18", 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), stem="small")
    trunk = initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict()
    path = tmp_path_factory.mktemp("extractor") / "extractor.safetensors"
    path.write_bytes(dump_extractor(trunk, spec))
    return path
