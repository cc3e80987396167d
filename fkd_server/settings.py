"""What `fkd-server` can be told: the run configuration and where things are; no behaviour."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from fkd_common.addresses import is_loopback
from fkd_common.config import RunConfig
from fkd_common.errors import InvalidUploadError, UsageError
from fkd_common.identifiers import check_client_name
from fkd_common.logs import LogFormat
from fkd_common.places import RUNS
from fkd_common.settings import ProgramSettings
from fkd_common.typed_text import Listed


class ServerSettings(RunConfig, ProgramSettings):  # type: ignore[misc]  # their model_config merges
    """Settings of the coordinator: flag > environment (FKD_...) > file > default.

    Other commands, each with its --help: `fkd-server prepare` a run on a machine that has torch; `certs` and `token`
    for TLS; `status`, `clients`, `rounds`, `ledger`, `events`, `pause`, `resume` and `stop` for a run at work; `export`
    its model; `doctor` for a run whose files are damaged; `completion` for the shell.
    """

    port: int = Field(50051, ge=0, le=65535)
    """Port to listen on (0: a free one, printed)."""
    host: str | None = None
    """Address to listen on (default: with --tls all of this machine's, else 127.0.0.1)."""
    tls: Path | None = None
    """Folder made by `fkd-server certs init`: serve over mutual TLS only. Without it, in plain text."""
    join_port: int | None = Field(None, ge=0, le=65535)
    """Port on which new clients get certificates for tokens (default with --tls: the one after --port; 0: none)."""
    http_port: int | None = Field(None, ge=0, le=65535)
    """Port of the page, of health probes and of metrics (default: the second after --port; 0: none)."""
    http_host: str = "127.0.0.1"
    """Address for --http-port; beyond this machine over HTTPS with --tls, and for those who prove who they are."""
    http_token: SecretStr | None = None
    """@FILE with a word that whoever wants to see the page or the metrics must show; needed beyond this machine."""
    insecure: bool = False
    """Accept plain text beyond loopback: only inside a network you trust."""
    relays: Listed[str] = ()
    """Names of clients that may be relays, as NAME,NAME: their n_k may change, and their counts are not checked."""
    upstream: str | None = None
    """Be a relay: take part in the run of the coordinator at HOST:PORT, as one client, with sums over one's own."""
    upstream_name: str | None = None
    """The relay's id in the upstream run (default: the certificate's)."""
    upstream_tls: Path | None = None
    """Folder with ca.pem, cert.pem and key.pem for --upstream: connect with mutual TLS, as whom it names."""
    upstream_join: SecretStr | None = None
    """@FILE with a token from the upstream coordinator: get the certificate for --upstream-tls, unless there is one."""
    upstream_join_port: int | None = Field(None, ge=1, le=65535)
    """The upstream coordinator's port for --upstream-join (default: the one after --upstream's)."""
    upstream_insecure: bool = False
    """Reach an upstream coordinator beyond this machine in plain text: only inside a network you trust."""
    upstream_patience_s: float = Field(86400.0, gt=0)
    """Seconds after which an upstream coordinator that does not answer is given up; its relay's run is kept."""
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
    runs: Path = RUNS
    """Folder that receives one folder per run."""
    run_id: str | None = None
    """Name of the run's folder (default: time and a random suffix); an unfinished run of that name goes on."""
    new_run: bool = False
    """Begin a new run even if --runs holds an unfinished one, which otherwise goes on where it stopped."""
    serve: bool = False
    """Stay after the run has finished, until stopped."""
    linger_s: float = Field(30.0, ge=0)
    """Seconds to wait, at the end, for clients to learn that the run is over."""
    upload_ttl_s: float = Field(3600.0, gt=0)
    """Seconds after which an upload that has stopped growing is dropped; at once when its phase closes."""
    threads: int = Field(0, ge=0)
    """Threads for preparation and evaluation (0: all cores)."""
    log_format: LogFormat = LogFormat.AUTO
    """`json`, `text`, or `auto`: text on a terminal, JSON lines otherwise."""

    @field_validator("relays")
    @classmethod
    def _names(cls, relays: tuple[str, ...]) -> tuple[str, ...]:
        """A name that no client can have would never let anybody in."""
        try:
            return tuple(check_client_name(name) for name in relays)
        except InvalidUploadError as error:
            raise ValueError(str(error)) from error

    def listen_host(self) -> str:
        """The address to listen on: beyond this machine only over TLS, or if asked for.

        Raises:
            UsageError: It would be plain text beyond this machine.
        """
        if self.tls is not None:
            return self.host or "0.0.0.0"  # noqa: S104  # every caller proves who it is
        self.check_plain_text("--host", self.host or "127.0.0.1")
        return self.host or "127.0.0.1"

    def check_plain_text(self, flag: str, host: str) -> None:
        """See that an address may be served in plain text, where it would be.

        Raises:
            UsageError: It is beyond this machine, and nobody has said that this is meant.
        """
        if self.tls is None and not self.insecure and not is_loopback(host):
            raise UsageError(
                f"{flag} {host} would serve plain text beyond this machine: give --tls FOLDER (made by "
                "`fkd-server certs init`), tunnel to 127.0.0.1 instead, or say --insecure inside a network you trust"
            )

    def check_no_relay(self) -> None:
        """Refuse a relay's flags where there is no relay.

        Raises:
            UsageError: Naming them.
        """
        names = ("name", "tls", "join", "join_port", "insecure", "patience_s")
        given = [
            f"--upstream-{name.replace('_', '-')}"
            for name in names
            if getattr(self, f"upstream_{name}") != type(self).model_fields[f"upstream_{name}"].default
        ]
        if given:
            raise UsageError(
                f"{', '.join(given)}: only with --upstream HOST:PORT, the coordinator to relay to"
            )

    def run_config(self) -> RunConfig:
        """The part that is published, hashed and decides what the run computes."""
        return RunConfig(**{name: getattr(self, name) for name in RunConfig.model_fields})

    def data_folder(self, name: str, given: Path | None) -> Path:
        """A given folder, or the one of that name inside $FKD_DATA or ./shards."""
        return given if given is not None else Path(os.environ.get("FKD_DATA", "shards")) / name
