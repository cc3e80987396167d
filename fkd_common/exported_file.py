"""The exported model: published model and extractor in one safetensors file; bytes only, no torch, no scoring.

Tensors of the published model keep the names they have in ``model.safetensors`` (see :mod:`fkd_common.model_file`);
those of the extractor are called ``extractor.*``. The metadata holds three JSON texts: ``fkd.export``
(:class:`ExportHeader`: what goes in, what comes out, where it comes from), ``fkd.model`` and ``fkd.extractor``
(as in the two files it was made of). Both files can be had back, so that each is checked by its own reader.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fkd_common.artifacts import sha256_hex
from fkd_common.errors import DataError, FkdError, UsageError
from fkd_common.extractor_artifact import (
    SPEC_KEY,
    join_safetensors,
    read_extractor_spec,
    split_safetensors,
)
from fkd_common.model_file import HEADER_KEY, ModelParts, decode_model, encode_model

EXPORT_KEY = "fkd.export"
"""Names the description in every format: a metadata key, or an extra file of a TorchScript archive."""
MAX_FILE_BYTES = 512 << 20
"""A larger model or extractor is refused before it is read; a ResNet18 has 45 MB."""

_EXTRACTOR = "extractor."
_WIDTHS = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}
_Parts: TypeAlias = dict[str, tuple[dict[str, Any], memoryview]]
"""Tensors by name: their entry in a safetensors header, and their bytes."""


class Candidate(StrEnum):
    """Whose scores an exported model gives."""

    PUBLISHED = "published"
    """The one that won the vote."""
    STUDENT = "student"
    ANCHORS = "anchors"
    MOMENTS = "moments"


class _Described(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputDescription(_Described):
    """What goes in."""

    name: Literal["images"] = "images"
    dtype: Literal["uint8"] = "uint8"
    shape: tuple[Literal["N"], Literal[3], int, int]
    """Batch, channels, height, width."""
    channels: Literal["RGB"] = "RGB"
    """Grey images are repeated over the channels."""
    resize: str = "shorter side to the height, bilinear with antialiasing; then the centre square"
    """How images of another size are brought to this one; all else is inside the model."""


class ExportHeader(_Described):
    """What a program needs to use an exported model, and where the model comes from."""

    format: Literal[1] = 1
    fkd_version: str
    run_id: str
    candidate: Literal["student", "anchors", "moments"]
    """Whose scores they are."""
    classes: tuple[str, ...]
    """Names of the columns of both outputs."""
    input: InputDescription
    outputs: dict[str, str] = Field(
        default={
            "scores": "float32 (N, classes), before softmax",
            "probabilities": "float32 (N, classes), softmax of the scores",
        }
    )
    model_sha256: str
    """Hash of the run's model.safetensors."""
    extractor_sha256: str
    """Hash of the run's extractor artifact."""
    config_sha256: str
    """Hash of the run's configuration."""

    @property
    def image_size(self) -> int:
        """Side of the square images that go in, in pixels."""
        return self.input.shape[2]


@dataclass(frozen=True)
class ModelFiles:
    """A published model with its extractor, as a run has them, and what describes the two together."""

    header: ExportHeader
    model: bytes
    """model.safetensors, with nothing in it that the candidate does not need; it publishes the candidate."""
    extractor: bytes
    """The extractor artifact."""

    @classmethod
    def of(cls, run_id: str, model: bytes, extractor: bytes, candidate: Candidate) -> Self:
        """Put the files of a run together.

        Args:
            run_id: The run they come from.
            model: Its model.safetensors.
            extractor: The artifact that the model names.
            candidate: Whose scores are wanted.

        Raises:
            DataError: One of them is not what it should be, or they do not belong together.
            UsageError: The model has no such candidate.
        """
        parts = decode_model(model)
        named = parts.header.extractor_sha256
        if sha256_hex(extractor) != named:
            raise DataError(
                f"the model needs the extractor with sha256 {named}, this one has {sha256_hex(extractor)}"
            )
        spec = read_extractor_spec(extractor)
        kept = _only(parts, candidate)
        header = ExportHeader(
            fkd_version=version("fkd"),
            run_id=run_id,
            candidate=kept.header.published,
            classes=parts.header.classes,
            input=InputDescription(shape=("N", 3, spec.input_size, spec.input_size)),
            model_sha256=sha256_hex(model),
            extractor_sha256=named,
            config_sha256=parts.header.config.sha256(),
        )
        return cls(header, encode_model(kept), extractor)


