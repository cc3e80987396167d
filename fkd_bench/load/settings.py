"""What `fkd-bench load` can be told; no behaviour."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field

from fkd_common.settings import ProgramSettings
from fkd_common.typed_text import Listed


class Peer(StrEnum):
    """What can be measured beside this project."""

    FLOWER = "flower"


class Victim(StrEnum):
    """What can be killed in mid-round."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class LoadSettings(ProgramSettings):
    """Measure a coordinator with no-op clients on loopback; prints one JSON object. Flag > file > default."""

    clients: int = Field(10, ge=1)
    """Number of no-op clients; all of them take part in every round."""
    rounds: int = Field(20, ge=1)
    """Rounds that are measured."""
    model: str = "student"
    """What is exchanged: `student` (of the default configuration), `resnet18`, or a safetensors file's tensors."""
    method: Literal["load", "fkd-rtm"] = "load"
    """`load` (one exchange, averaged) or `fkd-rtm` (its student phase with all its checks; --model student)."""
    processes: int = Field(1, ge=1)
    """Processes that the clients are spread over; within one, each client is a thread."""
    tls: bool = False
    """Mutual TLS, with certificates made for this call."""
    wire_rounds: int = Field(2, ge=0)
    """Rounds of a second, shorter run through a proxy that counts bytes on the wire (0: none)."""
    idle_s: float = Field(0.0, ge=0, le=86_400)
    """Instead of rounds: what clients cost that wait in polls, over so many seconds."""
    kill: Victim | None = None
    """Instead: end the `coordinator` or a `client` with SIGKILL in round 2, and time how the run goes on."""
    against: Peer | None = None
    """Also measure `flower`, with the same tensors, clients and rounds."""
    flower_python: Listed[Path] = ()
    """Interpreters of virtual environments with flwr, as PATH,PATH: one measurement each."""
