"""The JSON files of a data set, shard.json and manifest.json: fields, reading, writing; no arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fkd_common.errors import DataError

_MAX_BYTES = 16 * 2**20


class _JsonFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            DataError: Missing, too large, not JSON, or fields that do not fit.
        """
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise DataError(f"{path}: at most {_MAX_BYTES} bytes expected")
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise DataError(f"{path}: {field}: {first['msg']}: create the folder anew") from error

    def write(self, path: Path) -> None:
        """Write the file, indented for people."""
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


class ShardFile(_JsonFile):
    """``shard.json``: what one folder holds."""

    name: str
    classes: tuple[str, ...] | None
    num_samples: int = Field(ge=0)
    image_shape: tuple[int, int, int]
    source: str
    sha256: str


class PartSummary(_JsonFile):
    """One folder, as the manifest lists it; anchors have no class counts."""

    num_samples: int
    class_counts: tuple[int, ...] | None
    sites: tuple[str, ...] | None = None
    sha256: str


class BadFile(_JsonFile):
    """One image left out."""

    name: str
    reason: str


class Manifest(_JsonFile):
    """``manifest.json``: everything needed to tell what was made, and to make it again."""

    format: Literal[1] = 1
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    source: str
    seed: int
    clients: int
    partition: str
    partition_sha256: str
    test_fraction: float | None
    limit: int | None
    image_size: int | None
    flipped: tuple[str, ...] = ()
    """Shards whose every label c was made C - 1 - c."""
    label_noise: float = 0.0
    """Share of every shard's labels that were made others."""
    few_shot: int | None = None
    """Most samples of a class that a shard keeps."""
    num_unused: int
    num_bad: int
    bad: tuple[BadFile, ...]
    parts: dict[str, PartSummary]