def _only(parts: ModelParts, candidate: Candidate) -> ModelParts:
    """The model reduced to one candidate, which it publishes."""
    has = {"student": True, "anchors": parts.anchor_correction, "moments": parts.moment_solution}
    there = [name for name, correction in has.items() if correction is not None]
    wanted = parts.header.published if candidate is Candidate.PUBLISHED else candidate.value
    if wanted not in there:
        raise UsageError(
            f"--candidate {candidate}: this model has no such candidate, only {', '.join(there)}"
        )
    return replace(
        parts,
        header=parts.header.model_copy(update={"published": wanted}),
        anchor_correction=parts.anchor_correction if wanted == "anchors" else None,
        moment_solution=parts.moment_solution if wanted == "moments" else None,
    )


def read_whole(path: Path) -> bytes:
    """The bytes of a model or extractor file, which may come from anywhere.

    Raises:
        DataError: It cannot be read, is no regular file, or is larger than :data:`MAX_FILE_BYTES`.
    """
    try:
        if not path.is_file():
            raise DataError(f"{path}: a file expected, got {'a folder' if path.is_dir() else 'none'}")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DataError(f"{path} has {size} bytes: no model or extractor has more than {MAX_FILE_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def encode_exported(files: ModelFiles) -> bytes:
    """Everything in one safetensors file; equal models give equal bytes."""
    tensors: _Parts = {}
    metadata = {EXPORT_KEY: files.header.model_dump_json()}
    for prefix, key, blob in (("", HEADER_KEY, files.model), (_EXTRACTOR, SPEC_KEY, files.extractor)):
        found, texts = _taken_apart(blob, key)
        metadata[key] = texts[key]
        tensors |= {prefix + name: tensor for name, tensor in found.items()}
    return _joined(tensors, metadata)


def decode_exported(blob: bytes) -> ModelFiles:
    """Take an exported model apart again.

    Raises:
        DataError: It is not one, or of a format that this release does not know.
    """
    tensors, texts = _taken_apart(blob, "exported model")
    absent = [key for key in (EXPORT_KEY, HEADER_KEY, SPEC_KEY) if key not in texts]
    if absent:
        raise DataError(f"not an exported model: its metadata lacks {', '.join(absent)}")
    try:
        header = ExportHeader.model_validate_json(texts[EXPORT_KEY])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or EXPORT_KEY
        raise DataError(f"not a model exported by this release: {place}: {first['msg']}") from error
    model = {name: tensor for name, tensor in tensors.items() if not name.startswith(_EXTRACTOR)}
    extractor = {
        name.removeprefix(_EXTRACTOR): tensor for name, tensor in tensors.items() if name not in model
    }
    files = ModelFiles(
        header,
        _joined(model, {HEADER_KEY: texts[HEADER_KEY]}),
        _joined(extractor, {SPEC_KEY: texts[SPEC_KEY]}),
    )
    _check_agreement(files)
    return files


def _check_agreement(files: ModelFiles) -> None:
    """Refuse a file whose description is not that of what it holds."""
    header = files.header
    try:
        model, spec = decode_model(files.model).header, read_extractor_spec(files.extractor)
    except FkdError as error:
        raise DataError(f"the exported model is damaged: {error}") from error
    held = (model.classes, model.published, model.extractor_sha256, spec.input_size, spec.input_size)
    if held != (header.classes, header.candidate, header.extractor_sha256, *header.input.shape[2:]):
        raise DataError("the exported model is damaged: it is not what its description says")


def _taken_apart(blob: bytes, name: str) -> tuple[_Parts, dict[str, str]]:
    """Tensors and metadata of a safetensors file; no byte of it belongs to two tensors."""
    header, body = split_safetensors(blob, name=name)
    metadata = header.pop("__metadata__", None) or {}
    parts: _Parts = {}
    taken = 0
    for tensor, entry in header.items():
        first, last = entry["data_offsets"]
        parts[tensor] = (entry, body[first:last])
        taken += last - first
    # Overlapping tensors would be copied again and again: a small file must not become a large one.
    if taken != len(body) or not isinstance(metadata, dict):
        raise DataError(f"{name} is not a safetensors file: its tensors overlap, or leave holes")
    return parts, {str(key): str(value) for key, value in metadata.items()}


def _joined(tensors: _Parts, metadata: dict[str, str]) -> bytes:
    """A safetensors file of these tensors, the widest element types first, so that each lies aligned."""
    header: dict[str, Any] = {}
    end = 0
    try:
        order = sorted(tensors, key=lambda name: (-_WIDTHS.get(tensors[name][0]["dtype"], 1), name))
        for name in order:
            entry, data = tensors[name]
            extent = [end, end + len(data)]
            header[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": extent}
            end += len(data)
    except (KeyError, TypeError) as error:
        raise DataError(f"not a safetensors file: a tensor has no dtype or shape ({error})") from error
    return join_safetensors(header, b"".join(tensors[name][1] for name in order), metadata)
