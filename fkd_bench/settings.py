"""What `fkd-bench run` can be told: the run configuration, the data and how to divide and run it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from fkd_common.config import RunConfig
from fkd_common.settings import ProgramSettings
from fkd_common.typed_text import Listed


class TransportKind(StrEnum):
    """How clients reach the coordinator."""

    PROCESS = "process"
    """One server process and one process per client, gRPC on loopback: the real thing."""
    INPROCESS = "inprocess"
    """The same programs' objects in one process, messages still serialised: the same bytes, faster to start."""


class BenchSettings(RunConfig, ProgramSettings):  # type: ignore[misc]  # their model_config merges
    """Settings of one federation on this machine: flag > environment (FKD_...) > file > default."""

    data: str
    """Source of `fkd-shards create`: digits, npz:FILE, folder|cifar10|cifar100|stl10|fashion-mnist:DIR, or a path."""
    extractor: str = "resnet18"
    """`resnet18` (torchvision's ImageNet weights), `pretrain`, or a .safetensors file with its JSON."""
    clients: int = Field(10, ge=1)
    """Number of clients; all of them must be ready before the first round."""
    partition: str = "dirichlet:0.1"
    """dirichlet:ALPHA, iid, classes:Q, longtail:FACTOR or sites."""
    anchors: int = Field(500, ge=2)
    """Unlabelled anchor images set aside before partitioning."""
    public: int = Field(0, ge=0)
    """Labelled public images set aside before partitioning, for --extractor pretrain."""
    limit: int | None = Field(None, ge=1)
    """Use at most this many training and this many test images."""
    transport: TransportKind = TransportKind.PROCESS
    """`process` (a server and clients as programs) or `inprocess` (one process, the same messages)."""
    threads: int = Field(1, ge=1)
    """Threads per client."""
    seeds: Listed[int] = ()
    """Run once per seed and report mean and standard deviation (default: the one --seed)."""
    out: Path = Path("bench")
    """Folder for shards, caches, runs and logs."""
    json_output: bool = Field(False, alias="json")
    """Print the result as one JSON object, last on standard output."""

    def run_config(self, seed: int) -> RunConfig:
        """The run configuration of one seed."""
        values = {name: getattr(self, name) for name in RunConfig.model_fields}
        return RunConfig(**{**values, "seed": seed, "min_clients": self.clients})
