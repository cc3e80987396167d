from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import structlog
import torch
from PIL import Image

from fkd_client.extractor import dump_extractor
from fkd_client.pretrain import initial_trunk
from fkd_common.extractor_artifact import ExtractorSpec
from fkd_server.cli import main as server_main
from fkd_shards.create import CreateRequest, create
from fkd_shards.partitions import Partition
from fkd_shards.shard import Shard, read_shard, write_shard

from .programs import Launcher

torch.set_num_threads(1)

PLAIN_SITES = ("a", "b", "c")
CORRUPT = "3/broken.png"


@dataclass(frozen=True)
class World:
    """What every test starts from: an extractor, anchors and tiny sites, made once.

    Attributes:
        sites: folder of shards "a", "b", "c" (about 40 digits each), "one_class", "one_sample", and the
            class folder "pictures" with one corrupt image among 24.
    """

    folder: Path

    @property
    def extractor(self) -> Path:
        return self.folder / "extractor.safetensors"

    @property
    def prepared(self) -> Path:
        return self.folder / "prepared"

    @property
    def sites(self) -> Path:
        return self.folder / "sites"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("world"))
    world.extractor.write_bytes(random_extractor())
    request = CreateRequest(
        "digits", 3, Partition.parse("iid"), 0, world.folder / "digits", anchors=20, limit=180
    )
    create(request)
    world.sites.mkdir()
    for index, name in enumerate(PLAIN_SITES):
        (request.out / f"shard{index}").rename(world.sites / name)
    usual = read_shard(world.sites / "a")
    assert usual.labels is not None
    _write_rows(world.sites / "one_class", usual, np.flatnonzero(usual.labels == usual.labels[0]))
    _write_rows(world.sites / "one_sample", usual, np.array([0]))
    _write_pictures(world.sites / "pictures", usual)
    arguments = ["--extractor", str(world.extractor), "--anchors", str(request.out / "anchors")]
    assert server_main(["prepare", *arguments, "--out", str(world.prepared), "--threads", "1"]) == 0
    return world


@pytest.fixture(autouse=True)
def _own_surroundings(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs started through their entry points: no variable of the developer's counts, nothing stays behind."""
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FKD_CACHE", str(world.cache))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    structlog.reset_defaults()


@pytest.fixture
def launch(world: World, tmp_path: Path) -> Iterator[Launcher]:
    """Starts programs that end with the test."""
    launcher = Launcher(tmp_path, world.cache, world.prepared)
    try:
        yield launcher
    finally:
        launcher.stop()


def random_extractor() -> bytes:
    """An untrained trunk for 16 px inputs, in half precision as `pretrain` writes it."""
    spec = ExtractorSpec("resnet18", 16, (0.2, 0.2, 0.2), (0.3, 0.3, 0.3), stem="small")
    trunk = initial_trunk(spec, torch.Generator().manual_seed(0)).state_dict()
    return dump_extractor({k: v.half() if v.ndim == 4 else v for k, v in trunk.items()}, spec)


def _write_rows(folder: Path, shard: Shard, rows: np.ndarray) -> None:
    assert shard.labels is not None
    write_shard(folder, shard.images[rows], shard.labels[rows], classes=shard.classes, source="test")


def _write_pictures(folder: Path, shard: Shard) -> None:
    """A class folder of 23 readable images and a corrupt one."""
    assert shard.labels is not None
    for row in range(23):
        path = folder / str(shard.labels[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(shard.images[row, :, :, 0])).save(path)
    broken = folder / CORRUPT
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
