"""What `fkd-server` can be told: the run configuration and where things are; no behaviour."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from fkd_common.config import RunConfig
from fkd_common.logs import LogFormat
from fkd_common.settings import ProgramSettings


class ServerSettings(RunConfig, ProgramSettings):  # type: ignore[misc]  # their model_config merges
    """Settings of the coordinator: flag > environment (FKD_...) > file > default.

    `fkd-server prepare --help` explains how to prepare a run on a machine that has torch.
    """

    port: int = Field(50051, ge=0, le=65535)
    """Port to listen on (0: a free one, printed)."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs --insecure: the connection is plain text."""
    insecure: bool = False
    """Accept plain text beyond loopback: only inside a network you trust."""
    extractor: str = "resnet18"
    """`resnet18` (torchvision's ImageNet weights), `pretrain`, or a .safetensors file with its JSON."""
    anchors: Path | None = None
    """Anchor shard folder (default: anchors in $FKD_DATA or ./shards)."""
    public: Path | None = None
    """Labelled public shard that --extractor pretrain trains on (default: public in $FKD_DATA or ./shards)."""
    prepared: Path | None = None
    """Folder made by `fkd-server prepare`: extractor and anchors, ready to serve without torch."""
    test: Path | None = None
    """Test shard: evaluate the global model after every round, in a process of its own."""
    runs: Path = Path("run")
    """Folder that receives one folder per run."""
    run_id: str | None = None
    """Name of the run's folder (default: time and a random suffix)."""
    serve: bool = False
    """Stay after the run has finished, until stopped."""
    linger_s: float = Field(30.0, ge=0)
    """Seconds to wait, at the end, for clients to learn that the run is over."""
    threads: int = Field(0, ge=0)
    """Threads for preparation and evaluation (0: all cores)."""
    log_format: LogFormat = LogFormat.AUTO
    """`json`, `text`, or `auto`: text on a terminal, JSON lines otherwise."""

    def run_config(self) -> RunConfig:
        """The part that is published, hashed and decides what the run computes."""
        return RunConfig(**{name: getattr(self, name) for name in RunConfig.model_fields})

    def data_folder(self, name: str, given: Path | None) -> Path:
        """A given folder, or the one of that name inside $FKD_DATA or ./shards."""
        return given if given is not None else Path(os.environ.get("FKD_DATA", "shards")) / name
