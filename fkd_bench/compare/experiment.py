"""An experiment's file: what it may say, checked before anything runs; expands to nothing here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fkd_bench.compare.catalogue import ALL, ALL_METHODS, PRESETS
from fkd_bench.compare.measures import MEASURES
from fkd_common.advice import did_you_mean
from fkd_common.config import FKD_RTM, FKD_RTM_KEYS, RunConfig
from fkd_common.errors import UsageError
from fkd_common.method_registry import READ_BY_ALL, known_methods
from fkd_common.yaml_text import yaml_mapping
from fkd_shards.partitions import Partition

DATA_AXIS = "data"
MOST_CELLS = 10_000
_SAID_ELSEWHERE = {
    "seed": "give `seeds: [...]`",
    "method": "list it under `methods`",
    "options": "give them with the method",
}
"""Keys of the run configuration that an experiment says in its own way."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DataSpec(_Part):
    """One data set."""

    source: str
    """Source of `fkd-shards create`; ``${NAME}`` is an environment variable."""
    extractor: str = "resnet18"
    """`resnet18`, `pretrain` or a .safetensors file with its JSON."""
    anchors: int | None = None
    """Instead of the experiment's; so are the next two."""
    public: int | None = None
    limit: int | None = None


class MethodSpec(_Part):
    """One row of the tables."""

    method: str = FKD_RTM
    label: str = ""
    """As tables show it (default: the title of the method's class)."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Hyper-parameters of another method than FKD-RTM."""
    preset: str = ""
    """A named configuration of FKD-RTM."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run configuration, for this row only."""

    @property
    def named(self) -> str:
        """What a message about its entry calls it."""
        return self.label or self.method

    @property
    def settings(self) -> dict[str, Any]:
        """Keys of the run configuration that it sets."""
        return {**PRESETS.get(self.preset, {}), **self.config}


class DivisionSpec(_Part):
    """How data are divided among clients."""

    partition: str = "dirichlet:0.1"
    clients: int = Field(10, ge=1)
    anchors: int = Field(500, ge=2)
    """Unlabelled images set aside."""
    public: int = Field(0, ge=0)
    """Labelled images set aside, for the extractor `pretrain`."""
    limit: int | None = Field(None, ge=1)
    """Use at most this many training and this many test images."""
    few_shot: int | None = Field(None, ge=1)
    """Most samples of a class that a client keeps."""
    flipped_clients: float = Field(0.0, ge=0, le=1)
    """Share of the clients whose every label c is made C - 1 - c."""
    label_noise: float = Field(0.0, ge=0, le=1)
    """Share of every client's labels that are made others."""

    @field_validator("partition")
    @classmethod
    def _spelled_one_way(cls, partition: str) -> str:
        try:
            return str(Partition.parse(partition))
        except UsageError as error:
            raise ValueError(str(error)) from error


class Experiment(DivisionSpec):
    """A grid of cells: every method, on every value of every axis, with every seed."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Of its file, without the ending."""
    where: str
    """Its file, for messages."""
    title: str
    question: str = ""
    """What it answers."""
    data: dict[str, DataSpec] = Field(min_length=1)
    """By name; more than one is an axis."""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    common: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run configuration, for every cell."""
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    """Values of whatever varies: data, how they are divided, or a key of the run configuration."""
    methods: list[MethodSpec] = Field(min_length=1)
    columns: str = ""
    """The axis whose values are the columns of tables."""
    metrics: tuple[str, ...] = Field(("global", "personal_matched"), min_length=1)
    """What tables show."""
    minutes: float | None = Field(None, gt=0)
    """Measured on 2 cores."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            UsageError: It cannot be read, or says something that cannot be; one sentence.
        """
        try:
            content = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"experiment {path} cannot be read: {error}") from error
        return cls.parse(content, path.stem, str(path))

    @classmethod
    def parse(cls, content: str, name: str, where: str) -> Self:
        """An experiment from the text of its file.

        Args:
            content: YAML.
            name: The file's name without its ending.
            where: The file, for messages.

        Raises:
            UsageError: It says something that cannot be; one sentence.
        """
        try:
            values = _mapping(content)
            _check_words(
                values, [key for key in cls.model_fields if key not in ("name", "where")], "unknown key"
            )
            listed = _spelled_out(values.get("methods"))
            experiment = cls.model_validate({**values, "methods": listed, "name": name, "where": where})
            check_numbers(values, experiment)
            for data, spec in experiment.data.items():
                check_numbers(values["data"][data], spec)
            check_count(experiment.count())
            _check_meaning(experiment)
        except ValidationError as error:
            raise UsageError(f"experiment {where}: {sentence_of(error)}") from error
        except UsageError as error:
            raise UsageError(f"experiment {where}: {error}") from error
        return experiment

    def count(self, seeds: Sequence[int] | None = None) -> int:
        """How many cells it spans, with its seeds or others."""
        values = [len(self.seeds if seeds is None else seeds), *map(len, self.spanned.values())]
        return math.prod(values) * len(self.methods)

    @property
    def spanned(self) -> dict[str, list[Any]]:
        """All axes; several data sets are one."""
        if len(self.data) > 1 and DATA_AXIS not in self.axes:
            return {DATA_AXIS: list(self.data), **self.axes}
        return self.axes


def sentence_of(error: ValidationError) -> str:
    """The first thing that is wrong, with its place and what came."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = RunConfig.model_fields if error.title == RunConfig.__name__ else ()
        advice = did_you_mean(str(first["loc"][-1]), known)
        return f"unknown key {place}" + (f": {advice}" if advice else "")
    if not place:
        return message
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def check_count(cells: int) -> None:
    """See that a grid is none that nobody meant.

    Raises:
        UsageError: It has more cells than :data:`MOST_CELLS`.
    """
    if cells > MOST_CELLS:
        raise UsageError(
            f"{cells:,} cells (seeds x values of each axis x methods) are more than {MOST_CELLS:,}: divide them "
            "among several files with fewer seeds or values each; those in one --out share what they have in common"
        )


