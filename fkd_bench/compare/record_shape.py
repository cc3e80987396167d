"""What a finished or failed cell's record must look like for tables and plots to read it; measures nothing."""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

_Number: TypeAlias = Annotated[float, Field(ge=-1e15, le=1e15)]
"""Of which sums and squares are still numbers."""
_Numbers: TypeAlias = dict[str, _Number | None]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Round(_Part):
    round: int
    accuracy: _Number | None = None
    accuracies: _Numbers | None = None
    up: _Number | None = None
    down: _Number | None = None


class _Calibration(_Part):
    confidence: list[_Number]
    accuracy: list[_Number]
    count: list[int]
    ece: _Number | None = None
    nll: _Number | None = None

    @model_validator(mode="after")
    def _bins_agree(self) -> Self:
        if not len(self.confidence) == len(self.accuracy) == len(self.count):
            raise ValueError("confidence, accuracy and count are not of one length")
        return self


class _Seconds(_Part):
    wall: _Number | None = None
    cpu: _Number | None = None
    phases: dict[str, _Number] | None = None


class _Config(_Part):
    options: dict[str, Any] = {}


class _Shape(_Part):
    cell: str
    experiment: str
    method: str
    label: str
    dataset: str
    partition: str
    clients: int
    seed: int
    varied: dict[str, Any]
    config: _Config
    accuracy: _Numbers
    rounds: list[_Round]
    bytes: _Numbers
    seconds: _Seconds
    error: str | None = None
    git: str | None = None
    config_hash: str | None = None
    partition_hash: str | None = None
    model_hash: str | None = None
    recall: list[_Number | None] | None = None
    class_names: list[str] | None = None
    class_counts: list[list[int]] | None = None
    weights: dict[str, _Number] | None = None
    calibration: _Calibration | None = None
    teacher: _Numbers | None = None
    clients_matched: _Numbers | None = None
    excluded: list[str] | None = None

    @model_validator(mode="after")
    def _classes_agree(self) -> Self:
        counts = {len(row) for row in self.class_counts or ()}
        if len(counts | {len(part) for part in (self.recall, self.class_names) if part}) > 1:
            raise ValueError("recall, class_names and class_counts are not of as many classes")
        return self


def record_from(text: str | bytes) -> dict[str, Any]:
    """A record from its JSON.

    Raises:
        ValueError: It is no record; one sentence.
    """
    try:
        record: dict[str, Any] = json.loads(text, parse_constant=_no_number)
        _Shape.model_validate(record)
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has half a character, which no file can hold") from None
    except RecursionError:
        raise ValueError("it is too deep for a record") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise ValueError(f"{place}: {first['msg']}") from None
    return record


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
