"""One run of a comparison: what decides its outcome, its name by content, and how its record begins; runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fkd_common.choices import NETWORK_CODECS, UNCODED
from fkd_common.config import FKD_RTM, FKD_RTM_KEYS, RunConfig
from fkd_shards.create import CreateRequest
from fkd_shards.label_faults import LabelFaults
from fkd_shards.partitions import Partition

RESULT_VERSION = 1
"""Raised when the same cell would come out differently, or its record would hold something else."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Division:
    """A data set divided among clients: what cells that have it in common need not make twice."""

    data: str
    """Source of `fkd-shards create`, with an absolute path."""
    data_sha256: str
    """What the source holds, wherever it lies."""
    extractor: str
    """`resnet18`, `pretrain` or the absolute path of a .safetensors file."""
    extractor_sha256: str
    seed: int
    partition: str
    clients: int
    anchors: int
    public: int
    limit: int | None
    few_shot: int | None
    """Most samples of a class that a client keeps."""
    flipped_clients: float
    """Share of the clients whose labels are flipped."""
    label_noise: float
    """Share of every client's labels that are wrong."""

    @cached_property
    def id(self) -> str:
        """32 hex digits: equal where clients hold the same samples and embed them alike."""
        return _digest(self.content)

    @property
    def content(self) -> Record:
        """All that decides it: where files lie does not."""
        fields = self.__dataclass_fields__
        return {name: getattr(self, name) for name in fields if name not in ("data", "extractor")}

    @property
    def paths(self) -> list[Path]:
        """Files and folders that it is made from."""
        given = (self.data, self.data.partition(":")[2], self.extractor)
        return [Path(text) for text in given if text.startswith("/")]

    def create_request(self, out: Path) -> CreateRequest:
        """How its shards are made.

        Args:
            out: Where they go.
        """
        return CreateRequest(
            source=self.data,
            clients=self.clients,
            partition=Partition.parse(self.partition),
            seed=self.seed,
            out=out,
            anchors=self.anchors,
            public=self.public,
            limit=self.limit,
            force=True,
            few_shot=self.few_shot,
            faults=LabelFaults(self.flipped_clients, self.label_noise),
        )


@dataclass(frozen=True)
class Cell:
    """One run of one method on one data set, partition and seed."""

    experiment: str
    label: str
    """The method's name in tables."""
    method: str
    dataset: str
    division: Division
    options: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of another method than FKD-RTM."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the run configuration that are not at their defaults."""
    varied: Mapping[str, Any] = field(default_factory=dict)
    """Values on the experiment's axes."""

    @property
    def seed(self) -> int:
        """Of the division and of the run."""
        return self.division.seed

    @cached_property
    def config(self) -> RunConfig:
        """The run configuration.

        Raises:
            pydantic.ValidationError: It cannot be.
        """
        values = {"min_clients": self.division.clients, **self.overrides, "seed": self.seed}
        if self.method != FKD_RTM or self.options:
            values |= {"method": self.method, "options": dict(self.options)}
        return RunConfig(**values)

    @cached_property
    def id(self) -> str:
        """32 hex digits: equal where the outcome is."""
        config = self.config.model_dump(mode="json")
        if self.method != FKD_RTM:  # another method reads none of these, whatever their defaults are
            unread = FKD_RTM_KEYS | {name for name in NETWORK_CODECS if config[name] == UNCODED[name]}
            config = {name: value for name, value in config.items() if name not in unread}
        return _digest({"version": RESULT_VERSION, "division": self.division.content, "config": config})

    def head(self) -> Record:
        """How its record begins: what it is, as the experiment at hand calls it."""
        return {
            "cell": self.id,
            "experiment": self.experiment,
            "method": self.method,
            "label": self.label,
            "dataset": self.dataset,
            "partition": self.division.partition,
            "clients": self.division.clients,
            "seed": self.seed,
            "varied": dict(self.varied),
        }

    def failed(self, sentence: str) -> Record:
        """The record of a cell that did not finish."""
        return {
            **self.head(),
            "config": self.config.model_dump(mode="json"),
            "config_hash": self.config.sha256(),
            "accuracy": {},
            "rounds": [],
            "bytes": {},
            "seconds": {},
            "error": sentence,
        }

    def __str__(self) -> str:
        varied = [as_text(value) for value in self.varied.values()]
        return ", ".join([self.label, *varied, f"seed {self.seed}"])


def as_text(value: Any) -> str:
    """A value as flags spell it: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _digest(value: Record) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]
