"""A small finished federation on handwritten digits, made once for all tests that look at what a run leaves."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fkd_bench.cli import main as bench_main
from fkd_client.extractor import dump_extractor
from fkd_client.pretrain import initial_trunk
from fkd_common.extractor_artifact import ExtractorSpec
from fkd_common.model_file import decode_model
from fkd_shards.shard import Shard, read_shard

IMAGE_SIZE = 16
CLIENTS = ("shard0", "shard1")


@dataclass(frozen=True)
class FinishedRun:
    """What the run left, and the test images as files."""

    folder: Path
    shards: Path
    images: Path
    """One PNG for each image of the test shard, `NNN.png`."""

    @property
    def test(self) -> Shard:
        return read_shard(self.shards / "test")

    @property
    def model(self) -> bytes:
        return (self.folder / "model.safetensors").read_bytes()

    @property
    def extractor_file(self) -> Path:
        return self.folder / "blobs" / f"{decode_model(self.model).header.extractor_sha256}.safetensors"

    def personal(self, client: str) -> Path:
        return self.folder / f"client-{client}"

    def report(self, client: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.personal(client) / "report.json").read_text())
        return report


def random_extractor() -> bytes:
    """An untrained trunk in half precision, as `pretrain` writes it."""
    spec = ExtractorSpec("resnet18", IMAGE_SIZE, (0.2, 0.3, 0.4), (0.3, 0.25, 0.2), stem="small")
    trunk = initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict()
    return dump_extractor({k: v.half() if v.ndim == 4 else v for k, v in trunk.items()}, spec)


@functools.cache
def finished_run(folder: Path) -> FinishedRun:
    """Run it in one process, below `folder`."""
    folder.mkdir()
    (folder / "extractor.safetensors").write_bytes(random_extractor())
    arguments = [
        "run", "--data", "digits", "--limit", "200", "--clients", str(len(CLIENTS)), "--anchors", "30",
        "--partition", "dirichlet:0.5", "--extractor", str(folder / "extractor.safetensors"), "--rounds", "2",
        "--residual-every", "2", "--local-steps", "20", "--hidden", "32,16", "--dropout", "0,0", "--teacher-trees", "5",
        "--residual-trees", "3", "--finetune-epochs", "1", "--transport", "inprocess", "--heartbeat-limit-s", "60",
        "--out", str(folder / "bench"),
    ]  # fmt: skip
    assert bench_main(arguments) == 0
    (model,) = (folder / "bench").glob("*/run/*/model.safetensors")
    made = FinishedRun(model.parent, model.parents[2] / "shards", folder / "images")
    made.images.mkdir()
    for row, image in enumerate(np.asarray(made.test.images)):
        Image.fromarray(image[:, :, 0]).save(made.images / f"{row:03d}.png")
    return made
