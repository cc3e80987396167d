"""The published global model as one safetensors file that explains itself; bytes only, no scoring.

A model that is a student, with or without corrections, is a :class:`ModelParts`; any other method's own tensors are an
:class:`ExchangeModel`, which only that method can score.

Tensors: ``student.*`` (the averaged student), ``standardiser.mean|std`` (of the anchor embeddings),
``anchor_correction.coefficients|intercept`` (Eq. 13) and ``moment_correction.V`` (pooled moments), the last
two where the run computed them. The metadata key ``fkd.model`` holds a :class:`ModelHeader` as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from fkd_common.config import RunConfig
from fkd_common.errors import DataError, FkdError
from fkd_common.method.moments import num_moment_features
from fkd_common.method.residuals import AnchorCorrection, Standardiser
from fkd_common.method.student_layout import TensorSpec, student_layout
from fkd_common.tensors import Tensors, check_schema, decode, decode_writeable, encode, metadata_of

HEADER_KEY = "fkd.model"
EXCHANGE_KEY = "fkd.exchange_model"


class ModelHeader(BaseModel):
    """What a reader needs to score images with the tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: tuple[str, ...]
    published: Literal["student", "anchors", "moments"]
    """Which candidate the federated vote chose."""
    config: RunConfig
    """The run's configuration, from which student and features follow."""
    moment_lambda: float
    anchor_lambda: float
    anchor_loo_r2: float
    extractor_sha256: str
    """Hash of the extractor artifact whose embeddings the model takes."""


@dataclass(frozen=True)
class ModelParts:
    """A global model in numpy: the student's tensors and its corrections."""

    header: ModelHeader
    student: Tensors
    standardiser: Standardiser
    anchor_correction: AnchorCorrection | None
    moment_solution: NDArray[np.float32] | None
    """(p, C) V."""


class ExchangeHeader(BaseModel):
    """What a reader needs to score images with another method's tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: tuple[str, ...]
    published: Literal["model"] = "model"
    config: RunConfig
    """The run's configuration, which names the method."""
    extractor_sha256: str
    """Hash of the extractor artifact whose embeddings the model takes, or in full mode that it began as."""


@dataclass(frozen=True)
class ExchangeModel:
    """A global model in its method's own tensors."""

    header: ExchangeHeader
    tensors: Tensors


PublishedModel: TypeAlias = ModelParts | ExchangeModel


def encode_model(model: PublishedModel) -> bytes:
    """Serialise a model; equal models give equal bytes."""
    if isinstance(model, ExchangeModel):
        return encode(model.tensors, {EXCHANGE_KEY: model.header.model_dump_json()})
    tensors: Tensors = {f"student.{name}": array for name, array in model.student.items()}
    tensors["standardiser.mean"] = model.standardiser.mean
    tensors["standardiser.std"] = model.standardiser.std
    if model.anchor_correction is not None:
        tensors["anchor_correction.coefficients"] = model.anchor_correction.coefficients
        tensors["anchor_correction.intercept"] = model.anchor_correction.intercept
    if model.moment_solution is not None:
        tensors["moment_correction.V"] = model.moment_solution
    return encode(tensors, {HEADER_KEY: model.header.model_dump_json()})


def decode_model(blob: bytes) -> ModelParts:
    """Read a student with its corrections.

    Raises:
        DataError: The blob is not a published model, or another method's.
    """
    try:
        if (other := metadata_of(blob).get(EXCHANGE_KEY)) is not None:
            method = ExchangeHeader.model_validate_json(other).config.method
            raise DataError(
                f"this is a model of {method}, whose tensors only {method} itself can score: expected a student "
                "(the head-mode model of fkd-rtm or of a method that averages weights)"
            )
        header = ModelHeader.model_validate_json(metadata_of(blob)[HEADER_KEY])
        tensors = decode(blob)
        check_schema(tensors, _schema(header, tensors))
        standardiser = Standardiser(tensors["standardiser.mean"], tensors["standardiser.std"])
    except DataError:
        raise
    except (KeyError, ValidationError, FkdError) as error:
        raise DataError(f"not a published model: {error}") from error
    anchors = None
    if "anchor_correction.coefficients" in tensors:
        anchors = AnchorCorrection(
            standardiser,
            tensors["anchor_correction.coefficients"],
            tensors["anchor_correction.intercept"],
            header.anchor_lambda,
            header.anchor_loo_r2,
        )
    prefix = "student."
    student = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
    return ModelParts(header, student, standardiser, anchors, tensors.get("moment_correction.V"))


def decode_published(blob: bytes) -> PublishedModel:
    """Read a model of any method.

    Raises:
        DataError: The blob is not a published model.
    """
    try:
        described = metadata_of(blob).get(EXCHANGE_KEY)
        if described is not None:
            return ExchangeModel(ExchangeHeader.model_validate_json(described), decode_writeable(blob))
    except (ValidationError, FkdError) as error:
        raise DataError(f"not a published model: {error}") from error
    return decode_model(blob)


def _schema(header: ModelHeader, tensors: Tensors) -> dict[str, TensorSpec]:
    """Every tensor a model of this header has; of the corrections, those it brings."""
    config, C, d = header.config, len(header.classes), tensors["standardiser.mean"].size
    layout = student_layout(d, config.hidden, C, config.norm)
    schema = {f"student.{name}": spec for name, spec in layout.items()}
    schema["standardiser.mean"] = schema["standardiser.std"] = TensorSpec((d,), "float64")
    if "anchor_correction.coefficients" in tensors:
        schema["anchor_correction.coefficients"] = TensorSpec((d, C), "float64")
        schema["anchor_correction.intercept"] = TensorSpec((C,), "float64")
    if "moment_correction.V" in tensors:
        p = num_moment_features(config.hidden, d, config.moment_features)
        schema["moment_correction.V"] = TensorSpec((p, C), "float32")
    return schema