def _mapping(content: str) -> dict[str, Any]:
    try:
        return yaml_mapping(content)
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_numbers(given: Mapping[str, Any], parsed: BaseModel) -> None:
    """See that nobody wrote yes or no where a number is expected, which would count as 1 or 0.

    Args:
        given: Values by name, as they were written.
        parsed: What they became.

    Raises:
        UsageError: Somebody did.
    """
    for name in given.keys() & type(parsed).model_fields.keys():
        became = list(_leaves(getattr(parsed, name)))
        for value in _leaves(given[name]):
            if isinstance(value, bool) and not any(value is other for other in became):
                raise UsageError(f"{name} = {str(value).lower()}: a number expected, got a truth value")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _spelled_out(methods: Any) -> list[Any]:
    """Every method as a mapping, `all` as what it stands for."""
    given = [methods] if isinstance(methods, str) else methods
    if not isinstance(given, list):
        raise UsageError(f"methods: expected a list of names or `{ALL}`, got {methods!r}")
    spelled = [each for word in given for each in (ALL_METHODS if word == ALL else (word,))]
    return [{"method": each} if isinstance(each, str) else each for each in spelled]


def _check_meaning(experiment: Experiment) -> None:
    """What no single field can know.

    Raises:
        UsageError: It is wrong.
    """
    known = known_methods()
    for method in experiment.methods:
        _check_words([method.method], known, "methods: unknown method")
        if method.preset:
            _check_words([method.preset], PRESETS, f"{method.named}: unknown preset")
        if method.preset and method.method != FKD_RTM:
            raise UsageError(f"{method.named}: a preset is for {FKD_RTM} alone")
        _check_config_keys(method.config, method.named)
        if method.method != FKD_RTM:
            for key in method.config.keys() & FKD_RTM_KEYS - READ_BY_ALL:
                raise UsageError(f"{method.named}: {key} is read by {FKD_RTM} alone: leave it out")
        for axis in experiment.axes:
            if axis in method.settings:
                raise UsageError(f"{method.named} sets {axis}, which is an axis: leave it to one of them")
    _check_config_keys(experiment.common, "common")
    spoken_for = (*DivisionSpec.model_fields, DATA_AXIS)
    for axis, values in experiment.axes.items():
        if axis not in spoken_for:
            _check_config_keys([axis], "axes", (*spoken_for, *RunConfig.model_fields))
        if not values:
            raise UsageError(f"axes: {axis} has no values")
    _check_words(experiment.axes.get(DATA_AXIS, ()), experiment.data, "axes: unknown data set")
    _check_words(experiment.metrics, MEASURES, "unknown metric")
    for key, listed in {"seeds": experiment.seeds, "metrics": experiment.metrics, **experiment.axes}.items():
        _check_once(map(str, listed), key)
    if experiment.columns and experiment.columns not in experiment.spanned:
        axes = ", ".join(experiment.spanned) or "none"
        raise UsageError(f"columns = {experiment.columns!r} is no axis: the axes are {axes}")


def _check_once(words: Iterable[str], where: str) -> None:
    seen = set()
    for word in words:
        if word in seen:
            raise UsageError(f"{where}: {word} is there twice")
        seen.add(word)


def _check_config_keys(keys: Iterable[str], where: str, known: Iterable[str] = ()) -> None:
    for key in keys:
        if key in _SAID_ELSEWHERE:
            raise UsageError(f"{where}: {key} is not set here: {_SAID_ELSEWHERE[key]}")
    _check_words(keys, known or RunConfig.model_fields, f"{where}: unknown key")


def _check_words(words: Iterable[Any], known: Iterable[str], what: str) -> None:
    listed = list(known)
    for word in words:
        if word not in listed:
            advice = did_you_mean(str(word), listed, f"expected one of {', '.join(listed)}")
            raise UsageError(f"{what} {word}: {advice}")
