import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from fkd_client.extractor import Extractor, dump_extractor
from fkd_client.pretrain import initial_trunk
from fkd_common.config import RunConfig
from fkd_common.extractor_artifact import ExtractorSpec

torch.set_num_threads(1)
threadpool_limits(1, user_api="blas")


@dataclass(frozen=True)
class Pictures:
    """The two attributes of a shard that embedding uses."""

    images: np.ndarray
    sha256: str


@dataclass(frozen=True)
class Blobs:
    """Gaussian clusters standing in for embeddings."""

    h: np.ndarray
    y: np.ndarray


def make_blobs(n: int, classes: list[int], seed: int, d: int = 16) -> Blobs:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(10, d)) * 1.5
    y = np.resize(np.array(classes, np.int64), n)
    return Blobs((centres[y] + rng.normal(size=(n, d))).astype(np.float32), y)


@pytest.fixture
def config() -> RunConfig:
    return RunConfig(
        hidden=(16, 8), dropout=(0.4, 0.2), teacher_trees=8, residual_trees=5, local_epochs=2, batch_size=16,
        rounds=4, min_val=10, finetune_epochs=2, lambda_grid=(1.0, 10.0),
    )  # fmt: skip


@pytest.fixture(scope="session")
def artifact() -> bytes:
    """A randomly initialised extractor for 16 px inputs."""
    spec = ExtractorSpec("resnet18", 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), stem="small")
    return dump_extractor(initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict(), spec)


@pytest.fixture(scope="session")
def extractor(artifact: bytes) -> Extractor:
    from fkd_client.extractor import load_extractor

    return load_extractor(artifact)


@pytest.fixture
def pictures() -> Pictures:
    images = np.random.default_rng(1).integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)
    return Pictures(images, "ab" * 32)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images and weights."""
    folder = Path(os.environ.get("FKD_SHARED", Path(__file__).parents[3] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set FKD_SHARED")
    return folder
