"""What `fkd-client` can be told: data, coordinator, machine; no behaviour."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from fkd_common.logs import LogFormat
from fkd_common.places import RUNS, cache_folder
from fkd_common.settings import ProgramSettings


class ClientSettings(ProgramSettings):
    """Settings of one data site: flag > environment (FKD_...) > file > default.

    Other commands, each with its --help: `fkd-client predict` images by a model, `check` what a run would read,
    `completion` for the shell.
    """

    data: str
    """A shard folder, a name inside $FKD_DATA or ./shards, an .npz file, or a folder of class folders."""
    server: str = "127.0.0.1:50051"
    """The coordinator, HOST:PORT."""
    name: str | None = None
    """This client's id in the run (default: the certificate's, else the name of the data)."""
    tls: Path | None = None
    """Folder with ca.pem, cert.pem and key.pem: connect with mutual TLS, as whom the certificate names."""
    join: SecretStr | None = None
    """@FILE with a token from `fkd-server token create`: get the certificate for --tls, unless a valid one is there."""
    join_port: int | None = Field(None, ge=1, le=65535)
    """The coordinator's port for --join (default: the one after --server's)."""
    insecure: bool = False
    """Reach a coordinator beyond this machine in plain text: only inside a network you trust."""
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, or a device such as `cuda:0`."""
    threads: int = Field(0, ge=0)
    """Threads for training (0: all cores; several clients on one machine should share them out)."""
    test: Path | None = None
    """Test shard on which the personal model is scored, here and only here."""
    max_bad: float = Field(0.01, ge=0, le=1)
    """Share of unreadable images to skip before giving up."""
    patience_s: float = Field(300.0, gt=0)
    """Seconds to keep trying a coordinator that does not answer."""
    runs: Path = RUNS
    """Folder that receives, per run, this client's personal model and report."""
    cache: Path = Field(default_factory=cache_folder)
    """Folder of cached embeddings and teachers."""
    artifacts: Path | None = None
    """Folder of cached extractors and anchors (default: artifacts inside the cache)."""
    log_format: LogFormat = LogFormat.AUTO
    """`json`, `text`, or `auto`: text on a terminal, JSON lines otherwise."""
