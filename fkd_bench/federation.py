"""A federation on this machine: its shards, flags and folders, and what it leaves; starts nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fkd_bench.narrator import Narrator
from fkd_bench.settings import BenchSettings
from fkd_common.config import RunConfig
from fkd_shards.create import CreateRequest, create
from fkd_shards.json_files import Manifest
from fkd_shards.partitions import Partition
from fkd_shards.shard import MANIFEST_FILE

Json = dict[str, Any]

SAY_WAITING_S = 10.0
"""At least this often it is said what is being waited for."""


@dataclass(frozen=True)
class FederationResult:
    """What a federation left: the coordinator's summary, every client's report, and the partition."""

    summary: Json
    reports: list[Json]
    manifest: Manifest
    wall_s: float


@dataclass(frozen=True)
class Federation:
    """Where one federation's files are, and what it runs."""

    settings: BenchSettings
    config: RunConfig
    folder: Path
    manifest: Manifest
    prepared: Path | None = None
    """Extractor and anchors, ready to serve; None prepares them for the run."""

    @property
    def shards(self) -> Path:
        """Folder of shards, anchors and test set."""
        return self.folder / "shards"

    @property
    def cache(self) -> Path:
        """Folder of cached embeddings."""
        return self.folder / "cache"

    @property
    def client_names(self) -> list[str]:
        """Clients are named after their shards."""
        return [f"shard{i}" for i in range(self.settings.clients)]

    @property
    def server_flags(self) -> list[str]:
        """What the coordinator is started with, besides its port and the run configuration."""
        return [
            "--extractor", self.settings.extractor,
            "--anchors", str(self.shards / "anchors"),
            "--public", str(self.shards / "public"),
            "--test", str(self.shards / "test"),
            "--runs", str(self.folder / "run"),
            *(("--prepared", str(self.prepared)) if self.prepared is not None else ()),
        ]  # fmt: skip

    def artifacts(self, run_id: str, name: str) -> Path:
        """A client's own folder of received artifacts: nothing is shared, so that every byte is counted."""
        return self.folder / "run" / run_id / "artifacts" / name

    def write_config(self) -> Path:
        """The run configuration as a file for the coordinator."""
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False))
        return path

    def client_flags(self, name: str, address: str) -> list[str]:
        """What a client is started with."""
        return [
            "--data", str(self.shards / name),
            "--server", address,
            "--threads", str(self.settings.threads),
            "--test", str(self.shards / "test"),
            "--runs", str(self.folder / "run"),
        ]  # fmt: skip


def make_federation(settings: BenchSettings, seed: int, narrator: Narrator) -> Federation:
    """Divide the data, or take over the same division made earlier."""
    data, partition = Path(settings.data).stem.replace(":", "-"), settings.partition.replace(":", "")
    name = f"{data}-{partition}-k{settings.clients}-s{seed}"
    folder = settings.out / name
    request = CreateRequest(
        source=settings.data,
        clients=settings.clients,
        partition=Partition.parse(settings.partition),
        seed=seed,
        out=folder / "shards",
        anchors=settings.anchors,
        public=settings.public,
        limit=settings.limit,
        force=True,
    )
    recipe = folder / "recipe.json"
    wanted = json.dumps({**vars(request), "partition": settings.partition}, default=str, sort_keys=True)
    if recipe.exists() and recipe.read_text() == wanted:
        manifest = Manifest.read(folder / "shards" / MANIFEST_FILE)
    else:
        recipe.unlink(missing_ok=True)
        narrator.say(
            f"dividing {settings.data} among {settings.clients} clients ({settings.partition}, seed {seed})"
        )
        folder.mkdir(parents=True, exist_ok=True)
        manifest = create(request)
        recipe.write_text(wanted)
    narrator.show_partition(manifest)
    return Federation(settings, settings.run_config(seed), folder, manifest)


def collect_result(federation: Federation, run_id: str, wall_s: float) -> FederationResult:
    """Read what a finished run left on disk."""
    folder = federation.folder / "run" / run_id
    summary = json.loads((folder / "summary.json").read_text())
    reports = [
        json.loads((folder / f"client-{name}" / "report.json").read_text())
        for name in federation.client_names
    ]
    return FederationResult(summary, reports, federation.manifest, wall_s)
